"""Long documents from scratch: classes and summaries, in minutes to an hour on two CPU cores.

The model is that of the protocol `own`, so the scores say what a user's documents of such a size
give without pretraining.
"""

from typing import Any

from longspan.arena.protocols import own
from longspan.arena.protocols.base import Protocol, Recipe, register
from longspan.config import TrainingConfig

TASKS = ("hyperpartisan", "newsgroups", "text")  # of classification
SUMMARIES = "pubmed_summarization"
LENGTHS = {"hyperpartisan": 1_024, "newsgroups": 512, "text": 512, SUMMARIES: 1_024}
FURTHER: dict[str, dict[str, Any]] = {
    "text": {"validation": 2_000, "train": 10_000, "test": 5_000},
    SUMMARIES: {"target_length": 256, "beams": 4},
}
BATCH = {"hyperpartisan": 16, "newsgroups": 32, "text": 32, SUMMARIES: 8}
# 20, 10, 10 and, of the 250 papers of SumPubMed, 20 epochs
STEPS = {"hyperpartisan": 640, "newsgroups": 3_180, "text": 3_120, SUMMARIES: 620}
# Published scores on Hyperpartisan are means of four (Xiong et al. 2022) or five seeds.
SEEDS = (0, 1, 2, 3)


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
    options = {
        "length": LENGTHS[task],
        "vocabulary": own.WORD_IDS,
        "global_tokens": "first",
        **FURTHER.get(task, {}),
    }
    return Recipe(task_options=options, model=own.MODEL, training=training)


register(
    Protocol(
        name="documents-small",
        summary="Long documents from scratch: words, a small model, four seeds, two CPU cores.",
        source="longspan",
        tasks=(*TASKS, SUMMARIES),
        differs=(
            "Not a published recipe: published scores on these data sets are of pretrained models "
            "of 12 layers or more. The model has two layers and width 128, reads the 8,190 most "
            "frequent words of the training split, 1,024 (Hyperpartisan, PubMed) or 512 of a "
            "document, and averages over the tokens to classify it. The first token is global in "
            "mechanisms with such tokens. "
            "The splits of Hyperpartisan share no article; --set task.split=published gives the "
            "overlapping ones of Longformer's repository. 10,000 reviews of IMDB are for training, "
            "5,000 of the test part for test."
        ),
        recipe=recipe,
        mechanism_options=own.WITHOUT_GLOBALS,
        seeds=SEEDS,
    )
)
