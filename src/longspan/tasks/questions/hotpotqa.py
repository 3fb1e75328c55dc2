"""HotpotQA: "Are Ada and Charles from one city?"; answer, and name the sentences that support it.

Yang et al., "HotpotQA: A Dataset for Diverse, Explainable Multi-hop Question Answering", 2018
(https://arxiv.org/abs/1809.09600), distractor setting: two of about ten paragraphs are relevant.
They are one text, as in Beltagy et al., "Longformer", 2020 (https://arxiv.org/abs/2004.05150),
section 6, where the question and the first tokens of paragraphs and sentences are global.

One model answers and selects the support jointly. In two stages, a first model ranks the
paragraphs (`longspan answers`, for each split), and a second one reads the best of them
(`selection`).

Targets are the classes of `longspan.tasks.questions.encoding`. That of the first token of an
example is `ELSEWHERE` plus the type of the answer: span, yes or no.

Official layout:

    [{"_id": ..., "question": ..., "answer": ..., "supporting_facts": [[title, number], ...],
      "context": [[title, [sentence, ...]], ...]}]

in `hotpot_train_v1.1.json` and `hotpot_dev_distractor_v1.json`, or as rows of the hub. The
paragraphs of a question are joined, each one behind its title:

    title
    sentence sentence ...

Files give the text of an answer, not its place. Its mentions in the supporting sentences are right,
or else those in the other sentences of their paragraphs.
"""

import dataclasses
import hashlib
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.json_files import (
    field,
    find_json_files,
    load_json,
    load_list,
    zip_columns,
)
from longspan.data.own_splits import VALIDATION
from longspan.data.parquet import SUFFIX
from longspan.data.source_files import SourceFiles
from longspan.errors import DataError
from longspan.files import file_sha256
from longspan.metrics import Metric
from longspan.metrics.multi_hop import answer_agreement, support_agreement
from longspan.shapes import Float, Int
from longspan.tasks.base import Split
from longspan.tasks.info import TaskInfo
from longspan.tasks.questions.encoding import (
    ANSWER_TYPES,
    ELSEWHERE,
    ENDS,
    PASSAGE,
    RELEVANT,
    SENTENCE,
    STARTS,
    SUPPORTS,
    EncodedQuestion,
    Question,
    QuestionEncoder,
    Span,
    Targets,
    bit_labels,
    first_tokens,
    has_bit,
    in_document,
    join_passages,
)
from longspan.tasks.questions.question_data import (
    GlobalTokens,
    QuestionData,
    QuestionOptions,
    Share,
    assign_questions,
)
from longspan.tasks.registry import register
from longspan.tasks.scoring import IGNORE, statistics_of_mean
from longspan.tasks.source_report import Report

URL = "http://curtis.ml.cmu.edu/datasets/hotpot"
FILES = ("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json")

Fact = tuple[str, int]  # title of a paragraph, number of a sentence in it

