"""Classification of each token of a sequence."""

from transformers.modeling_outputs import TokenClassifierOutput

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import Shapes
from longspan.models.heads.sequence_classification import SingleInputClassifier


class LongspanForTokenClassification(SingleInputClassifier):
    """Transformer with a classification head on the state of every token."""

    output_class = TokenClassifierOutput
    features = "last_hidden_state"
    card_kind = "token-classification"

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        if config.is_regression or config.is_multi_label:
            raise OptionError(
                "numbers and several labels are predicted for sequences and pairs, not for tokens; "
                "set num_labels to 2 or more, and problem_type to None"
            )

    @classmethod
    def label_shapes(cls, shapes: Shapes) -> Shapes:
        """Return the shape of the labels: a class for each token."""
        return {cls.label: shapes["input_ids"]}


HEAD = LongspanForTokenClassification
