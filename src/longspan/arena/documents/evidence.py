"""Evidence for predicted classes: integrated gradients of the words of a text.

    a_i = sum_d (x_id - b_id) * int_0^1 df(b + t (x - b)) / dx_id dt

x: embeddings of the tokens. b: the baseline, where each token is the average word of the training
texts. f: logit of the predicted class minus the mean of the others (of several labels, the logit of
the most probable one). Complete: the a_i of all tokens sum to f(x) - f(b). The integral is a
Gauss-Legendre sum, with more points until that holds.
Sundararajan et al. 2017, Axiomatic attribution for deep networks, arXiv:1703.01365
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from longspan.arena.finished_run import load_run
from longspan.arena.paths import RunPaths
from longspan.data.tokenizers import ByteTokenizer, Tokenizer, WordTokenizer, word_spans
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import OptionError
from longspan.results import load_result
from longspan.tasks import TASKS
from longspan.tasks.documents.own_texts import OwnTexts
from longspan.tasks.encoded_text import EncodedTextTask, kept_tokens
from longspan.training.arguments import model_inputs
from longspan.words import word_pattern

MOST_EXPLAINED = 20  # documents, the first ones
POINTS = (16, 32, 64, 128)  # of the integral, until it is complete
COMPLETE = 0.02  # largest gap, as a share of f(x) - f(b)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Words of a text and what they contribute to its predicted class.

    Attributes:
        text: the text.
        label: name of the class.
        probability: probability of the class.
        spans: first character of each word, and the one after its last, (N, 2).
        values: contribution of each word, (N,); NaN where the model does not read it.
        score: f(x).
        average: f(b); the words add up to score - average.
        gap: what the contributions of all tokens miss of f(x) - f(b), as a share of it.
    """

    text: str
    label: str
    probability: float
    spans: np.ndarray
    values: np.ndarray
    score: float
    average: float
    gap: float


def check_explained(record: Path) -> None:
    """Refuse runs whose predictions have no evidence.

    Raises:
        OptionError: the task has no classes of single texts.
        DataError: the record is invalid.
    """
    result = load_result(record)
    cls = TASKS.get(result.task)
    what = f"a task with the head {cls.info.head}" if cls else f"the task {result.task}"
    if cls is not None and issubclass(cls, OwnTexts) and cls.description.is_regression:
        what = "numbers (regression)"
    elif cls is not None and cls.info.head == "pair_classification":
        what = "pairs of texts"
    elif cls and issubclass(cls, EncodedTextTask) and cls.info.head == "sequence_classification":
        return
    raise OptionError(
        f"--evidence explains the classes of single texts, and {record} was trained on {what}; "
        "omit --evidence"
    )


def explain(
    record: Path, texts: Sequence[str], by_class: Mapping[str, np.ndarray], paths: RunPaths
) -> list[Evidence]:
    """Return the evidence for the most probable class of each text.

    Args:
        record: record of a run on single texts with classes, see `check_explained`.
        texts: texts.
        by_class: predicted probability of each class by its name, (N,) each.
        paths: folders of the run's data, and the device.

    Raises:
        DataError: the record, the model or the data is absent, or the data differs.
    """
    run = load_run(record, paths)
    task, names = cast(EncodedTextTask, run.task), list(by_class)
    probabilities = np.stack([by_class[name] for name in names], axis=1)
    found = []
    with run.evaluating("test") as (model, where):
        table = run.model.get_input_embeddings()
        average = average_word(task, table)
        for text, row in zip(texts, probabilities, strict=True):
            batch = task.collate(task.encode_rows([(text,)]), np.arange(1))
            inputs = model_inputs(model, batch.inputs, where["device"])
            label = int(row.argmax())
            score = class_score(label, is_multi_label=task.is_multi_label)
            ends = path_ends(task, table, average, inputs["input_ids"])
            values, bounds, gap = attribute(model, inputs, ends, score)
            spans, sums = sum_over_words(task, text, values)
            probability = float(row[label])
            found.append(Evidence(text, names[label], probability, spans, sums, *bounds, gap))
    return found


def class_score(label: int, *, is_multi_label: bool) -> Callable[[Tensor], Tensor]:
    """Return the function of the logits that is explained: that of a class against the others."""

    def score(logits: Tensor) -> Tensor:
        others = logits.sum(-1) - logits[:, label]
        rest = 0 if is_multi_label else others / (logits.shape[-1] - 1)
        return logits[:, label] - rest

    return score


def attribute(
    model: nn.Module, inputs: dict[str, Tensor], ends: Tensor, score: Callable[[Tensor], Tensor]
) -> tuple[np.ndarray, tuple[float, float], float]:
    """Return the integrated gradients of one text's tokens, (T,), f(x) and f(b), and their gap.

    Args: see `integrate`.
    """
    with torch.no_grad():
        empty, full = score(_logits(model, inputs, ends)).double().tolist()
    for points in POINTS:
        values = integrate(model, inputs, ends, score, points)
        gap = abs(float(values.sum()) - (full - empty)) / max(abs(full - empty), 1e-9)
        if gap <= COMPLETE:
            break
    return values.cpu().numpy(), (full, empty), gap


