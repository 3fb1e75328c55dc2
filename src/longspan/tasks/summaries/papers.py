"""Summarization of papers: write the abstract of an article of arXiv or PubMed.

Cohan et al., "A Discourse-Aware Attention Model for Abstractive Summarization of Long Documents",
2018 (https://arxiv.org/abs/1804.05685), the data set that is also called `scientific_papers`. LED
(Beltagy et al. 2020, section 7) reports scores on it.
Official layout:

    {arxiv,pubmed}-dataset/{train,val,test}.txt

Every line is a JSON object with the lists of sentences `article_text` and `abstract_text`. Those of
the abstract are wrapped in <S> and </S>. Files may end in .txt or .jsonl, and be gzip (.gz).
The hub has parquet files whose rows have the texts `article` and `abstract`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from longspan.config import setting, settings
from longspan.data.json_files import field
from longspan.data.parquet import SUFFIX, read_records, split_files
from longspan.data.source_files import SourceFiles, format_paths, search_paths
from longspan.data.sources.text import explain_damage, open_packed
from longspan.data.summarized_document import SummarizedDocument, split_sentences
from longspan.errors import MissingSourceError
from longspan.files import unique_keys
from longspan.metrics.summaries import RougeRule
from longspan.tasks.base import SPLITS, Split
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.registry import register
from longspan.tasks.source_report import Report
from longspan.tasks.summaries.summaries import METRICS, ROUGE_TOKENS, SummaryOptions, SummaryTask

URL = "https://github.com/armancohan/long-summarization"
_FILE_NAMES = {"train": "train", "validation": "val", "test": "test"}  # name of the file by split
# Names of the folder by task. All of them have files of the same names.
FOLDERS = {
    "arxiv_summarization": ("arxiv-dataset", "arxiv_sum", "arxiv-summarization"),
    "pubmed_summarization": ("pubmed-dataset", "pubmed_sum", "pubmed-summarization"),
}
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
BROKEN = "broken_line"

_TAG = re.compile(r"</?S>")


def find_papers(data: Path | None, task: str) -> SourceFiles:
    """Find the files of the papers, by split.

    Args:
        data: the folder of the files, or one above it. None: $LONGSPAN_DATA, then
            $LONGSPAN_TEST_DATA, in which the files must be in a folder of their own.
        task: name of the task, which is that of a further folder.

    Raises:
        DataError: there is no copy; the message says how to get one.
    """
    folders = FOLDERS[task]
    other_names = {name for one in FOLDERS if one != task for name in (*FOLDERS[one], one)}
    paths = search_paths(data, "the files train.txt, val.txt and test.txt")
    for path in paths:
        # Other data sets have files of these names.
        roots = (
            (path,) if data is not None and not other_names & {*path.absolute().parts[-2:]} else ()
        )
        for folder in (*roots, *(path / name for name in (*folders, task))):
            files = {split: _find_files(folder, split) for split in _FILE_NAMES}
            if all(files.values()):
                return SourceFiles(form="papers", path=folder, files=files)
    raise MissingSourceError(
        f"train.txt, val.txt and test.txt of {folders[0]} are not here (searched "
        f"{format_paths(paths)}); download {folders[0]}.zip from {URL}, and run "
        f"`longspan data build {task} --data FILE`"
    )


def _find_files(folder: Path, split: str) -> tuple[Path, ...]:
    """Return the file of a split, or its parquet files."""
    candidates = (folder / f"{_FILE_NAMES[split]}{suffix}" for suffix in SUFFIXES)
    plain = [path for path in candidates if path.is_file()]
    return tuple(plain[:1]) or split_files(folder, split)


def read_papers(path: Path, report: Report) -> Iterator[SummarizedDocument]:
    """Yield the papers of a file; lines that are none are counted and listed.

    Args:
        path: file of a split, or the first one of its parquet files.
        report: receives the counts and the broken lines.

    Raises:
        DataError: the file cannot be read, or is truncated.
    """
    if path.suffix == SUFFIX:
        yield from _read_rows(path, report)
        return
    with open_packed(path) as file, explain_damage(path):
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            report.counts["papers"] += 1
            where = f"{path.name}: line {number}"
            try:
                yield _parse(line, where)
            except ValueError:
                report.add(BROKEN, "", where, number)


def _read_rows(path: Path, report: Report) -> Iterator[SummarizedDocument]:
    """Yield the papers of parquet files.

    Raises:
        DataError: a column is missing or no text.
    """
    for number, row in enumerate(read_records(path)):
        report.counts["papers"] += 1
        where = f"{path.name}: row {number}"
        texts = (field(row, name, str, where) for name in ("article", "abstract"))
        yield SummarizedDocument("", where, *map(split_sentences, texts))


def _parse(line: bytes, where: str) -> SummarizedDocument:
    """Return the paper of a line.

    Raises:
        ValueError: the line is no paper.
    """
    try:
        record = json.loads(line, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("no object")
    document, summary = (_sentences(record.get(x)) for x in ("article_text", "abstract_text"))
    return SummarizedDocument(str(record.get("article_id") or ""), where, document, summary)


def _sentences(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise ValueError("no list of sentences")
    # Half of a surrogate pair has no encoding.
    texts = (_TAG.sub("", x).encode(errors="replace").decode() for x in value)
    return tuple(sentence for text in texts if (sentence := " ".join(text.split())))


_NOTES = (
    "The model is selected by the perplexity of the validation abstracts. The scores are of "
    "abstracts that it generates with beams, for every paper of validation and test, against the "
    "whole reference. ROUGE is by default that of rouge-score with Porter stemming; some published "
    "scores are without it. Papers without an abstract are left out, and of training those without "
    "a text, too. The rule `lead` takes the first sentences of the paper, with as many words as "
    "the mean training abstract."
)


@settings
class PaperOptions(SummaryOptions):
    """Encoding, generation, and ROUGE as published."""

    rouge: RougeRule = setting(ROUGE_TOKENS, "rouge-score")


class PaperSummarization(SummaryTask):
    """Articles and their abstracts; the name of a task tells its files."""

    Options: ClassVar[type] = PaperOptions
    options: PaperOptions

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the files by split."""
        return find_papers(data, self.info.name)

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, SummarizedDocument]]:
        """Yield the papers of each file."""
        firsts = self.find_source(data).firsts
        for split in SPLITS:
            yield from ((split, x) for x in read_papers(firsts[split], reports[split]))


def _describe(name: str, title: str, what: str) -> TaskInfo:
    return TaskInfo(
        name=name,
        title=title,
        summary=f"Write the abstract of {what}.",
        source=f"Cohan et al. 2018, {URL}",
        license="none stated",
        metrics=METRICS["rouge-score"],
        head="seq2seq",
        published=published_scores(name),
        notes=_NOTES,
    )


@register
class ArxivSummarization(PaperSummarization):
    """Abstracts of papers of arXiv."""

    info = _describe("arxiv_summarization", "arXiv summarization", "a paper of arXiv")


@register
class PubmedSummarization(PaperSummarization):
    """Abstracts of papers of PubMed."""

    info = _describe("pubmed_summarization", "PubMed summarization", "a paper of PubMed")
