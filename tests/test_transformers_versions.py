"""Models and interop with the newest transformers that pip finds, and with the oldest supported."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEPT = ("torch", "numpy")  # compiled code of other packages fits these alone


def requirement(age):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    needs = [x for group in groups for x in group]
    (lowest,) = {x.partition(">=")[2] for x in needs if re.match(r"transformers\b", x)}
    return "transformers" if age == "newest" else f"transformers=={lowest}.*"


def install(age, folder):
    """Install a version of transformers into a folder, beside the packages that are here."""
    lines = [f"{name}=={importlib.metadata.version(name)}" for name in KEPT]
    (folder / "constraints.txt").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder / "packages")]
    command += ["-c", str(folder / "constraints.txt"), requirement(age)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install {requirement(age)}: {done.stderr.strip()[-200:]}")
    paths = [str(folder / "packages"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def deprecations(done):
    """Return the lines of a process that name something deprecated, but for torch's tracing."""
    lines = (done.stdout + done.stderr).splitlines()
    return [x for x in lines if "deprecat" in x.lower() and "torch.jit" not in x]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("age", ["newest", "oldest"])
def test_models_work_with_transformers(age, tmp_path):
    environment = install(age, tmp_path)
    code = "import transformers; print(transformers.__file__, transformers.__version__)"
    run = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": False}
    found = subprocess.run([sys.executable, "-c", code], **run).stdout
    assert found.startswith(str(tmp_path)), found
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "-n", "2", "tests/models", "tests/interop"], **run)
    assert done.returncode == 0, f"transformers {found}\n{done.stdout[-8000:]}"
    assert not deprecations(done)


@pytest.mark.slow
def test_commands_print_no_warning_of_the_newest_transformers(tmp_path):
    environment = install("newest", tmp_path)
    run = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    settings = ["--set", "training.steps=3", "--runs", str(tmp_path / "run")]
    train = ["train", "local", "recall", "--protocol", "diagnostic", *settings]
    for arguments in (["list", "mechanisms"], train):
        done = subprocess.run([sys.executable, "-m", "longspan", *arguments], **run, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert not deprecations(done)