@torch.no_grad()
def average_word(task: EncodedTextTask, table: nn.Module) -> Tensor:
    """Return the mean embedding of the training texts' tokens, special ones left out, (W,).

    Args:
        task: open task.
        table: embeddings of the model.
    """
    counts = np.bincount(task.dataset.splits["train"].tokens.values, minlength=task.vocab_size)
    counts[_special_ids(task)] = 0
    words = np.flatnonzero(counts)
    weight = next(table.parameters())
    shares = torch.from_numpy(counts[words] / counts.sum()).to(weight)
    return shares @ table(torch.from_numpy(words).to(weight.device))


@torch.no_grad()
def path_ends(task: EncodedTextTask, table: nn.Module, average: Tensor, ids: Tensor) -> Tensor:
    """Return the embeddings of the baseline and of a text, (2, T, W).

    Args:
        task: open task.
        table: embeddings of the model.
        average: average word, (W,).
        ids: tokens of the text, (1, T); special ones are those of the baseline too.
    """
    embeddings = table(ids)
    special = torch.tensor(_special_ids(task), dtype=ids.dtype, device=ids.device)
    is_special = torch.isin(ids, special)
    return torch.cat((torch.where(is_special[..., None], embeddings, average), embeddings))


def _special_ids(task: EncodedTextTask) -> list[int]:
    return sorted(getattr(task.tokenizer, "special_ids", ()))


def integrate(
    model: nn.Module,
    inputs: dict[str, Tensor],
    ends: Tensor,
    score: Callable[[Tensor], Tensor],
    points: int,
) -> Tensor:
    """Return the integrated gradients, (T,) in float64, by a Gauss-Legendre sum.

    Args:
        model: model in evaluation mode.
        inputs: arguments of the model for one text.
        ends: embeddings of the baseline and of the text, (2, T, W).
        score: function of the logits that is explained.
        points: points of the sum.
    """
    nodes, weights = np.polynomial.legendre.leggauss(points)
    start, change = ends[:1], ends[1:] - ends[:1]
    total = torch.zeros_like(change[0], dtype=torch.float64)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        with torch.enable_grad():
            point = (start + change * node).requires_grad_()
            value = score(_logits(model, inputs, point)).sum()
        (gradient,) = torch.autograd.grad(value, point)
        total += weight * gradient[0].double()
    return (total * change[0].double()).sum(-1)


def _logits(model: nn.Module, inputs: dict[str, Tensor], embeddings: Tensor) -> Tensor:
    """Return the logits of embeddings in place of the tokens of one text."""
    others = {
        name: x.expand(len(embeddings), *x.shape[1:])
        for name, x in inputs.items()
        if name != "input_ids"
    }
    return model(**others, inputs_embeds=embeddings).logits


def sum_over_words(
    task: EncodedTextTask, text: str, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the spans of the words of a text, and the sum of the values of the tokens of each.

    Args:
        task: open task that has encoded the text.
        text: text.
        values: value of each token, special tokens included, and possibly of padding.

    Returns:
        Spans, (N, 2), and sums, (N,), NaN for words that are cut off.
    """
    places = token_places(task.tokenizer, text)
    kept = kept_tokens(task.tokenizer, len(places), task.length, task.truncation)
    # Words, and every other visible character.
    units = [x.span() for x in re.finditer(rf"{word_pattern().pattern}|[^\w\s]", text)]
    spans = np.array(units, np.int64).reshape(-1, 2)
    # The word of each token: the last one that begins at its place or before.
    words = np.searchsorted(spans[:, 0], places, side="right") - 1
    inside = (words >= 0) & (places >= 0)
    inside[inside] &= places[inside] < spans[words[inside], 1]
    sums, read = np.zeros(len(spans)), np.zeros(len(spans), bool)
    known = kept[inside[kept]]
    np.add.at(sums, words[known], values[: len(kept)][inside[kept]])  # padding has no word
    read[words[known]] = True
    cut = np.zeros(len(spans), bool)
    cut[words[inside]] = True
    return spans, np.where(cut & ~read, np.nan, sums)


def token_places(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Return the place of the last character of each token of a whole text, -1 of special ones."""
    if isinstance(tokenizer, WordPieceTokenizer):
        before, after = (np.full(len(part), -1) for part in tokenizer.frame)
        return np.concatenate((before, tokenizer.encode_spans(text)[1][:, 1] - 1, after))
    if isinstance(tokenizer, WordTokenizer):
        return np.array([end - 1 for _, end in word_spans(text)] or [-1])
    sizes = [1] * len(text)
    if isinstance(tokenizer, ByteTokenizer):
        sizes = [len(x.encode()) for x in text]
    end = [-1] * int(getattr(tokenizer, "end", False))
    return np.concatenate((np.repeat(np.arange(len(text)), sizes), np.array(end, np.int64)))
