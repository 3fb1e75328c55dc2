"""Multiple choice: the one of several candidate texts that is right."""

from typing import Unpack

from torch import Tensor
from transformers.modeling_outputs import MultipleChoiceModelOutput

from longspan.models.base import Requests
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import ClassificationHead, HeadModel, Shapes, encode_texts, exclude
from longspan.models.heads.losses import Items, label_loss
from longspan.models.inputs import TextInputs
from longspan.models.packing import refuse_documents
from longspan.shapes import Float, Int, Mask

CandidateIds = Int[Tensor, "B C T"]
CandidateMask = Mask[Tensor, "B C T"]


class LongspanForMultipleChoice(HeadModel):
    """Transformer with one score for each candidate, such as a question with one of its answers.

    The candidates of a row do not see each other. Rows with fewer candidates than others are filled
    with candidates without real tokens, which are never chosen.
    """

    card_kind = "multiple-choice"

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.classifier = ClassificationHead(config.output_size, 1, config)
        self.post_init()

    def forward(
        self,
        input_ids: CandidateIds | None = None,
        attention_mask: CandidateMask | None = None,
        global_attention_mask: CandidateMask | None = None,
        labels: Int[Tensor, " B"] | None = None,
        input_values: Float[Tensor, "B C T F"] | None = None,
        token_type_ids: CandidateIds | None = None,
        position_ids: CandidateIds | None = None,
        inputs_embeds: Float[Tensor, "B C T W"] | None = None,
        num_items_in_batch: Items | None = None,
        **requests: Unpack[Requests],
    ) -> MultipleChoiceModelOutput | tuple:
        """Score candidates; see `LongspanModel.forward` for the inputs, here with an axis C more.

        `labels` are the indices of the right candidates, or -100 for a row without a loss.
        `num_items_in_batch` is the number of labels of all parts of a batch; see `Head.finish`.

        Returns:
            `logits` (B, C), the lowest number of their type for candidates without real tokens; if
            labels are given, `loss`: the mean cross entropy, useless if a label names such a
            candidate, plus the mechanisms' auxiliary loss in training; and on request
            `hidden_states` and `attentions` of B C texts.

        Raises:
            InputError: an input has no axis of candidates, the Transformer refuses the inputs, or
                the labels do not fit the logits.
        """
        masks, values = (attention_mask, global_attention_mask), (inputs_embeds, input_values)
        inputs = TextInputs(input_ids, *masks, token_type_ids, position_ids, *values)
        texts = inputs.flatten_parts("candidates")
        refuse_documents(texts, "one candidate")
        encoded = encode_texts(self.model, self.mark_global_tokens(texts), **requests)
        scores = self.classifier(encoded.pooler_output).reshape(inputs.shape[:2])
        logits = exclude(scores, inputs.real_parts)
        loss = None if labels is None else label_loss(logits, labels)
        weight, kind = (labels, num_items_in_batch), MultipleChoiceModelOutput
        return self.finish(kind, [encoded], loss, requests, *weight, logits=logits)

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of the head on each candidate."""
        return ClassificationHead.flops(config, shapes["input_ids"][0], config.output_size, 1)


HEAD = LongspanForMultipleChoice
