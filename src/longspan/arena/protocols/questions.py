"""Answers and entities in documents from scratch, with a small model.

SQuAD, XQuAD, TriviaQA, HotpotQA, WikiHop, and coreference.

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
    "wikihop": {"length": 4_096, "windows": 2},
    # A word has about five bytes.
    "coreference": {
        "length": 2_048,
        "span_width": 64,
        "spans_per_token": 0.1,
        "global_tokens": "boundaries",
    },
}
STEPS = {**dict.fromkeys(OPTIONS, 5_000), "xquad": 500}
BATCH = 16
BATCHES = {"coreference": 1}  # as in Lee et al. 2018: memory grows with the spans of a document


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    steps = STEPS[task]
    training = TrainingConfig(
        steps=steps,
        batch_size=BATCHES.get(task, BATCH),
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
        summary="Questions about documents and coreference from scratch, with a small model.",
        source="longspan",
        tasks=tuple(OPTIONS),
        differs=(
            "Not a published recipe: published scores on these data sets are of pretrained models "
            "of at least 12 layers. The model has two layers and width 128 and reads bytes, up to "
            "1,024 (SQuAD, XQuAD), 4,096 (TriviaQA) or 8,192 (HotpotQA) of a question and its "
            "documents, two windows of 4,096 (WikiHop) or 2,048 of a document (coreference). The "
            "tokens of the question are global, for mechanisms that have global tokens; in "
            "HotpotQA also the first ones of paragraphs and sentences, in WikiHop the candidates, "
            "in coreference the first ones of sentences."
        ),
        recipe=recipe,
        mechanism_options=own.WITHOUT_GLOBALS,
    )
)
