"""Coreference resolution: the mentions of a document and their antecedents."""

import dataclasses
import math
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from longspan.errors import InputError
from longspan.models.base import Requests
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import HeadModel, Shapes, encode_texts
from longspan.models.heads.coreference_head import (
    NO_SPAN,
    CoreferenceHead,
    DocumentTokens,
    Scores,
    coreference_flops,
    pair_losses,
)
from longspan.models.inputs import TextInputs, to_boolean_mask
from longspan.shapes import Float, Int, Mask

WindowIds = Int[Tensor, "B *W T"]
WindowMask = Mask[Tensor, "B *W T"]


@dataclasses.dataclass
class CoreferenceOutput(ModelOutput):
    """Kept spans of each document and the scores of their antecedents.

    Tokens are counted over those of the document that have a sentence; see
    `LongspanForCoreference.forward`. Documents with fewer spans than others have rows of -1.

    Attributes:
        loss: mean over documents of the summed losses of their spans; None without labels.
        spans: first and last token, in the order of the document.
        mention_scores: score of each span of being a mention.
        antecedents: numbers of the spans that may be the antecedent of each; -1 where there are
            fewer.
        antecedent_scores: score of having no antecedent, which is 0, and of each antecedent.
        hidden_states: states of the layers, on request.
        attentions: weights of the layers, on request.
    """

    loss: Float[Tensor, ""] | None = None
    spans: Int[Tensor, "B K 2"] | None = None
    mention_scores: Float[Tensor, "B K"] | None = None
    antecedents: Int[Tensor, "B K A"] | None = None
    antecedent_scores: Float[Tensor, "B K _"] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class LongspanForCoreference(HeadModel):
    """Transformer with a coarse-to-fine head for coreference; see `CoreferenceHead`.

    Longer documents are read in several independent windows (Joshi et al. 2019,
    https://arxiv.org/abs/1908.09091, section 3); antecedents are sought in all of them.
    """

    has_one_loss = True

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.coreference = CoreferenceHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: WindowIds | None = None,
        attention_mask: WindowMask | None = None,
        global_attention_mask: WindowMask | None = None,
        sentence_ids: WindowIds | None = None,
        word_ids: WindowIds | None = None,
        speaker_ids: WindowIds | None = None,
        genre_ids: Int[Tensor, " B"] | None = None,
        labels: Int[Tensor, "B N 3"] | None = None,
        inputs_embeds: Float[Tensor, "B *W T M"] | None = None,
        **requests: Unpack[Requests],
    ) -> CoreferenceOutput | tuple:
        """Score spans and antecedents; see `LongspanModel.forward` for the other inputs.

        Inputs may have an axis W more, of the windows of each document. The tokens of a document
        are those that are real and have a sentence, counted over its windows from 0.

        Args:
            input_ids: token ids.
            attention_mask: True or 1 at real tokens.
            global_attention_mask: True or 1 at global tokens.
            sentence_ids: number of each token's sentence in its document; mentions do not cross
                sentences. Negative at special tokens, which are in no mention. None: one sentence.
            word_ids: number of each token's word in its document; mentions are whole words. None:
                each token is a word.
            speaker_ids: number of each token's speaker, for a head with that feature.
            genre_ids: genre of each document, for a head with that feature.
            labels: first token, last token and cluster of each mention; -100 in documents with
                fewer mentions than others.
            inputs_embeds: embeddings in place of `input_ids`.
            requests: see `Requests`.

        Raises:
            InputError: a document has no token, the inputs have different shapes, or the
                Transformer refuses them.
        """
        inputs = TextInputs(
            input_ids, attention_mask, global_attention_mask, inputs_embeds=inputs_embeds
        )
        windows = inputs if len(inputs.shape) == 3 else inputs.map(lambda x: x[:, None])
        texts = windows.flatten_parts("windows")
        encoded = encode_texts(self.model, self.mark_global_tokens(texts), **requests)
        features = (sentence_ids, word_ids, speaker_ids)
        documents = _documents(encoded.last_hidden_state, inputs, features, genre_ids)
        scores = [self.coreference(document) for document in documents]
        loss = None
        if labels is not None:
            pairs = zip(scores, labels, strict=True)
            loss = torch.stack([pair_losses(x, mentions).sum() for x, mentions in pairs]).mean()
        return self.finish(CoreferenceOutput, [encoded], loss, requests, **_padded(scores))

    @staticmethod
    def scores(output: Any) -> Float[Tensor, "B K _"]:
        """Return spans, antecedents and their scores as one tensor; see `unpack_scores`."""
        parts = (output.spans, output.antecedents, output.antecedent_scores)
        return torch.cat([x.float() for x in parts], dim=-1)

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of the head: each token counts as a word, all as one sentence."""
        return coreference_flops(config, math.prod(shapes["input_ids"]))

    @classmethod
    def label_shapes(cls, shapes: Shapes) -> Shapes:
        """Return the shape of the labels of one mention."""
        return {cls.label: (1, 3)}

    @classmethod
    def dummy_batch(
        cls, shapes: Shapes, rows: int, features: int | None = None, num_global: int = 0
    ) -> dict[str, Tensor]:
        """Return arguments of zeros; every token is a word, for as many spans as there can be."""
        batch = super().dummy_batch(shapes, rows, features, num_global)
        zeros, names = batch["input_ids"], ("sentence_ids", "speaker_ids")
        words = torch.arange(zeros[0].numel()).view(zeros.shape[1:]).expand_as(zeros)
        genres = torch.zeros(rows, dtype=torch.long)
        return {**batch, **dict.fromkeys(names, zeros), "word_ids": words, "genre_ids": genres}


def _documents(
    states: Tensor | None,
    inputs: TextInputs,
    features: tuple[Tensor | None, ...],
    genres: Tensor | None,
) -> list[DocumentTokens]:
    """Return the tokens of each document that may be in mentions.

    Raises:
        InputError: a document has none, or a feature has another shape than the inputs.
    """
    shape, B = inputs.shape, inputs.shape[0]
    for name, x in zip(("sentence_ids", "word_ids", "speaker_ids"), features, strict=True):
        if x is not None and x.shape != shape:
            raise InputError(
                f"{name} must have the shape of the inputs, {shape}, got {tuple(x.shape)}"
            )
    sentences, words, speakers = (None if x is None else x.reshape(B, -1) for x in features)
    assert states is not None
    flat = states.reshape(B, -1, states.shape[-1])
    mask = None if inputs.attention_mask is None else inputs.attention_mask.reshape(B, -1)
    real = to_boolean_mask("attention_mask", mask, flat)
    real = torch.ones_like(flat[..., 0], dtype=torch.bool) if real is None else real
    if sentences is not None:
        real = real & (sentences >= 0)
    if not real.any(1).all():
        raise InputError("every document must have a token with a sentence; got one without")
    documents = []
    for row, inside in enumerate(real):
        row_states = flat[row][inside]
        places = torch.arange(len(row_states), device=row_states.device)
        documents.append(
            DocumentTokens(
                states=row_states,
                sentences=torch.zeros_like(places) if sentences is None else sentences[row][inside],
                words=places if words is None else words[row][inside],
                speakers=None if speakers is None else speakers[row][inside],
                genre=None if genres is None else genres[row],
            )
        )
    return documents


def _padded(documents: list[Scores]) -> dict[str, Tensor]:
    """Return the scores of all documents in the fields of the output."""
    lowest = torch.finfo(documents[0].scores.dtype).min
    values = {"spans": NO_SPAN, "mention_scores": 0, "antecedents": NO_SPAN, "scores": lowest}
    stacked = {}
    for name, value in values.items():
        parts = [getattr(scores, name) for scores in documents]
        sizes = [max(sizes) for sizes in zip(*(x.shape for x in parts), strict=True)]
        stacked[name] = torch.stack([_pad(x, sizes, value) for x in parts])
    stacked["antecedent_scores"] = stacked.pop("scores")
    return stacked


def _pad(x: Tensor, sizes: list[int], value: float | int) -> Tensor:
    """Return a tensor of larger sizes, filled with a value behind the given one."""
    missing = [(0, size - length) for size, length in zip(sizes, x.shape, strict=True)]
    return F.pad(x, [y for pair in reversed(missing) for y in pair], value=value)


HEAD = LongspanForCoreference
