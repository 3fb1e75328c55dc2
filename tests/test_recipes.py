"""Recipes: the Python on their pages runs, in the order of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import typer
import yaml

import longspan.cli
from longspan.attention import MECHANISMS
from longspan.tasks import TASKS
from own_files import forgotten_imports

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "index.md", DOCS / "api" / "report.md", *sorted((DOCS / "recipes").glob("*.md"))]
# `test_practitioner.py` runs the pages that need a file and train.
OTHERS = {"long-documents", "search-documents"}
WITH_CODE = [
    path
    for path in PAGES
    if "```python" in path.read_text(encoding="utf-8") and path.stem not in OTHERS
]


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.stem)
def test_code_of_page_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(DOCS.parent)
    names: dict = {}
    with forgotten_imports(tmp_path), patch.dict(TASKS):
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.DOTALL):
            exec(compile(block, path.name, "exec"), names)


@pytest.mark.slow
def test_task_and_recipe_of_their_page_run_in_the_arena(tmp_path):
    text = (DOCS / "recipes" / "add-a-task.md").read_text()
    for kind, name in (("python", "parity.py"), ("toml", "parity-16.toml")):
        (block,) = re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.DOTALL)
        (tmp_path / name).write_text(block)
    short = ["--set", "training.steps=1", "--set", "task.train=64", "--seeds", "0", "--cache", "c"]
    commands = re.findall(r"^longspan (.*)$", text, re.M)
    assert [x.split()[0] for x in commands] == ["data", "data", "data", "arena"]
    for command in commands:
        words = [*command.split(), *(short if command.startswith("arena") else short[-2:])]
        done = subprocess.run(
            [sys.executable, "-m", "longspan", *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs" / "parity-16" / "parity").glob("*.json"))) == 4


def test_recipes_have_code():
    named = {"replace-torch-attention", "decode-with-a-bounded-cache", "add-a-task"}
    assert named <= {x.stem for x in WITH_CODE}


def test_decoding_page_names_every_mechanism_with_a_bounded_cache():
    page = (DOCS / "recipes" / "decode-with-a-bounded-cache.md").read_text()
    named = set(re.findall(r"\(\.\./mechanisms/([a-z_]+)\.md\)", page))
    assert named == {name for name, cls in MECHANISMS.items() if cls.traits.state_size == "1"}


def blocks_of_cluster_page(language):
    text = (DOCS / "recipes" / "run-on-a-cluster.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.DOTALL)


def flags_of_arena():
    command = typer.main.get_command(longspan.cli.app).commands["arena"]
    return {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize("job", [0, 3])
def test_slurm_script_runs_as_it_is(job, tmp_path):
    """Every job runs the grid; the first one estimates it before."""
    (script,) = blocks_of_cluster_page("bash")
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    (tmp_path / "arena.slurm").write_text(script)
    subprocess.run(["bash", "-n", "arena.slurm"], cwd=tmp_path, check=True)
    program = tmp_path / ".venv" / "bin" / "longspan"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$OMP_NUM_THREADS $*"\n')
    program.chmod(0o755)
    names = {"SLURM_ARRAY_TASK_ID": str(job), "SLURM_CPUS_PER_TASK": "4"}
    names["SLURM_SUBMIT_DIR"] = str(tmp_path)
    done = subprocess.run(
        ["bash", tmp_path / "arena.slurm"],
        env={**os.environ, **names},
        capture_output=True,
        text=True,
        check=True,
    )
    *estimates, command = done.stdout.splitlines()
    assert command.startswith("4 arena --protocol lra-scaled ")
    assert estimates == ([] if job else [f"{command} --dry-run"])
    assert set(re.findall(r"--[a-z-]+", done.stdout)) <= flags_of_arena()


def test_file_of_ray_cluster_is_valid():
    (text,) = blocks_of_cluster_page("yaml")
    config = yaml.safe_load(text)
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    util = pytest.importorskip("ray.autoscaler._private.util", reason="ray is not installed")
    util.validate_config(util.prepare_config(config))


def test_ray_commands_estimate_first():
    text = (DOCS / "recipes" / "run-on-a-cluster.md").read_text()
    runs = re.findall(r'^ray exec .*longspan arena (.*)"$', text, re.M)
    assert runs[0] == f"{runs[1]} --dry-run"
    assert set(re.findall(r"--[a-z-]+", " ".join(runs))) <= flags_of_arena()