_ANSWERS = ("yes", "no")  # that are no text of a paragraph
_SEPARATOR = "\n\n"  # of joined paragraphs


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """Paragraph with a title, in sentences."""

    title: str
    sentences: tuple[str, ...]

    def join(self) -> tuple[str, tuple[int, ...]]:
        """Return the title and the sentences as one text, and the first character of each."""
        return join_passages([f"{self.title}\n", *self.sentences], "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHopQuestion(Question):
    """Question with its paragraphs, the sentences of these, and the supporting ones.

    Attributes:
        paragraphs: paragraphs that the context joins.
        sentences: characters of each of their sentences, in order.
        facts: supporting sentences; those that no paragraph has included.
    """

    paragraphs: tuple[Paragraph, ...]
    sentences: Mapping[Fact, Span]
    facts: tuple[Fact, ...]

    @property
    def answer_type(self) -> str:
        """Type of the answer: yes, no or span."""
        (answer,) = self.references
        return answer.lower() if answer.lower() in _ANSWERS else "span"


def load_records(path: Path) -> dict[str, Any]:
    """Return the questions of a file as published, by their id.

    Raises:
        DataError: the file is missing or malformed, or ids repeat; the message says where.
    """
    by_id: dict[str, Any] = {}
    for number, record in enumerate(load_list(path)):
        where = f"{path}: question {number}"
        if path.suffix == SUFFIX:
            record = _convert_row(record, where)
        name = field(record, "_id", str, where)
        if name in by_id:
            raise DataError(f"{where} has the id of an earlier one, {name!r}")
        by_id[name] = record
    return by_id


def _convert_row(row: Any, where: str) -> dict[str, Any]:
    """Return a row of the hub as a published record: its lists of parts become lists of pairs."""
    pairs = {}
    for name, part in (("context", "sentences"), ("supporting_facts", "sent_id")):
        lists = field(row, name, dict, where)
        rows = zip_columns(lists, ("title", part), f"{where}, field {name!r}")
        pairs[name] = [list(pair) for pair in rows]
    return {**row, "_id": field(row, "id", str, where), **pairs}


def read_question(record: Any, where: str, report: Report) -> MultiHopQuestion | None:
    """Return a question, or None if it has no answer or no paragraph.

    Args:
        record: one of `load_records`.
        where: its place, for messages.
        report: receives `without_answer` and `without_paragraph` (questions left out),
            `facts_missing` (supporting sentences that no paragraph has), and `titles_repeated`
            (paragraphs left out, as an earlier one has the title).

    Raises:
        DataError: a field is malformed; the message says where.
    """
    name, answer = field(record, "_id", str, where), record.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        report.add("without_answer", name, where)
        return None
    paragraphs = _read_paragraphs(record, name, where, report)
    if not paragraphs:
        report.add("without_paragraph", name, where)
        return None
    facts = tuple(_read_facts(record, where))
    joined = _join(paragraphs, facts, answer.strip())
    for fact in facts:
        if fact not in joined["sentences"]:
            report.add("facts_missing", name, f"{where}, {fact[0]!r} {fact[1]}")
    return MultiHopQuestion(
        id=name,
        text=field(record, "question", str, where).strip(),
        references=(answer.strip(),),
        document=name,
        where=where,
        facts=facts,
        has_span=answer.strip().lower() not in _ANSWERS,
        **joined,
    )


def select_paragraphs(question: MultiHopQuestion, titles: Collection[str]) -> MultiHopQuestion:
    """Return a question with some of its paragraphs alone, in the order of the file.

    Args:
        question: question.
        titles: titles of the paragraphs to keep; others are ignored.
    """
    paragraphs = [one for one in question.paragraphs if one.title in titles]
    return dataclasses.replace(
        question, **_join(paragraphs, question.facts, question.references[0])
    )


def read_selection(path: Path) -> dict[str, list[str]]:
    """Read paragraphs that a first stage has ranked: {"paragraphs": {id: [title, ...]}}.

    Args:
        path: JSON file, or a folder of such files, of different questions.

    Raises:
        DataError: a file is missing or malformed.
    """
    selection: dict[str, list[str]] = {}
    for file in _selection_files(path):
        ranked = field(load_json(file), "paragraphs", dict, str(file))
        for name in ranked:
            titles = field(ranked, name, list, str(file))
            if not all(isinstance(title, str) for title in titles):
                raise DataError(f"{file}: {name!r} must have a list of titles")
            selection[name] = titles
    return selection


def _selection_files(path: Path) -> list[Path]:
    """Return the files of a selection."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise DataError(
            f"there is no selection {path}; write it with `longspan answers`, for each split"
        )
    return files


def _read_paragraphs(record: Any, name: str, where: str, report: Report) -> list[Paragraph]:
    """Return the paragraphs of a question that have a sentence; the first one of each title."""
    paragraphs: dict[str, Paragraph] = {}
    for number, pair in enumerate(field(record, "context", list, where)):
        place = f"{where}, paragraph {number}"
        title, sentences = _read_pair(pair, place, list)
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise DataError(f"{place}: sentences must be texts")
        if title in paragraphs:
            report.add("titles_repeated", name, place)
        elif any(sentence.strip() for sentence in sentences):
            paragraphs[title] = Paragraph(title, tuple(sentences))
    return list(paragraphs.values())


def _read_facts(record: Any, where: str) -> Iterator[Fact]:
    """Yield the supporting facts of a question, each one once."""
    pairs = field(record, "supporting_facts", list, where)
    facts = (_read_pair(x, f"{where}, fact {number}", int) for number, x in enumerate(pairs))
    yield from dict.fromkeys(facts)


def _read_pair(pair: Any, where: str, kind: type) -> tuple[str, Any]:
    """Return a title and what belongs to it."""
    match pair:
        case [str() as title, value] if isinstance(value, kind):
            return title, value
    raise DataError(f"{where}: expected a title and a {kind.__name__}, got {pair!r}")


def _join(paragraphs: Sequence[Paragraph], facts: Sequence[Fact], answer: str) -> dict[str, Any]:
    """Return the fields of a question that its paragraphs decide."""
    texts = [one.join() for one in paragraphs]
    context, passages = join_passages([text for text, _ in texts], _SEPARATOR)
    places: dict[Fact, Span] = {}
    for paragraph, first, (_, (_, *starts)) in zip(paragraphs, passages, texts, strict=True):
        for number, sentence in enumerate(paragraph.sentences):
            start = first + starts[number]
            places[paragraph.title, number] = (start, start + len(sentence))
    return {
        "context": context,
        "passages": passages,
        "paragraphs": tuple(paragraphs),
        "sentences": places,
        "spans": tuple(_find_answer(context, answer, places, facts)),
    }


def _find_answer(
    context: str, answer: str, places: Mapping[Fact, Span], facts: Sequence[Fact]
) -> list[Span]:
    """Return the mentions of an answer in the supporting sentences, or else near them."""
    if answer.lower() in _ANSWERS:
        return []
    titles = {title for title, _ in facts}
    near = [fact for fact in places if fact[0] in titles]
    pattern = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)", re.IGNORECASE)
    for sentences in ([fact for fact in facts if fact in places], near):
        spans = {
            match.span() for fact in sentences for match in pattern.finditer(context, *places[fact])
        }
        if spans:
            return sorted(spans)
    return []


K = TypeVar("K", bound=Hashable)

_NUM_CLASSES = ELSEWHERE + len(ANSWER_TYPES)


def _mark_support(
    question: MultiHopQuestion, encoded: EncodedQuestion
) -> tuple[EncodedQuestion, dict[str, Any]]:
    """Return a question with the targets of its type and support.

    Returns:
        The encoded question, and its details: title and number of each sentence and title of each
        paragraph that has a token, in their order, and the supporting facts.
    """
    inside = np.flatnonzero(encoded.targets)
    classes = encoded.targets[inside] - np.uint8(1)
    relevant = {title for title, _ in question.facts}
    ends = (*question.passages[1:], len(question.context))
    parts = zip(question.paragraphs, question.passages, ends, strict=True)
    places = {one.title: (first, last) for one, first, last in parts}
    titles = _mark(classes, places, encoded, (PASSAGE, RELEVANT), relevant)
    sentences = _mark(classes, question.sentences, encoded, (SENTENCE, SUPPORTS), question.facts)
    targets = encoded.targets.copy()
    targets[inside] = classes + 1
    targets[0] = 1 + ELSEWHERE + ANSWER_TYPES.index(question.answer_type)
    details = {"facts": question.facts, "sentences": sentences, "titles": titles}
    return dataclasses.replace(encoded, targets=targets), details


def labels_of(targets: Targets) -> dict[str, Int[torch.Tensor, "B ..."]]:
    """Return the labels of a batch; see `MultiHopLabels`."""
    first = targets[:, 0]
    return {
        "start_labels": bit_labels(targets, STARTS),
        "end_labels": bit_labels(targets, ENDS),
        "sentence_labels": bit_labels(targets, SUPPORTS, has_bit(targets, SENTENCE)),
        "paragraph_labels": bit_labels(targets, RELEVANT, has_bit(targets, PASSAGE)),
        "type_labels": (first - ELSEWHERE).masked_fill(first < ELSEWHERE, IGNORE),
    }


def _mark(
    classes: np.ndarray,
    places: Mapping[K, Span],
    encoded: EncodedQuestion,
    bits: tuple[int, int],
    right: Collection[K],
) -> list[K]:
    """Mark the first tokens of parts of a document; return the marked parts in order.

    Args:
        classes: classes of the document's tokens, which are changed.
        places: characters of the parts.
        encoded: the document.
        bits: mark of all parts, and that of the right ones among them.
        right: right parts.
    """
    parts: dict[int, K] = {}
    tokens = first_tokens(places.values(), encoded.context, encoded.offsets).tolist()
    for part, token in zip(places, tokens, strict=True):
        # Of two parts within one token the first one counts.
        if token >= 0 and token not in parts:
            parts[token] = part
            classes[token] |= bits[0] | (bits[1] if part in right else 0)
    return [parts[token] for token in sorted(parts)]


def _select(classes: np.ndarray, scores: np.ndarray, paragraphs: list[int] | None) -> list[int]:
    """Return the numbers of the sentences that are predicted to support the answer.

    Args:
        classes: classes of the tokens of an example.
        scores: scores of the sentences that begin at its tokens.
        paragraphs: numbers of the paragraphs that have supporting sentences: the best one of each,
            and all whose probability is above one half. None: the latter alone, of all paragraphs.
    """
    begins = classes & SENTENCE > 0
    sentence_scores, paragraph_of = scores[begins], (np.cumsum(classes & PASSAGE > 0) - 1)[begins]
    if paragraphs is None:
        return np.flatnonzero(sentence_scores > 0).tolist()
    is_selected = (sentence_scores > 0) & np.isin(paragraph_of, paragraphs)
    for paragraph in paragraphs:
        if len(inside := np.flatnonzero(paragraph_of == paragraph)):
            is_selected[inside[sentence_scores[inside].argmax()]] = True
    return np.flatnonzero(is_selected).tolist()


Weight = Annotated[float, Field(ge=0, le=1_000)]


@settings
class HotpotQAOptions(QuestionOptions):
    """Encoding, global tokens, support, and the paragraphs that a first stage has ranked."""

    length: Length = setting("tokens of a question and its paragraphs that are kept", 4096)
    global_tokens: GlobalTokens = setting(
        "global tokens, for mechanisms that have such: question: all before the paragraphs; first: "
        "the first one; boundaries: those of the question, and the first one of each paragraph and "
        "sentence; none",
        "boundaries",
        in_data=False,
    )
    boundaries: Length = setting(
        "maximum number of paragraphs and sentences whose first token is global "
        "(global_tokens=boundaries)",
        128,
        in_data=False,
    )
    support_weight: Weight = setting("factor of the loss of the support", 1.0, in_data=False)
    support_paragraphs: Length | None = setting(
        "paragraphs that hold the predicted supporting facts, those with the largest scores; none: "
        "any number",
        2,
        in_data=False,
    )
    selection: str | None = setting(
        "two stages: paragraphs that a first model has ranked, a file of longspan answers, or a "
        "folder of those of all splits; none: one stage, all paragraphs",
        None,
    )
    paragraphs: Length = setting("ranked paragraphs of a question that are read (selection)", 4)
    validation: Share = setting("share of the training questions that validation holds out", 0.1)


@register
class HotpotQA(QuestionData[MultiHopQuestion]):
    """Multi-hop questions: answer, its type, supporting sentences and relevant paragraphs.

    Classes are those of the tokens: starts and ends of the answer, first tokens of paragraphs and
    sentences, relevant and supporting ones, and the type of the answer at the first token.
    """

    Options = HotpotQAOptions
    options: HotpotQAOptions
    id_field = "_id"
    outcomes = ("marked", "no_span", "behind_cut", "not_in_context")
    bits = ("starts", "ends", "first of a paragraph", "first of a sentence", "supports", "relevant")
    # A question without its answer still teaches the support.
    unlearnable = ()
    info = TaskInfo(
        name="hotpotqa",
        title="HotpotQA (distractor)",
        summary="Answer a question from two of ten paragraphs, and name the supporting sentences.",
        source=f"HotpotQA 1.1, Yang et al. 2018, {URL}",
        license="CC BY-SA 4.0",
        num_classes=_NUM_CLASSES,
        metrics=(
            *("joint_f1", "joint_exact_match", "token_f1", "exact_match"),
            *("support_f1", "support_exact_match"),
        ),
        head="multi_hop",
        notes=(
            "Validation is held out of the training questions; test is the published development "
            "set of the distractor setting, since the test set is not public. Scores are those of "
            "the official evaluation, over all questions, also those whose answer or support is "
            "behind the cut, or in a paragraph that a first stage has not selected. In training, "
            "the second stage reads all relevant paragraphs and the best others."
        ),
    )

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the files of training and development."""
        splits = ("train", "validation")
        return find_json_files(data, FILES, self.info.name, "hotpotqa", splits)

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data; a selection is known by its sha256.

        The names of its files do not count.

        Raises:
            DataError: a file of the selection is missing.
        """
        options = super().data_options()
        path = self.options.selection
        if path is None:
            return options | {"paragraphs": None}
        digests = sorted(file_sha256(file) for file in _selection_files(Path(path)))
        digest = hashlib.sha256("".join(digests).encode()).hexdigest()
        return options | {"selection": f"sha256:{digest}"}

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, MultiHopQuestion]]:
        """Yield the questions, with the selected paragraphs in the second of two stages."""
        selection_path = self.options.selection
        selection = None if selection_path is None else read_selection(Path(selection_path))
        train, test = self.find_source(data).firsts.values()
        held_out: dict[Path, dict[int, float]]
        held_out = {train: {VALIDATION: self.options.validation}, test: {}}
        for path, shares in held_out.items():
            records = load_records(path)
            splits = assign_questions(list(records), shares)
            for number, (record, split) in enumerate(zip(records.values(), splits, strict=True)):
                where = f"{path}: question {number}"
                question = read_question(record, where, reports[split])
                if question is not None:
                    yield split, self._select(question, split, selection)

    def encode(
        self, encoder: QuestionEncoder, question: MultiHopQuestion, report: Report
    ) -> tuple[EncodedQuestion, dict[str, Any]] | None:
        """Return a question as tokens with its support, and its details; None without tokens."""
        example = super().encode(encoder, question, report)
        if example is None:
            return None
        encoded, details = example
        encoded, support = _mark_support(question, encoded)
        return encoded, details | support

    def label_arguments(self, targets: Int[Tensor, "B T"]) -> dict[str, Any]:
        """Return the labels of the joint loss, and the weight of support in it."""
        return {**labels_of(targets), "support_weight": self.options.support_weight}

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B N"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, Tensor]:
        """Return the score of each prediction, and 1 for the question."""
        scores = [
            _scores(answer, facts, details)
            for details, answer, facts, _ in self._predictions(split, rows, logits, targets)
        ]
        return {x.name: statistics_of_mean([one[x.name] for one in scores]) for x in metrics}

    def answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B N"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, dict[str, Any]]:
        """Return the answers and supporting facts by id, as in a file for the official evaluation.

        The titles of the paragraphs of each question, the most relevant first, are added: the
        content of a file for `selection`.
        """
        parts: dict[str, dict[str, Any]] = {"answer": {}, "sp": {}, "paragraphs": {}}
        for details, *prediction in self._predictions(split, rows, logits, targets):
            for part, value in zip(parts.values(), prediction, strict=True):
                part[details["id"]] = value
        return parts

    def class_name(self, label: int) -> str:
        """Return the name of a class of tokens."""
        if label >= ELSEWHERE:
            return f"answer: {ANSWER_TYPES[label - ELSEWHERE]}"
        return super().class_name(label)

    def _select(
        self, question: MultiHopQuestion, split: Split, selection: Mapping[str, list[str]] | None
    ) -> MultiHopQuestion:
        """Return a question with its best paragraphs; in training the relevant ones are the best.

        Raises:
            DataError: the selection has no paragraph of a held-out question.
        """
        if selection is None:
            return question
        ranked = selection.get(question.id, [])
        if split == "train":
            everything = [one.title for one in question.paragraphs]
            ranked = [*(title for title, _ in question.facts), *ranked, *everything]
        question_titles = {one.title for one in question.paragraphs}
        titles = list(dict.fromkeys(title for title in ranked if title in question_titles))
        if not titles:
            raise DataError(
                f"{self.options.selection} has no paragraph of the question {question.id!r} of "
                f"{split}; rank the paragraphs of all questions"
            )
        return select_paragraphs(question, titles[: self.options.paragraphs])

    def _predictions(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B N"],
        targets: Int[Tensor, "B T"],
    ) -> Iterator[tuple[dict[str, Any], str, list[list[Any]], list[str]]]:
        """Yield the details of each question, and what is predicted.

        That is its answer, the supporting sentences in order (title and number), and the titles of
        all paragraphs, the most relevant first.
        """
        # The models import transformers, which lists of tasks do not need.
        from longspan.models.heads.multi_hop import MultiHopLogits

        scores = MultiHopLogits.unpack(logits.float())
        spans = torch.stack((scores.starts, scores.ends), dim=1)
        answers = self._best_answers(split, rows, spans, targets)
        types = scores.types.argmax(1).tolist()
        document_classes = targets.masked_fill(~in_document(targets), 0).cpu().numpy()
        for place, (details, text) in enumerate(answers):
            kind, classes = ANSWER_TYPES[types[place]], document_classes[place]
            relevance = scores.paragraphs[place].cpu().numpy()[classes & PASSAGE > 0]
            ranking = np.argsort(-relevance, kind="stable").tolist()
            count = self.options.support_paragraphs
            best = None if count is None else ranking[:count]
            numbers = _select(classes, scores.sentences[place].cpu().numpy(), best)
            facts = [details["sentences"][number] for number in numbers]
            titles = [details["titles"][number] for number in ranking]
            yield details, text if kind == "span" else kind, facts, titles


def _scores(text: str, facts: Sequence[Any], details: Mapping[str, Any]) -> dict[str, float]:
    """Return the score of an answer and its supporting sentences under each metric."""
    answer = answer_agreement(text, details["references"][0])
    right = [tuple(fact) for fact in details["facts"]]
    support = support_agreement([tuple(fact) for fact in facts], right)
    joint = answer.join(support)
    return {
        "joint_f1": joint.f1,
        "joint_exact_match": joint.exact_match,
        "token_f1": answer.f1,
        "exact_match": answer.exact_match,
        "support_f1": support.f1,
        "support_exact_match": support.exact_match,
    }
