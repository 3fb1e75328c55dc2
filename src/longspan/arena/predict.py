"""Predictions of a run's model: for new texts, and answers to the questions of a split."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from longspan.arena.documents.metrics import Kind
from longspan.arena.finished_run import FinishedRun, check_request, load_run
from longspan.arena.paths import RunPaths
from longspan.data.imports.targets import label_separator
from longspan.errors import OptionError
from longspan.files import atomic_write
from longspan.results.document_scores import THRESHOLD
from longspan.tasks.base import Batch, Split, Task
from longspan.tasks.batching import evaluation_rows
from longspan.tasks.documents.own_texts import OwnTexts
from longspan.tasks.encoded_text import EncodedTextTask
from longspan.tasks.summaries.summaries import SummaryTask
from longspan.training.arguments import model_inputs
from longspan.training.generating import generate_tokens


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions, in the order of the texts.

    Attributes:
        values: name of the most probable class of each text, or its number; its labels, joined; or
            the text that was generated for it, such as its summary.
        probabilities: probability of that class, (N,); None for labels, numbers and texts.
        by_class: probability of each class by its name, (N,) each; none for numbers and texts.
    """

    values: list[str] | list[float]
    probabilities: np.ndarray | None
    by_class: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def predict(
    record: Path,
    texts: Sequence[tuple[str, ...]],
    paths: RunPaths,
    batch_size: int | None = None,
    threshold: float = THRESHOLD,
) -> Predictions:
    """Predict the classes, the number or the summary of new texts with the model of a run.

    Texts are generated as they were for the scores of the run, and the mechanism has the options of
    its evaluations.

    Args:
        record: record of a run on a task of texts.
        texts: texts to classify or summarize, not empty; of pairs both.
        paths: folders of the run's data, and the device.
        batch_size: texts per batch; None: that of the run's evaluations.
        threshold: probability from which a label applies, where a text may have several.

    Raises:
        OptionError: the task has no texts, or other numbers of texts.
        DataError: the record, the model or the data is absent, or the data differs.
    """
    run = load_run(record, paths)
    task = run.task
    if not isinstance(task, EncodedTextTask):
        raise OptionError(f"{record} was trained on {task.info.name}, whose inputs are no texts")
    if task.head.compares_examples:
        raise OptionError(f"{record} was trained on {task.info.name}, which ranks documents")
    expected = len(task.head.texts)
    if any(len(row) != expected for row in texts):
        raise OptionError(
            f"{record} was trained on {'pairs of texts' if expected == 2 else 'single texts'}; "
            f"pass {expected} column{'s' if expected == 2 else ''} of texts"
        )
    examples = task.encode_rows(texts)
    with run.evaluating("test", batch_size) as (model, where), torch.no_grad():
        row_batches = evaluation_rows(examples, where["batch_size"], 0)
        batches = (task.collate(examples, rows) for rows in row_batches)
        if isinstance(task, SummaryTask):
            summaries = _generate(model, task, batches, where)
            return Predictions([summaries[row] for row in range(len(texts))], None)
        logits = compute_logits(model, task, batches, len(texts), where["device"])
    kind = cast(Kind, task.description.kind) if isinstance(task, OwnTexts) else "class"
    if kind == "number":
        numbers = cast(OwnTexts, task).predicted_numbers(logits)
        return name_predictions(numbers[:, None], [], kind, threshold)
    names = [task.class_name(label) for label in range(task.num_classes)]
    return name_predictions(logits, names, kind, threshold)


