"""No file that a user names is read unless it is a regular file of a bounded size.

Every reader is given a FIFO, links to a device, a folder and a file that is too large. A FIFO would
block, and a device fill the memory, so each call has a limit of time and of memory.
"""

import contextlib
import gzip
import os
import resource
import signal
from pathlib import Path

import pytest

from longspan.arena.plugins import load_plugin, load_protocol
from longspan.arena.saved_checkpoint import open_checkpoint
from longspan.cli.generating import _read_prompt
from longspan.data import archives, json_files, store
from longspan.data.imports.stored import load_table
from longspan.data.source_files import SourceFiles
from longspan.data.sources.documents import CorpusSource
from longspan.data.sources.table import read_table
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.data.word_pieces import tokenizer_sha256
from longspan.errors import LongspanError
from longspan.files import LARGE, SMALL, file_sha256, read_json
from longspan.models.conversion.checkpoint_files import load_tokenizer
from longspan.models.conversion.source import open_source, read_tensors
from longspan.results.reading import load_result
from longspan.tasks.documents import conll, hyperpartisan
from longspan.tasks.lra import aan
from longspan.tasks.lra import text as imdb
from longspan.tasks.questions import hotpotqa
from longspan.tasks.ranking import beir_files as beir
from longspan.tasks.ranking.dpr_files import read_articles
from longspan.tasks.source_report import Report
from longspan.tasks.summaries import papers
from longspan.training.checkpoint_folder import read_config

STATUS = Path("/proc/self/statm")  # first the pages of memory of this process
SECONDS, BYTES = 5, 1 << 30
LIMITS = archives.Limits(member=1 << 20, total=1 << 20)


def read_corpus(path):
    source = CorpusSource(path=str(path))
    for document in source.read(FileFormat(), ReadingReport(skip_bad=False)):
        list(document.parts)


def of_folder(read):
    """Return a reader of a file that is given the folder of the file."""
    return lambda path: read(path.parent)


def read_member(path):
    with archives.open_member(path.parent, path.name, LIMITS):
        pass


def read_splits(path):
    files = {"splits": (path,)}
    hyperpartisan.read_published_splits(SourceFiles(form="XML", path=path.parent, files=files))


def read_passages(path):
    list(read_articles(path))


def with_config(read):
    """Return a reader of a folder whose configuration is there."""

    def read_folder(path):
        (path.parent / "config.json").write_text('{"model_type": "bert"}')
        return read(path.parent)

    return read_folder


# Name of the file, its reader, and the most bytes that it may have; None: it is read in pieces.
DOORS = {
    "plug-in": ("mine.py", lambda x: load_plugin(str(x)), SMALL),
    "protocol": ("mine.toml", lambda x: load_protocol(str(x)), SMALL),
    "prompt": ("prompt.txt", lambda x: _read_prompt(None, x, None), SMALL),
    "record": ("result.json", load_result, LARGE),
    "checked JSON": ("import.json", read_json, LARGE),
    "checksum": ("any", file_sha256, None),
    **{
        f"own texts, {suffix}": (f"own{suffix}", read_table, LARGE)
        for suffix in (".csv", ".tsv", ".jsonl", ".ndjson")
    },
    "own texts, .parquet": ("own.parquet", read_table, None),
    "own texts, folder": ("class/text.txt", lambda x: read_table(x.parent.parent), LARGE),
    **{
        f"corpus, {suffix}": (f"corpus{suffix}", read_corpus, None)
        for suffix in (".txt", ".jsonl", ".parquet", ".txt.gz", ".jsonl.gz", ".txt.zst")
    },
    "BEIR texts": ("corpus.jsonl", lambda x: list(beir.read_texts(x)), None),
    "DPR passages": ("psgs_w100.tsv", read_passages, None),
    "BEIR judgments": ("test.tsv", lambda x: list(beir.read_judgments(x)), None),
    "published JSON": ("train.json", json_files.load_json, LARGE),
    "selection": ("selected.json", hotpotqa.read_selection, LARGE),
    "papers": ("train.txt", lambda x: list(papers.read_papers(x, Report())), None),
    "packed papers": ("train.txt.gz", lambda x: list(papers.read_papers(x, Report())), None),
    "CoNLL": ("train.english.v4_gold_conll", lambda x: list(conll.read_documents(x)), LARGE),
    "archive": ("a.tar", lambda x: list(archives.read_members(x, bool, LIMITS)), None),
    "file of a folder": ("a.txt", read_member, 1 << 20),
    "IMDB parquet": ("train.parquet", lambda x: list(imdb._parquet_rows("train", x)), None),
    "AAN papers": ("papers.parquet", aan._read_papers, None),
    "Hyperpartisan splits": ("hp-splits.json", read_splits, LARGE),
    "Hyperpartisan articles": ("articles.xml", hyperpartisan._unpack, None),
    "packed Hyperpartisan articles": ("articles.xml.gz", hyperpartisan._unpack, None),
    "split": ("train.arrow", store.read_examples, None),
    "rows": ("rows.parquet", lambda x: load_table(x, ""), None),
    "checkpoint": ("config.json", of_folder(open_checkpoint), None),
    "configuration": ("config.json", of_folder(read_config), LARGE),
    "source of a conversion": ("config.json", lambda x: open_source(x.parent, None), LARGE),
    "files of a conversion": (
        "generation_config.json",
        with_config(lambda x: open_source(x, None)),
        None,
    ),
    "weights": ("model.safetensors", of_folder(read_tensors), None),
    "tokenizer of a conversion": ("tokenizer.json", of_folder(load_tokenizer), None),
    "tokenizer": ("tokenizer.json", of_folder(tokenizer_sha256), None),
}
TAKE_FOLDERS = ("archive", "files of a conversion")


def put_large(path, most):
    with path.open("wb") as file:
        file.truncate(most + 1)


HAZARDS = {
    "FIFO": lambda path, most: os.mkfifo(path),
    "device": lambda path, most: path.symlink_to("/dev/zero"),
    "link to a FIFO": lambda path, most: (
        os.mkfifo(path.with_name("fifo")),
        path.symlink_to(path.with_name("fifo")),
    ),
    "folder": lambda path, most: path.mkdir(),
    "too large": put_large,
}


@contextlib.contextmanager
def bounded():
    """Limit the time and the further memory of a call."""

    def fail(*_):
        raise TimeoutError(f"no answer after {SECONDS} seconds")

    earlier = signal.signal(signal.SIGALRM, fail)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(STATUS.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, before[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not STATUS.exists(), reason="needs FIFOs and /proc")
@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("door", DOORS)
def test_only_regular_files_of_bounded_size_are_read(tmp_path, door, hazard):
    name, read, most = DOORS[door]
    if hazard == "too large" and most is None:
        pytest.skip("read in pieces")
    if hazard == "folder" and door in TAKE_FOLDERS:
        pytest.skip("takes folders")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    HAZARDS[hazard](path, most)
    with bounded(), pytest.raises(LongspanError) as caught:
        read(path)
    assert str(tmp_path) in str(caught.value)
    if hazard == "too large":
        assert "at most" in str(caught.value)


def test_packed_json_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "LARGE", 1 << 10)
    (tmp_path / "train.json.gz").write_bytes(gzip.compress(bytes(1 << 12)))
    with pytest.raises(LongspanError, match="unpacks to more than 1 KiB"):
        json_files.load_json(tmp_path / "train.json.gz")
