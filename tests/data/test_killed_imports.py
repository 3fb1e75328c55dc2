"""A killed import leaves documents behind; the next build or verification removes them."""

import multiprocessing
import os
import signal

import pytest

from beir_files import write_beir
from longspan.data import cache as cached
from longspan.tasks import build
from longspan.tasks.ranking.imports import import_collection

COPY = {"length": 64, "train": 4, "validation": 4, "test": 4}


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("command", ["build", "verify"])
def test_documents_of_a_killed_import_are_removed(tmp_path, command):
    documents = {f"d{n}": ("", f"text {n}") for n in range(1500)}
    folder, cache = write_beir(tmp_path / "mine", documents), tmp_path / "cache"
    process = multiprocessing.get_context("fork").Process(
        target=import_collection, args=(cache, "mine", folder, {}, die)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    left = files_below(cache / "retrieval")
    assert any(name.endswith("documents.parquet") for name in left), "the import left nothing"
    if command == "build":
        build("copying", COPY).open(cache)
    else:
        cached.verify(cache)
    assert files_below(cache / "retrieval") == []
