# `make install` creates .venv; every other target does so first in a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARENA_OPTIONS ?=
# Runs of the arena at a time, of one thread each: equal answers on machines of any size.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, os.cpu_count() or 1))')

.PHONY: install arena test mutants gpu speedrun docs site lint types clean

install: $(READY)

arena: $(READY)
	@echo "== running the quick protocol (about half an hour on two CPU cores); report in runs/quick/report.html"
	@$(BIN)/longspan arena --protocol quick --workers $(WORKERS) $(ARENA_OPTIONS)

test: $(READY)
	@echo "== running the tests, one process more than there are cores (at most 8)"
	@# Tests start many processes, which would compile every file again without bytecode.
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

mutants: $(READY)
	@echo "== planting bugs, one at a time, and running the attention tests (about an hour)"
	@$(BIN)/python tests/mutants.py

# The environment's own torch, which knows the GPU; .venv has that of the CPU.
GPU_PYTHON ?= $(PYTHON)
GPU_OPTIONS ?=

gpu:
	@echo "== tests, efficiency and small runs on the GPU, part by part; results in runs/gpu"
	@PYTHONPATH=src:$$PYTHONPATH $(GPU_PYTHON) benchmarks/gpu_day.py $(GPU_OPTIONS)

SPEEDRUN_OPTIONS ?=

speedrun: $(READY)
	@echo "== training recall of 8 pairs to 95 % with three seeds (about a minute); rules and records: docs/speedrun.md"
	@$(BIN)/python benchmarks/speedrun.py $(SPEEDRUN_OPTIONS)

docs: $(READY)
	@echo "== rendering the pages of mechanisms, tasks, benchmarks and results"
	@$(BIN)/python benchmarks/tables.py
	@$(BIN)/python docs/pages.py
	@$(MAKE) --no-print-directory site

# With --quiet, warnings would not fail the build. The variable silences a notice of the theme.
site: $(READY)
	@echo "== building the documentation site, offline; broken links fail: site/index.html"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lint: $(READY)
	@echo "== checking lint and format (ruff) and spelling (codespell)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/codespell src benchmarks docs results *.md

types: $(READY)
	@echo "== checking types (mypy)"
	@$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	@echo "== creating $(VENV) and installing pinned dependencies (once)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"longspan requires Python >= 3.11, got {v.major}.{v.minor}; run: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[arena,dev]'
	@touch $(READY)

clean:
	@rm -rf $(VENV)
