"""Model classes with a head, and the arguments of a call of each."""

import dataclasses
import functools

import torch
import transformers

from longspan.models import (
    LongspanDualEncoder,
    LongspanForCandidates,
    LongspanForCoreference,
    LongspanForMultiHopQuestionAnswering,
    LongspanForMultipleChoice,
    LongspanForPairClassification,
    LongspanForQuestionAnswering,
    LongspanForReconstruction,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
)

B, C, T = 3, 2, 9
CLASSES = torch.tensor([0, 1, 1])
TOKENS = ("start", "end", "sentence", "paragraph")  # labels of each token


@dataclasses.dataclass(frozen=True)
class Head:
    """Model class and its arguments.

    Attributes:
        cls: class of the model.
        labels: arguments for a loss.
        auto: transformers' Auto class, if there is one.
        texts: names of the arguments of each batch of texts.
        shape: shape of a batch of texts.
        unlabeled: arguments for no loss.
        constant: parameters that add a constant to all scores of a softmax, and so do not learn.
        more: further arguments of every call.
    """

    cls: type
    labels: dict
    auto: type | None = None
    texts: tuple[str, ...] = ("{}",)
    shape: tuple[int, ...] = (B, T)
    unlabeled: dict = dataclasses.field(default_factory=dict)
    constant: tuple[str, ...] = ()
    more: dict = dataclasses.field(default_factory=dict)

    def build(self, config, **changes):
        return self.bind(self.cls(config(**changes)).double().eval())

    def bind(self, model):
        """Return a model that gets the further arguments in every call."""
        if self.more:
            model.forward = functools.partial(model.forward, **self.more)
        return model

    def inputs(self):
        return {name.format("input_ids"): torch.randint(1, 50, self.shape) for name in self.texts}

    def logits(self, output):
        """Return the scores of all texts in one tensor, real tokens only."""
        if self.cls is LongspanForQuestionAnswering:
            return torch.stack((output.start_logits, output.end_logits))
        if self.cls is LongspanForMultiHopQuestionAnswering:
            return torch.stack(output.scores[:4])
        if self.cls is LongspanForCoreference:
            return output.mention_scores
        return output.similarities if self.cls is LongspanDualEncoder else output.logits


HEADS = {
    "sequence": Head(
        LongspanForSequenceClassification,
        {"labels": CLASSES},
        transformers.AutoModelForSequenceClassification,
    ),
    "pair": Head(LongspanForPairClassification, {"labels": CLASSES}, texts=("{}", "{}_b")),
    "token": Head(
        LongspanForTokenClassification,
        {"labels": torch.arange(B * T).view(B, T) % 2},
        transformers.AutoModelForTokenClassification,
    ),
    "reconstruction": Head(
        LongspanForReconstruction, {"labels": torch.arange(T).expand(B, T) // 3 % 2}
    ),
    "question": Head(
        LongspanForQuestionAnswering,
        {"start_positions": CLASSES, "end_positions": CLASSES + 2},
        transformers.AutoModelForQuestionAnswering,
        constant=("qa_outputs.bias", "model.norm.bias"),
    ),
    "multi_hop": Head(
        LongspanForMultiHopQuestionAnswering,
        {
            **{f"{name}_labels": torch.arange(B * T).view(B, T) % 2 for name in TOKENS},
            "type_labels": CLASSES,
        },
        constant=("qa_outputs.bias",),
    ),
    "choice": Head(
        LongspanForMultipleChoice,
        {"labels": CLASSES},
        transformers.AutoModelForMultipleChoice,
        shape=(B, C, T),
        constant=("classifier.output.bias",),
    ),
    "candidates": Head(
        LongspanForCandidates,
        {"labels": CLASSES},
        constant=("model.norm.bias",),
        more={"candidate_positions": torch.tensor([[1, 4, 6], [2, 5, -1], [0, 3, 8]])},
    ),
    "coreference": Head(
        LongspanForCoreference,
        {"labels": torch.tensor([[[0, 0, 0], [3, 4, 1], [6, 6, 0], [8, 8, 1]]] * B)},
        constant=("coreference.token_scores.bias",),
    ),
    "dual": Head(
        LongspanDualEncoder,
        {"return_loss": True},
        texts=("query_{}", "document_{}"),
        unlabeled={"return_loss": False},
        constant=("document_model.norm.bias",),
    ),
}
