"""A killed import leaves documents behind; the next build or verification removes them."""

import signal
import subprocess
import sys

import pytest

from beir_files import write_beir
from longspan.data import cache as cached
from longspan.tasks import build

IMPORT = """
import os, signal, sys
from pathlib import Path
from longspan.tasks.ranking.imports import import_beir
def die(*progress):
    os.kill(os.getpid(), signal.SIGKILL)
folder, cache = map(Path, sys.argv[1:])
import_beir(cache, "mine", folder, {}, die)
"""
COPY = {"length": 64, "train": 4, "validation": 4, "test": 4}


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("command", ["build", "verify"])
def test_documents_of_a_killed_import_are_removed(tmp_path, command):
    documents = {f"d{n}": ("", f"text {n}") for n in range(1500)}
    folder, cache = write_beir(tmp_path / "mine", documents), tmp_path / "cache"
    done = subprocess.run([sys.executable, "-c", IMPORT, str(folder), str(cache)], check=False)
    assert done.returncode == -signal.SIGKILL
    left = files_below(cache / "retrieval")
    assert any(name.endswith("documents.parquet") for name in left), "the import left nothing"
    if command == "build":
        build("copying", COPY).open(cache)
    else:
        cached.verify(cache)
    assert files_below(cache / "retrieval") == []