def name_predictions(logits: Tensor, names: list[str], kind: Kind, threshold: float) -> Predictions:
    """Return the names of the predicted classes or labels, or the numbers, and probabilities.

    Args:
        logits: scores (N, C) in float64; of numbers (N, 1), in units of the file.
        names: names of the classes.
        kind: kind of the targets.
        threshold: probability from which one of several labels applies.
    """
    if kind == "number":
        return Predictions(logits[:, 0].tolist(), None)
    scores = (logits.sigmoid() if kind == "labels" else logits.softmax(-1)).numpy()
    by_class = dict(zip(names, scores.T, strict=True))
    if kind == "labels":
        rows = scores >= threshold
        values = [label_separator(names).join(np.array(names)[row].tolist()) for row in rows]
        return Predictions(values, None, by_class)
    classes = scores.argmax(1)
    return Predictions([names[x] for x in classes], scores.max(1), by_class)


def _generate(
    model: torch.nn.Module, task: SummaryTask, batches: Iterator[Batch], where: dict[str, Any]
) -> dict[int, str]:
    """Return the summary of each row."""
    summaries: dict[int, str] = {}
    for batch in batches:
        inputs = model_inputs(model, batch.inputs, where["device"])
        output = model(**inputs)
        generated = generate_tokens(model, inputs, output, task.generation, where["group"]).cpu()
        for row, ids in zip(batch.rows.tolist(), generated.numpy(), strict=True):
            summaries[row] = task.decode_generated(ids)
    return summaries


@torch.no_grad()
def compute_logits(
    model: torch.nn.Module, task: Task, batches: Iterator[Batch], count: int, device: torch.device
) -> Tensor:
    """Return the logits of some texts, (N, C) in float64 on the CPU."""
    logits = torch.zeros(count, task.num_classes, dtype=torch.float64)
    for batch in batches:
        output = model(**model_inputs(model, batch.inputs, device))
        logits[batch.rows] = output.logits.double().cpu()
    return logits


def write_answers(
    record: Path, split: str, paths: RunPaths, output: Path, batch_size: int | None = None
) -> tuple[int, str]:
    """Write the answers of a run's model to a file for the official evaluation of its task.

    Args:
        record: record of a run on a task of questions, or of coreference.
        split: split to answer.
        paths: folders of the run's data, and the device.
        output: file to write: JSON, or columns of CoNLL-2012.
        batch_size: examples per batch; None: that of the run's evaluations.

    Returns:
        The number of answers, and what has been answered: question or document.

    Raises:
        UnknownNameError: there is no such split.
        OptionError: the task has no answers, or the batch size is less than 1.
        DataError: the record, the model or the data is absent, or the data differs.
        RunError: the file cannot be written.
    """
    check_request(split, None, batch_size)
    run = load_run(record, paths)
    answers = answer_questions(run, cast(Split, split), batch_size)
    if run.task.head_name == "coreference":
        text, count, unit = "".join(answers.values()), len(answers), "document"
    else:
        text = json.dumps(answers, indent=1, ensure_ascii=False)
        count, unit = len(answers.get("answer", answers)), "question"
    with atomic_write(output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return count, unit


@torch.no_grad()
def answer_questions(
    run: FinishedRun, split: Split, batch_size: int | None = None
) -> dict[str, Any]:
    """Return the answers of a run's model by id; of coreference the columns of each document.

    Raises:
        OptionError: the task has no answers.
    """
    task, answers = run.task, dict[str, Any]()
    if not task.has_answers:
        raise OptionError(
            f"{run.record} was trained on {task.info.name}, which asks no questions; name a run on "
            "a task of questions, or on coreference"
        )
    rows = np.arange(task.size(split))
    with run.evaluating(split, batch_size) as (model, where):
        for batch in task.batches(split, batch_size=where["batch_size"], rows=rows):
            output = model(**model_inputs(model, batch.inputs, where["device"]))
            logits = task.head.scores(output).cpu()
            _merge(answers, task.answers(split, batch.rows, logits, batch.targets))
    return answers


def _merge(answers: dict[str, Any], more: dict[str, Any]) -> None:
    """Add answers; those of several kinds are added kind by kind."""
    for name, value in more.items():
        if isinstance(value, dict):
            answers.setdefault(name, {}).update(value)
        else:
            answers[name] = value
