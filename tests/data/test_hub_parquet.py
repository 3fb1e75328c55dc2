"""Parquet files of the hub give the examples of the official files."""

import dataclasses
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data.parquet import split_files
from longspan.errors import DataError, MissingSourceError
from longspan.tasks import SPLITS, build
from published_folders import SOURCES, make_source

SHARDS = 3


def put(folder, split, rows, shards=SHARDS):
    """Write the rows of a split as files of the hub; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(rows) // shards)
    table = pa.Table.from_pylist(rows)
    for number in range(shards):
        part = table.slice(number * size, size)
        pq.write_table(part, folder / f"{split}-{number:05d}-of-{shards:05d}.parquet")
    return folder


def squad_rows(path):
    return [
        {
            **{name: question[name] for name in ("id", "question")},
            "title": article["title"],
            "context": paragraph["context"],
            "answers": {
                name: [answer[name] for answer in question["answers"]]
                for name in ("text", "answer_start")
            },
        }
        for article in json.loads(path.read_text())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def hotpotqa_rows(path):
    return [
        {
            "id": record["_id"],
            **{name: record[name] for name in ("question", "answer")},
            "supporting_facts": {
                "title": [title for title, _ in record["supporting_facts"]],
                "sent_id": [number for _, number in record["supporting_facts"]],
            },
            "context": {
                "title": [title for title, _ in record["context"]],
                "sentences": [sentences for _, sentences in record["context"]],
            },
        }
        for record in json.loads(path.read_text())
    ]


def triviaqa_rows(path):
    texts = path.parents[1] / "evidence" / "wikipedia"
    rows = []
    for record in json.loads(path.read_text())["Data"]:
        names = [page["Filename"] for page in record["EntityPages"]]
        rows.append(
            {
                "question_id": record["QuestionId"],
                "question": record["Question"],
                "answer": {"normalized_aliases": record["Answer"]["NormalizedAliases"]},
                "entity_pages": {
                    "filename": names,
                    "wiki_context": [(texts / name).read_text() for name in names],
                },
                "search_results": {
                    name: pa.array([], pa.string()).to_pylist()
                    for name in ("filename", "search_context")
                },
            }
        )
    return rows


def paper_rows(path):
    rows = []
    for record in map(json.loads, path.read_text().splitlines()):
        abstract = [x.removeprefix("<S> ").removesuffix(" </S>") for x in record["abstract_text"]]
        rows.append(
            {"article": " ".join(record["article_text"]), "abstract": " \n ".join(abstract)}
        )
    return rows


def wiki_rows(path):
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [{"text": line if line.strip() else ""} for line in lines]


PAPERS = (paper_rows, {"train": "train.txt", "validation": "val.txt", "test": "test.txt"})
WIKI = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}
# Rows of a file, and the official file of each split of the hub.
HUB = {
    "squad": (squad_rows, {"train": "train-v1.1.json", "validation": "dev-v1.1.json"}),
    "hotpotqa": (
        hotpotqa_rows,
        {"train": "hotpot_train_v1.1.json", "validation": "hotpot_dev_distractor_v1.json"},
    ),
    "triviaqa": (
        triviaqa_rows,
        {"train": "qa/wikipedia-train.json", "validation": "qa/wikipedia-dev.json"},
    ),
    "arxiv_summarization": PAPERS,
    "pubmed_summarization": PAPERS,
    "wikitext_2": (wiki_rows, WIKI),
    "wikitext_103": (wiki_rows, WIKI),
}


def write_hub(name, official, folder):
    rows_of, files = HUB[name]
    for split, file in files.items():
        put(folder, split, rows_of(official / file))
    return folder


def checksums(task, data, cache):
    """Return the checksum of each split; ids of papers, which the hub lacks, are left out."""
    task.open(cache, data)
    examples = [task._examples(split) for split in SPLITS]
    if task.info.name.endswith("_summarization"):
        examples = [dataclasses.replace(one, details=None) for one in examples]
    return [one.checksum() for one in examples]


@pytest.fixture(params=HUB)
def case(request, tmp_path, monkeypatch):
    """Task, its official folder, and that of the hub, in one that has the name of the set."""
    for variable in ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA"):
        monkeypatch.delenv(variable, raising=False)
    task, official = make_source(request.param, tmp_path / "official", monkeypatch)
    return task, official, write_hub(request.param, official, tmp_path / "hub" / "some" / "config")


def test_examples_are_those_of_the_official_files(case, tmp_path):
    task, official, folder = case
    expected = checksums(task, official, tmp_path / "cache")
    assert checksums(task, folder, tmp_path / "again") == expected
    assert checksums(task, folder.parents[1], tmp_path / "above") == expected
    shards = [path for split in HUB[task.info.name][1] for path in split_files(folder, split)]
    assert len(task.identify_source(folder)[_sizes(task)]) == len(shards)


def _sizes(task):
    return "sha256" if task.info.name in ("squad", "hotpotqa") else "bytes"


def test_missing_file_of_a_split_is_named(case, tmp_path):
    task, _, folder = case
    (folder / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(DataError, match=r"lacks train-00001-of-00003\.parquet, 1 of 3"):
        task.open(tmp_path / "cache", folder)


def test_missing_column_is_named(case, tmp_path):
    task, _, folder = case
    put(folder, "train", [{"other": 1}], shards=1)
    for path in folder.glob("train-*-of-00003.parquet"):
        path.unlink()
    with pytest.raises(DataError, match=r"(row|question) 0 has no field .*; its fields are other"):
        task.open(tmp_path / "cache", folder)


LISTS = {
    "squad": ("answers", "answer_start"),
    "hotpotqa": ("supporting_facts", "sent_id"),
    "triviaqa": ("entity_pages", "wiki_context"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_different_lengths_are_named(tmp_path, monkeypatch, name):
    task, official = make_source(name, tmp_path / "official", monkeypatch)
    folder = write_hub(name, official, tmp_path / "hub")
    rows_of, files = HUB[name]
    rows, (column, part) = rows_of(official / files["train"]), LISTS[name]
    given = len(rows[1][column][part])
    rows[1][column][part].pop()
    put(folder, "train", rows)
    message = rf"1, field '{column}': expected lists of one length.*'{part}' has {given - 1}\)"
    with pytest.raises(DataError, match=message):
        task.open(tmp_path / "cache", folder)


def test_raw_form_of_wikitext_is_named(tmp_path, monkeypatch):
    task, _ = make_source("wikitext_2", tmp_path / "official", monkeypatch)
    for split in ("train", "validation", "test"):
        put(tmp_path / "raw", split, [{"text": " = Title = \n"}, {"text": ""}, {"text": "rare"}])
    with pytest.raises(DataError, match=r"of the raw form.*the configuration wikitext-2-v1"):
        task.open(tmp_path / "cache", tmp_path / "raw")


def test_documents_of_the_other_domain_are_refused(tmp_path, monkeypatch):
    _, official = make_source("triviaqa", tmp_path / "official", monkeypatch)
    folder = write_hub("triviaqa", official, tmp_path / "hub")
    task = build("triviaqa", {**SOURCES["triviaqa"][1], "domain": "web"})
    with pytest.raises(DataError, match=r"of the domain wikipedia; set domain=wikipedia"):
        task.open(tmp_path / "cache", folder)


def test_papers_of_the_other_set_are_not_read(tmp_path, monkeypatch):
    """Both sets have files of the same names."""
    official = tmp_path / "data" / "pubmed-dataset"
    _, official = make_source("pubmed_summarization", official, monkeypatch)
    task = build("arxiv_summarization", SOURCES["arxiv_summarization"][1])
    for given in (official, official.parent):
        with pytest.raises(MissingSourceError, match="arxiv-dataset"):
            task.open(tmp_path / "cache", given)


def test_imdb_with_an_unsupervised_split(tmp_path, monkeypatch):
    task, official = make_source("text", tmp_path / "official", monkeypatch)
    for part in ("train", "test"):
        files = sorted((official / "aclImdb" / part).glob("*/*.txt"))
        rows = [{"text": x.read_text(), "label": int(x.parent.name == "pos")} for x in files]
        put(tmp_path / "hub" / "imdb" / "plain_text", part, rows)
    put(
        tmp_path / "hub" / "imdb" / "plain_text", "unsupervised", [{"text": "any", "label": -1}] * 3
    )
    expected = checksums(task, official, tmp_path / "cache")
    assert checksums(task, tmp_path / "hub" / "imdb", tmp_path / "again") == expected
