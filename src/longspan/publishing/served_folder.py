"""Exported folders of classifiers: predictions, and what transformers' files do not say."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from longspan.arena.documents.metrics import Kind
from longspan.arena.predict import Predictions, name_predictions
from longspan.config import settings
from longspan.errors import OptionError
from longspan.files import write_json
from longspan.models import (
    LongspanConfig,
    LongspanForPairClassification,
    LongspanForSequenceClassification,
)
from longspan.models.conversion.checkpoint_files import SERVING
from longspan.models.conversion.from_source import is_own
from longspan.results import DocumentScores, load_side_record
from longspan.results.document_scores import THRESHOLD
from longspan.results.reading import read_record
from longspan.tasks.global_tokens import GlobalTokens, global_positions
from longspan.training.arguments import model_inputs

_CLASSES = {
    x.__name__: x for x in (LongspanForSequenceClassification, LongspanForPairClassification)
}
_BATCH = 16


@settings
class Serving:
    """Encoding of a classifier's texts, and threshold of its labels.

    Attributes:
        columns: columns of the training's file by role.
        threshold: probability from which one of several labels applies.
        kept: tokens of the head and of the tail that a longer text keeps, special ones included;
            None: the tokenizer keeps the head.
        global_tokens: global tokens, as the option of the task has them.
    """

    title: ClassVar[str] = "the file of an exported classifier"
    remedy: ClassVar[str] = "export the run again"
    columns: dict[str, str]
    threshold: float = THRESHOLD
    kept: list[int] | None = None
    global_tokens: GlobalTokens = "none"
    schema: int = 1

    def save(self, folder: Path) -> None:
        """Write the file of an exported folder."""
        write_json(folder / SERVING, dataclasses.asdict(self))


def load_serving(folder: Path) -> Serving:
    """Read how texts are read; the defaults, if the folder has no such file.

    Raises:
        DataError: the file is invalid.
    """
    file = folder / SERVING
    return read_record(Serving, file) if file.is_file() else Serving(columns={})


def scored_threshold(record: Path) -> float:
    """Return the threshold of the scores beside a record, else 0.5."""
    scores = record.parent / DocumentScores.subfolder / record.name
    return load_side_record(DocumentScores, scores).threshold if scores.is_file() else THRESHOLD


@torch.no_grad()
def predict_in_folder(
    folder: Path, texts: Sequence[tuple[str, ...]], device: str, threshold: float = THRESHOLD
) -> Predictions:
    """Predict the classes, labels or numbers of new texts with the model of an exported folder.

    Args:
        folder: folder that `export` has written.
        texts: texts, not empty; of pairs both.
        device: device that computes.
        threshold: probability from which one of several labels applies.

    Raises:
        OptionError: it is no classifier of such texts, or has no tokenizer.
    """
    model, tokenizer = _load(folder, len(texts[0]))
    config, serving = model.config, load_serving(folder)
    model.to(device)
    logits = torch.zeros(len(texts), config.num_labels, dtype=torch.float64)
    by_length = sorted(range(len(texts)), key=lambda row: sum(map(len, texts[row])))
    for first in range(0, len(texts), _BATCH):
        rows = by_length[first : first + _BATCH]
        inputs: dict[str, Tensor] = {}
        sides = zip(*(texts[row] for row in rows), strict=True)
        for suffix, side in zip(("", "_b"), sides, strict=False):
            encoded = _encode(tokenizer, side, serving, config.pad_token_id or 0)
            inputs |= {f"{name}{suffix}": x for name, x in encoded.items()}
        output = model(**model_inputs(model, inputs, torch.device(device)))
        logits[rows] = output.logits.double().cpu()
    kind: Kind = "class"
    if config.is_regression or config.is_multi_label:
        kind = "number" if config.is_regression else "labels"
    names = [config.id2label[label] for label in range(config.num_labels)]
    return name_predictions(logits, names, kind, threshold)


def _load(folder: Path, sides: int) -> tuple[Any, Any]:
    """Return model and tokenizer of a folder.

    Raises:
        OptionError: it is no classifier of such texts, or has no tokenizer.
    """
    architecture = ""
    if (folder / "config.json").is_file() and is_own(folder):
        architecture = (LongspanConfig.from_pretrained(folder).architectures or [""])[0]
    cls = _CLASSES.get(architecture)
    if cls is None:
        raise OptionError(
            f"{folder} has no model that classifies texts, but {architecture or 'none of longspan'}"
            "; expected the record of a run, or a folder that `longspan export` has written of one"
        )
    expected = 1 + (cls is LongspanForPairClassification)
    if sides != expected:
        raise OptionError(
            f"{folder} was trained on {'pairs of texts' if expected == 2 else 'single texts'}; "
            f"pass {expected} column{'s' if expected == 2 else ''} of texts"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise OptionError(f"{folder} has no tokenizer ({error}); export the run again") from None
    return cls.from_pretrained(folder).eval(), tokenizer


def _encode(
    tokenizer: Any, texts: Sequence[str], serving: Serving, padding: int
) -> dict[str, Tensor]:
    """Return the padded ids of texts, and their masks; a tokenizer may have no padding."""
    if serving.kept is None:
        rows = tokenizer(list(texts), truncation=True)["input_ids"]
    else:
        head, tail = serving.kept
        whole = tokenizer(list(texts))["input_ids"]
        rows = [x if len(x) <= head + tail else x[:head] + x[len(x) - tail :] for x in whole]
    parts = [torch.tensor(x, dtype=torch.long) for x in rows]
    ids = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=padding)
    mask = torch.arange(ids.shape[1]) < torch.tensor([len(x) for x in parts])[:, None]
    inputs = {"input_ids": ids, "attention_mask": mask}
    if serving.global_tokens != "none":  # else those of the model's own rule
        is_global = mask & global_positions(serving.global_tokens, mask.shape[1])
        inputs["global_attention_mask"] = is_global
    return inputs
