"""Arguments and logits of the model of each layout."""

from typing import Any

import torch
from torch import Tensor

from longspan.shapes import Float
from longspan.tasks.batching import Batch
from longspan.tasks.layout import (
    CandidateLayout,
    CoreferenceLayout,
    Layout,
    MultiHopLayout,
    PairLayout,
    RetrievalLayout,
    SpanLayout,
    TextToTextLayout,
)

# Arguments of an encoder of one sequence, and those of the second sequence of a batch.
_FIRST = ("input_ids", "attention_mask", "global_attention_mask")
_SECOND: dict[type[Layout], tuple[str, str]] = {
    RetrievalLayout: ("document_input_ids", "document_attention_mask"),
    TextToTextLayout: ("decoder_input_ids", "decoder_attention_mask"),
}
_FEATURES = ("sentence_ids", "word_ids", "speaker_ids", "genre_ids")
_PAIR = ("input_ids_b", "attention_mask_b")
GLOBAL_MASK = "global_attention_mask"


def model_arguments(layout: Layout, batch: Batch) -> dict[str, Tensor]:
    """Return a batch as the keyword arguments of the layout's model."""
    first = dict(zip(_FIRST, (batch.inputs, batch.key_mask, batch.global_mask), strict=True))
    if batch.inputs.is_floating_point():
        first["input_values"] = first.pop("input_ids")
    if isinstance(layout, RetrievalLayout):
        first = {f"query_{name}": x for name, x in first.items()} | _retrieval_arguments(batch)
    if isinstance(layout, PairLayout):
        first[f"{GLOBAL_MASK}_b"] = batch.global_mask_b
    names = _SECOND.get(type(layout), _PAIR)
    if isinstance(layout, CandidateLayout):
        first["candidate_positions"] = batch.candidate_positions
    if isinstance(layout, CoreferenceLayout) and batch.token_features is not None:
        first |= _document_features(batch.token_features)
    given = first | dict(zip(names, (batch.inputs_b, batch.key_mask_b), strict=True))
    return {name: x for name, x in given.items() if x is not None}


def _document_features(features: Tensor) -> dict[str, Tensor]:
    """Return the features of tokens by name; the last one is of the whole document."""
    named = dict(zip(_FEATURES, features.unbind(-1), strict=True))
    return named | {"genre_ids": named["genre_ids"].flatten(1)[:, 0]}


def _retrieval_arguments(batch: Batch) -> dict[str, Tensor | None]:
    """Return the arguments of documents and negatives, apart from those of all second sequences."""
    return {
        "document_global_attention_mask": batch.global_mask_b,
        "negative_input_ids": batch.negatives,
        "negative_attention_mask": batch.negatives_mask,
        "negative_global_attention_mask": batch.global_mask_negatives,
        "document_numbers": batch.document_numbers,
        "negative_numbers": batch.negative_numbers,
        "answer_numbers": batch.answer_numbers,
    }


def document_arguments(batch: Batch) -> dict[str, Tensor]:
    """Return a batch of documents as the keyword arguments of a dual encoder without queries."""
    given = zip(_FIRST, (batch.inputs, batch.key_mask, batch.global_mask), strict=True)
    return {f"document_{name}": x for name, x in given if x is not None}


def output_logits(layout: Layout, output: Any) -> Float[Tensor, "*B C"]:
    """Return the logits of the classes that a batch's targets number, from a model's output.

    Those of a span are (B, 2, T), of its first and its last token. Those of multi-hop questions are
    packed (`MultiHopLogits`). Those of a retrieval are the
    similarities of each query and all documents of the batch, its own one first: class 0.
    """
    if isinstance(layout, SpanLayout):
        return torch.stack((output.start_logits, output.end_logits), dim=1)
    if isinstance(layout, MultiHopLayout):
        return output.scores.pack()
    if isinstance(layout, RetrievalLayout):
        return _own_document_first(output.similarities)
    return output.logits


def _own_document_first(similarities: Tensor) -> Tensor:
    """Rotate the columns of the first B documents, so that document i is first in row i."""
    B = len(similarities)
    places = torch.arange(B, device=similarities.device)
    order = (places[:, None] + places) % B
    return torch.cat((similarities[:, :B].gather(1, order), similarities[:, B:]), dim=1)
