"""Causal language model: a decoder that predicts the next token."""

import copy
import dataclasses
from typing import Any, Unpack

import torch.nn.functional as F
from torch import Tensor

from longspan.models.adaptive import AdaptiveSoftmax
from longspan.models.base import Requests
from longspan.models.cache import LongspanCache, OutputWithCache, takes_past_key_values
from longspan.models.config import LongspanConfig
from longspan.models.heads.language import LanguageModel, LongspanGenerationMixin, make_narrow
from longspan.models.heads.losses import IGNORED, Items, label_loss, mean_loss
from longspan.models.inputs import TokenIds, TokenMask
from longspan.models.packing import document_starts
from longspan.shapes import Float, Int


@dataclasses.dataclass
class CausalOutput(OutputWithCache):
    """Output of a causal language model.

    Attributes:
        loss: mean cross entropy of the next tokens, plus `auxiliary_loss` in training.
        logits: scores of the next token (B, T, V). Those of an adaptive softmax are
            log-probabilities, and None with labels.
        cache: state for the next tokens.
        hidden_states: see `LongspanOutput`.
        attentions: see `LongspanOutput`.
        auxiliary_loss: see `LongspanOutput`.
        token_losses: with labels, the cross entropy of each of them (B, T) under an adaptive
            softmax, 0 where it is -100; else None. They are the predictions that transformers'
            Trainer passes to metrics where there are no logits.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "B T V"] | None = None
    cache: LongspanCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    auxiliary_loss: Float[Tensor, ""] | None = None
    token_losses: Float[Tensor, "B T"] | None = None


class NextTokens(Requests, total=False):
    """Further arguments of a causal language model.

    They are not in the signature: tools of transformers take every argument there whose name has
    "label" for one that a batch must have.

    Attributes:
        shift_labels: the token after each position, and -100 where nothing is predicted, as in
            segments of a stream, whose last token is followed by the next segment.
        return_logits: whether an adaptive softmax computes the logits of all words even if there
            are labels, of which it needs none.
    """

    shift_labels: TokenIds | None
    return_logits: bool


class LongspanForCausalLM(LanguageModel, LongspanGenerationMixin):
    """Decoder that predicts the next token, with a state that each mechanism bounds.

    In training on streams of documents, one in each row, pass the state of one segment to the next,
    and clear it where a document has ended:

        output = model(segment, shift_labels=next_tokens, cache=state, use_cache=True)
        state = model.model.clear_rows(output.cache.detach(), document_ended)
    """

    label = "shift_labels"

    def __init__(self, config: LongspanConfig):
        if not config.is_decoder:
            config = copy.deepcopy(config)
            config.is_decoder = True
        super().__init__(config)
        self.narrow = make_narrow(config)
        self.post_init()

    @takes_past_key_values
    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        labels: TokenIds | None = None,
        cache: LongspanCache | None = None,
        use_cache: bool | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Items | None = None,
        **requests: Unpack[NextTokens],
    ) -> CausalOutput | tuple:
        """Predict the token after each position; see `LongspanModel.forward` for the inputs.

        `labels` are the input ids, and -100 where nothing is predicted; they are shifted here, so
        that the last token has no loss. `shift_labels` are the tokens after each position instead;
        see `NextTokens`. Padding and other documents of a row predict nothing, so that the first
        token behind them has no loss. `logits_to_keep` is the number of last positions with logits;
        0: all. With labels an adaptive softmax computes their losses, and no logits without
        `return_logits`. `num_items_in_batch` is the number of predicted tokens of all parts of a
        batch; see `Head.finish`.

        Returns:
            See `CausalOutput`.

        Raises:
            TypeError: there is no such argument.
        """
        shift_labels = requests.pop("shift_labels", None)
        return_logits = requests.pop("return_logits", False)
        decoded = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            **{**requests, "return_dict": True},
        )
        states = self.narrow(decoded.last_hidden_state[:, -logits_to_keep:])
        if labels is not None and shift_labels is None:
            if attention_mask is None and position_ids is not None:
                labels = labels.masked_fill(document_starts(position_ids), IGNORED)
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        if shift_labels is not None and attention_mask is not None:
            real = attention_mask[:, -shift_labels.shape[1] :].bool()
            shift_labels = shift_labels.masked_fill(~real, IGNORED)
        logits, loss, token_losses = self._score(states, shift_labels, return_logits)
        weight, scores = (shift_labels, num_items_in_batch), {"token_losses": token_losses}
        return self.finish(
            CausalOutput, [decoded], loss, requests, *weight, logits=logits, **scores
        )

    @staticmethod
    def scores(output: Any) -> Float[Tensor, "B T V"] | Float[Tensor, "B T"]:
        """Return the logits, or the losses of the labels where a call has computed no logits."""
        return output.token_losses if output.logits is None else output.logits

    def _score(
        self, states: Tensor, labels: Tensor | None, return_logits: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the logits, the loss, and the losses of an adaptive softmax, each or None."""
        if labels is None:
            return self.lm_head(states), None, None
        if isinstance(self.lm_head, AdaptiveSoftmax):
            losses = self.lm_head(states, labels)
            logits = self.lm_head(states) if return_logits else None
            return logits, mean_loss(losses.sum(), labels), losses
        logits = self.lm_head(states)
        return logits, label_loss(logits, labels), None


HEAD = LongspanForCausalLM
