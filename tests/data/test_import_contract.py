"""Contract of imports: one name, one import; an earlier one survives what fails or is refused."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from beir_files import write_beir
from corpus_files import TEXTS, ignore, write_folder
from longspan.data.corpora.imports import (
    CorpusDescription,
    CorpusRequest,
    build_tokens,
    import_corpus,
)
from longspan.data.imports import stored
from longspan.data.imports.texts import TextsDescription, TextsRequest, import_texts, load_splits
from longspan.data.own_splits import SPLITS
from longspan.errors import DataError, OptionError, RunError
from longspan.files import read_json, write_json
from longspan.tasks.ranking.imports import BeirDescription, import_collection, load_collection
from own_files import write_csv


def import_own(cache, path, name="mine", shares=None, **options):
    request = TextsRequest(text="body", target="stars", **(shares or {}))
    return import_texts(cache, name, path, request, **options)


def import_documents(cache, path, name="mine", shares=None, **options):
    request = CorpusRequest(paths=(str(path),), vocab_size=300, **(shares or {}))
    return import_corpus(cache, name, request, ignore, **options)


def import_judged(cache, path, name="mine", shares=None, **options):
    held_out = {SPLITS.index(split): share for split, share in (shares or {}).items()}
    return import_collection(cache, name, path, held_out, ignore, **options)


def write_texts(place, count):
    place.mkdir()
    return write_csv(place / "x.csv", [(f"text number {n}", "ny"[n % 2]) for n in range(count)])


def write_collection(place, count):
    queries = {f"q{n}": f"query {n} of {count}" for n in range(count)}
    return write_beir(place, queries=queries, judgments={"train": [(x, "d1", 1) for x in queries]})


@dataclasses.dataclass(frozen=True)
class Kind:
    """Import of a kind: its list, writer of two sources, table, and reader of the table."""

    imports: Any
    run: Callable
    write: Callable
    table: str
    share: float  # of each held-out split by default
    load: Callable


KINDS = {
    "texts": Kind(
        TextsDescription, import_own, write_texts, "texts", 0.1, lambda *x: load_splits(*x[:2])
    ),
    "corpus": Kind(
        CorpusDescription,
        import_documents,
        lambda place, count: write_folder(place, TEXTS[: count // 2]),
        "documents",
        0.05,
        lambda *x: build_tokens(*x, ignore),
    ),
    "collection": Kind(
        BeirDescription, import_judged, write_collection, "queries", 0.1, load_collection
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def sources(kind, tmp_path):
    """Return two sources whose imports differ."""
    return [kind.write(tmp_path / str(count), count) for count in (40, 48)]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_same_import_again_changes_nothing_and_another_one_needs_replace(kind, sources, tmp_path):
    cache = tmp_path / "cache"
    first = kind.run(cache, sources[0])
    folder = kind.imports.path(cache, "mine")
    before = contents(folder)
    assert kind.run(cache, sources[0]).rows_sha256 == first.rows_sha256
    with pytest.raises(OptionError, match=r"'mine' is the name of another .*--replace"):
        kind.run(cache, sources[1])
    assert contents(folder) == before
    second = kind.run(cache, sources[1], replace=True)
    assert second.rows_sha256 != first.rows_sha256
    assert kind.imports.load(folder).rows_sha256 == second.rows_sha256
    for name in ("", "../x", "My Reviews", "x" * 65, "-x"):
        with pytest.raises(OptionError, match="--name must have"):
            kind.run(cache, sources[0], name)
    assert [path.name for path in folder.parent.iterdir()] == ["mine"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_earlier_import_survives_a_replacement_that_fails(
    kind, sources, tmp_path, monkeypatch, error
):
    """An import that is stopped before its description leaves no table beside another's."""
    cache = tmp_path / "cache"
    first = kind.run(cache, sources[0])
    folder = kind.imports.path(cache, "mine")
    before = contents(folder)

    for module, name in ((pq, "write_table"), (stored, "write_json")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, Mock(side_effect=error))
            with pytest.raises((RunError, KeyboardInterrupt)) as caught:
                kind.run(cache, sources[1], replace=True)
        assert isinstance(caught.value, KeyboardInterrupt) or "No space left" in str(caught.value)
        assert contents(folder) == before
    assert kind.imports.load(folder).rows_sha256 == first.rows_sha256
    assert kind.load(folder, first, tmp_path / "scratch")
    kind.run(cache, sources[1], replace=True)
    assert [path.name for path in folder.parent.iterdir()] == ["mine"]


def test_changed_table_of_an_import_is_refused(kind, sources, tmp_path):
    described = kind.run(tmp_path / "cache", sources[0])
    folder = kind.imports.path(tmp_path / "cache", "mine")
    path = folder / f"{kind.table}.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(DataError, match="has changed"):
        kind.load(folder, described, tmp_path / "scratch")
    path.unlink()
    with pytest.raises(DataError, match=rf"{kind.table}\.parquet"):
        kind.load(folder, described, tmp_path / "scratch")


@pytest.mark.parametrize("change", [{"schema": 1}, {"extra": 1}, {}])
def test_description_of_another_schema_is_refused(kind, sources, tmp_path, change):
    described = kind.run(tmp_path / "cache", sources[0])
    folder = kind.imports.path(tmp_path / "cache", "mine")
    assert kind.imports.load(folder) == described
    path = folder / "import.json"
    write_json(path, {**read_json(path), **change} if change else {})
    with pytest.raises(
        DataError, match=rf"describes no {kind.imports.noun} of schema \d; import it again with --r"
    ):
        kind.imports.load(folder)


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        ({"validation": 0.0}, "--validation must be a share between 0 and 1 or a path, got 0"),
        ({"validation": 1.0}, "--validation must be a share between 0 and 1"),
        ({"test": 1.5}, r"--test must be a share between 0 and 1 or a path.*, got 1\.5"),
        ({"validation": 0.5, "test": 0.5}, r"leave no \w+ for training: 1 of all"),
        ({"test": 0.99}, r"leave no \w+ for training: 1\.\d+ of all"),
    ],
)
def test_shares_out_of_range_are_refused(kind, sources, tmp_path, shares, reason):
    with pytest.raises(OptionError, match=reason):
        kind.run(tmp_path / "cache", sources[0], shares=shares)
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_shares_are_those_of_the_rows(kind, sources, tmp_path):
    sizes = kind.run(tmp_path / "cache", sources[0], shares={"validation": 0.25}).sizes
    assert sizes["validation"] == sum(sizes.values()) // 4
    assert sizes["test"] == max(1, round(kind.share * sum(sizes.values())))
