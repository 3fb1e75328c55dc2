"""Choice of an answer among candidates that stand in the text, after all of it has been read."""

import math
from typing import Unpack, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MultipleChoiceModelOutput

from longspan.errors import InputError
from longspan.models.base import Requests
from longspan.models.config import LongspanConfig
from longspan.models.flops import linear_flops
from longspan.models.heads.base import HeadModel, Shapes, encode_texts, exclude
from longspan.models.heads.losses import Items, label_loss
from longspan.models.inputs import TextInputs
from longspan.models.packing import refuse_documents
from longspan.shapes import Float, Int, Mask

WindowIds = Int[Tensor, "B *W T"]
WindowMask = Mask[Tensor, "B *W T"]


class LongspanForCandidates(HeadModel):
    """Transformer with a score for the first token of each candidate answer in a text.

    This is Longformer's model for WikiHop (Beltagy et al. 2020,
    https://arxiv.org/abs/2004.05150, appendix D). A text that exceeds the model's length is read in
    several windows, each with the question and all candidates at its beginning; the scores of a
    candidate are averaged over the windows. The paper averages, too; its published code sums.
    """

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        # A bias would add the same number to all scores.
        self.candidate_outputs = nn.Linear(config.output_size, 1, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: WindowIds | None = None,
        attention_mask: WindowMask | None = None,
        global_attention_mask: WindowMask | None = None,
        candidate_positions: Int[Tensor, "B C"] | None = None,
        labels: Int[Tensor, " B"] | None = None,
        input_values: Float[Tensor, "B *W T F"] | None = None,
        token_type_ids: WindowIds | None = None,
        position_ids: WindowIds | None = None,
        inputs_embeds: Float[Tensor, "B *W T M"] | None = None,
        num_items_in_batch: Items | None = None,
        **requests: Unpack[Requests],
    ) -> MultipleChoiceModelOutput | tuple:
        """Score candidates; see `LongspanModel.forward` for the inputs.

        Inputs may have an axis W more, of the windows of each row. Windows without real tokens fill
        rows with fewer windows than others; they are not read and have no effect.

        Args:
            input_ids: token ids.
            attention_mask: True or 1 at real tokens.
            global_attention_mask: True or 1 at global tokens, such as question and candidates.
            candidate_positions: index of each candidate's first token, the same in every window;
                negative in rows with fewer candidates than others. Required.
            labels: indices of the right candidates, or -100 for a row without a loss.
            input_values: continuous inputs.
            token_type_ids: types of the tokens.
            position_ids: positions of the tokens.
            inputs_embeds: embeddings in place of `input_ids`.
            num_items_in_batch: labels of all parts of a batch; see `Head.finish`.
            requests: see `Requests`.

        Returns:
            `logits` (B, C), the lowest number of their type for absent candidates; if labels are
            given, `loss`: the mean cross entropy, useless if a label names an absent candidate,
            plus the mechanisms' auxiliary loss in training; and on request `hidden_states` and
            `attentions` of all windows that are read, one after the other.

        Raises:
            InputError: positions are missing or outside the text, the inputs have different
                shapes, the Transformer refuses them, or the labels do not fit the logits.
        """
        masks, values = (attention_mask, global_attention_mask), (inputs_embeds, input_values)
        inputs = TextInputs(input_ids, *masks, token_type_ids, position_ids, *values)
        windows = inputs if len(inputs.shape) == 3 else inputs.map(lambda x: x[:, None])
        texts, read = _windows_to_read(windows)
        refuse_documents(texts, "the candidates of one")
        encoded = encode_texts(self.model, self.mark_global_tokens(texts), **requests)
        positions = _check_positions(candidate_positions, windows.shape)
        states = cast(Tensor, encoded.last_hidden_state)
        scores = self._score(states, positions, windows.shape[:2], read)
        logits = exclude(_average(scores, windows.real_parts), positions >= 0)
        loss = None if labels is None else label_loss(logits, labels)
        weight, kind = (labels, num_items_in_batch), MultipleChoiceModelOutput
        return self.finish(kind, [encoded], loss, requests, *weight, logits=logits)

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of the head on the candidates of each window."""
        windows, (count,) = shapes["input_ids"][0], shapes["candidate_positions"]
        return linear_flops(windows * count, config.output_size, 1)

    def _score(
        self, states: Tensor, positions: Tensor, shape: tuple[int, ...], read: Tensor | None
    ) -> Tensor:
        """Return the score of each candidate in each window (B, W, C), zero where not read."""
        places = positions.clamp(min=0)[:, None].expand(*shape, -1).flatten(0, 1)
        if read is not None:
            places = places[read]
        rows = torch.arange(len(states), device=states.device)[:, None]
        scores = self.candidate_outputs(states[rows, places])[..., 0]
        if read is not None:
            scores = scores.new_zeros(math.prod(shape), scores.shape[1]).index_copy(0, read, scores)
        return scores.unflatten(0, shape)


def _check_positions(positions: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Return the positions of the candidates.

    Raises:
        InputError: they are missing, of another batch, or behind the text.
    """
    if positions is None:
        raise InputError("candidate_positions are missing; pass the first token of each candidate")
    B, _, T = shape
    if positions.ndim != 2 or len(positions) != B:
        raise InputError(
            f"candidate_positions must have shape (B, C), of C candidates in each of {B} rows, "
            f"got {tuple(positions.shape)}"
        )
    # Elsewhere, reading them would wait for the device.
    if positions.device.type == "cpu" and positions.numel() and (last := positions.max()) >= T:
        raise InputError(f"candidate_positions must be below the {T} tokens of a text, got {last}")
    return positions


def _windows_to_read(windows: TextInputs) -> tuple[TextInputs, Tensor | None]:
    """Return the windows with real tokens, and their indices among all; None: all are read.

    Traced calls read all, as the number of the others would be unknown.
    """
    texts, real = windows.flatten_parts("windows"), windows.real_parts
    if real is None or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return texts, None
    if real.all() or not real.any():
        return texts, None
    read = real.flatten().nonzero()[:, 0]
    return texts.map(lambda x: x[read]), read


def _average(scores: Float[Tensor, "B W C"], real: Tensor | None) -> Float[Tensor, "B C"]:
    """Return the mean scores over the real windows of each row."""
    if real is None:
        return scores.mean(1)
    weights = real / real.sum(1, keepdim=True).clamp(min=1)
    return (scores * weights[..., None].to(scores.dtype)).sum(1)


HEAD = LongspanForCandidates
