"""Answers in documents from scratch: SQuAD, XQuAD, TriviaQA and HotpotQA with a small model.

The model reads bytes, so no tokenizer is needed. Scores say what the tasks give without
pretraining, which is far below published ones.
"""

from typing import Any

from longspan.arena.protocols import own
from longspan.arena.protocols.base import Protocol, Recipe, register
from longspan.config import TrainingConfig

OPTIONS: dict[str, dict[str, Any]] = {
    "squad": {"length": 1_024, "question_length": 128, "answer_length": 64},
    "xquad": {"length": 1_024, "question_length": 128, "answer_length": 64},
    "triviaqa": {"length": 4_096, "question_length": 128, "answer_length": 64},
    "hotpotqa": {"length": 8_192, "question_length": 256, "answer_length": 64},
}
STEPS = {"squad": 5_000, "xquad": 500, "triviaqa": 5_000, "hotpotqa": 5_000}
BATCH = 16


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    steps = STEPS[task]
    training = TrainingConfig(
        steps=steps,
        batch_size=BATCH,
        learning_rate=1e-3,
        warmup_steps=steps // 10,
        schedule="linear",
        evaluate_every=steps // own.EVALUATIONS,
        max_grad_norm=1.0,
        weight_decay=0.01,
    )
    return Recipe(task_options=OPTIONS[task], model=own.MODEL, training=training)


register(
    Protocol(
        name="questions",
        summary="Answers in documents from scratch: SQuAD, XQuAD, TriviaQA, HotpotQA; small model.",
        source="longspan",
        tasks=tuple(OPTIONS),
        differs=(
            "Not a published recipe: published scores on these data sets are of pretrained models "
            "of at least 12 layers. The model has two layers and width 128 and reads bytes, up to "
            "1,024 (SQuAD, XQuAD), 4,096 (TriviaQA) or 8,192 (HotpotQA) of a question and its "
            "documents. The tokens of the question are global, for mechanisms that have global "
            "tokens; in HotpotQA also the first ones of paragraphs and sentences."
        ),
        recipe=recipe,
        mechanism_options=own.OPTIONS,
    )
)
