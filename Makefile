# Two commands for a fresh clone: `make arena` and `make test`. Both make .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: arena test mutants docs lint types clean

arena: $(READY)
	@echo "== running the quick protocol (minutes on two CPU cores); report: runs/quick/report.html"
	@$(BIN)/longspan arena --protocol quick

test: $(READY)
	@echo "== running the tests, a process for each core (eight at most)"
	@$(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

mutants: $(READY)
	@echo "== planting bugs, one at a time, to see whether a test notices (about an hour)"
	@$(BIN)/python tests/mutants.py

docs: $(READY)
	@echo "== rendering the pages of mechanisms and benchmarks from their sources and records"
	@$(BIN)/python docs/pages.py
	@$(BIN)/python benchmarks/tables.py

lint: $(READY)
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@echo "== mypy"
	@$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	@echo "== making $(VENV) and installing the pinned dependencies (once)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"longspan needs Python 3.11 or newer, this is {v.major}.{v.minor}; run: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[arena,dev]'
	@touch $(READY)

clean:
	@rm -rf $(VENV)
