"""Memory of the import and of tokenizing, which does not grow with the text."""

import json
import tracemalloc

import pytest

from corpus_files import ignore, prose, write_folder
from longspan.data import store
from longspan.data.corpora import tokenizing
from longspan.data.corpora.imports import CorpusRequest, build_tokens, import_corpus
from longspan.data.sources import documents, text

SMALL = 40_000  # characters
PER_DOCUMENT = 128  # bytes


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Read and tokenize in pieces that are small beside the corpora of these tests."""
    for module in (documents, tokenizing):
        monkeypatch.setattr(module, "PART", 1 << 11)
    monkeypatch.setattr(text, "PIECE", 1 << 11)
    monkeypatch.setattr(store, "_BUFFER", 1 << 11)
    monkeypatch.setattr(tokenizing, "BATCH", 1 << 12)


def write_corpus(folder, form, size):
    words = prose(size // 4)
    if form == "many documents":
        folder.mkdir(parents=True)
        lines = (json.dumps({"text": f"{n} {words[:200]}"}) + "\n" for n in range(size // 200))
        (folder / "a.jsonl").write_text("".join(lines))
        return folder
    long = words if form == "one long document" else "".join(words.split())
    return write_folder(folder, [long, "second document", "third document"])


def peak_of(folder, form, size, options):
    """Return the peak of Python's memory while a corpus is imported and tokenized, in bytes."""
    files, cache = write_corpus(folder / "files", form, size), folder / "cache"
    request = CorpusRequest(paths=(str(files),), **options)
    tracemalloc.start()
    try:
        described = import_corpus(cache, "mine", request, ignore)
        build_tokens(cache / "corpora" / "mine", described, folder / "scratch", ignore)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    files = write_corpus(folder / "files", "many documents", SMALL)
    import_corpus(folder, "first", CorpusRequest(paths=(str(files),), vocab_size=300), ignore)
    return {"tokenizer": str(folder / "corpora" / "first" / "tokenizer")}


@pytest.mark.parametrize("form", ["one long document", "one long word", "many documents"])
@pytest.mark.parametrize("tokens", ["masked", "pieces", "bytes", "characters"])
def test_ten_times_the_text_has_the_same_peak(tmp_path, tokenizer, form, tokens):
    options = {
        "masked": tokenizer,
        "pieces": {**tokenizer, "objective": "next"},
        "bytes": {"objective": "next"},
        "characters": {"objective": "next", "vocabulary": "characters"},
    }[tokens]
    peak_of(tmp_path / "warm", form, SMALL, options)  # imports all modules
    small = peak_of(tmp_path / "small", form, SMALL, options)
    # The smaller of two: what other threads of the process allocate counts too.
    large = min(peak_of(tmp_path / name, form, 10 * SMALL, options) for name in ("large", "again"))
    # each document has a checksum, a size and a split
    index = PER_DOCUMENT * 10 * SMALL // 200 if form == "many documents" else 0
    assert large < 1.5 * small + index
