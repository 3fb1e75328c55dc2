"""Long documents from scratch: Hyperpartisan and 20 Newsgroups with a small model of words.

The model is that of the protocol `own`, so the scores say what a user's documents of such a size
would give without pretraining.
"""

from typing import Any

from longspan.arena.protocols import own
from longspan.arena.protocols.base import Protocol, Recipe, register
from longspan.config import TrainingConfig

OPTIONS: dict[str, dict[str, Any]] = {
    "hyperpartisan": {"length": 1_024, "vocabulary": own.WORD_IDS},
    "newsgroups": {"length": 512, "vocabulary": own.WORD_IDS},
}
STEPS = {"hyperpartisan": 640, "newsgroups": 3_200}  # twenty and ten epochs
BATCH = {"hyperpartisan": 16, "newsgroups": 32}


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    steps = STEPS[task]
    training = TrainingConfig(
        steps=steps,
        batch_size=BATCH[task],
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
        name="documents",
        summary="Long documents from scratch: Hyperpartisan and 20 Newsgroups, words, small model.",
        source="longspan",
        tasks=tuple(OPTIONS),
        differs=(
            "Not a published recipe: published scores on these data sets are of pretrained models "
            "of at least 12 layers. The model has two layers and width 128, reads the 8,190 most "
            "frequent words of the training split, 1,024 (Hyperpartisan) or 512 of a document, and "
            "averages over the tokens; the first token is global in longformer alone. The splits "
            "of Hyperpartisan share no article; --set task.split=published gives the overlapping "
            "ones of Longformer's repository."
        ),
        recipe=recipe,
        mechanism_options=own.OPTIONS,
    )
)
