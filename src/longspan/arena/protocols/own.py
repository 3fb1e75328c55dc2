"""Protocol of imported texts and collections: a recipe whose sizes follow from the files.

The protocol is registered as soon as there is an import, with the imports as its tasks.
"""

from pathlib import Path
from typing import Any

from longspan.arena.protocols.base import PROTOCOLS, Protocol, Recipe
from longspan.config import ModelConfig, TrainingConfig
from longspan.data.imports.texts import TextsDescription
from longspan.data.retrieval.imports import BeirDescription
from longspan.tasks import (
    TASKS,
    BeirTask,
    OwnSummaries,
    OwnTexts,
    imported_names,
    register_imported,
)

NAME = "own"
WORD_IDS = 8_192
LONGEST = {"words": 1_024, "bytes": 2_048}  # tokens that CPUs train on in minutes
LENGTH_UNIT = 64  # lengths are multiples of it
# Texts of more bytes a word are taken for a script without spaces.
BYTES_PER_WORD = 24
EPOCHS, FEWEST_STEPS, MOST_STEPS = 10, 200, 5_000
EVALUATIONS = 10
BATCH = 32

MODEL = ModelConfig(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=256,
    classifier_hidden_size=128,
    attention_dropout=0.0,
)
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"window": 32},
    "dilated": {"window": 32, "dilation": 2},
    "longformer": {"window": 32, "first_global": True, "global_projections": True},
    "blockwise": {"block": 32},
    "disjoint": {"block": 64},
    "strided_local": {"block": 32},
    "bigbird": {"block": 32, "num_random_blocks": 1},
    "reformer": {"chunk": 32},
    "sinkhorn": {"block": 32},
    "synthesizer": {"scores": "dense"},
    "performer": {"features": 64},
    "linformer": {"rank": 64},
    "nystrom": {"landmarks": 32, "conv_kernel_size": 15},
    "long_short": {"window": 32, "rank": 16},
    "transformer_xl": {"segment": 64, "memory": 64, "backprop_through_memory": True},
    "compressive": {
        "segment": 64,
        "memory": 64,
        "compressed_memory": 32,
        "backprop_through_memory": True,
    },
    "position_infused": {"segment": 64, "memory": 64, "backprop_through_memory": True},
}
# Of protocols whose tasks say which tokens are global, none (task.global_tokens=none) included.
WITHOUT_GLOBALS: dict[str, dict[str, Any]] = {
    **OPTIONS,
    "longformer": {**OPTIONS["longformer"], "first_global": False},
}


def recipe(task: str) -> Recipe:
    """Return the recipe of an import: words, ten epochs, and a length that covers 95 % of texts."""
    cls = TASKS[task]
    if issubclass(cls, BeirTask):
        queries = cls.description.sizes["train"]
        return _recipe(_retrieval_options(cls.description), queries)
    if issubclass(cls, OwnSummaries):
        return _recipe(_summary_options(cls.description), cls.description.sizes["train"])
    assert issubclass(cls, OwnTexts)
    return _recipe(_encoding(cls.description), cls.description.sizes["train"])


def _recipe(options: dict[str, Any], train: int) -> Recipe:
    """Return a recipe for so many training examples."""
    batch = min(BATCH, train)
    steps = EPOCHS * train // batch
    steps = min(max(steps, FEWEST_STEPS), MOST_STEPS)
    training = TrainingConfig(
        steps=steps,
        batch_size=batch,
        learning_rate=1e-3,
        warmup_steps=steps // 10,
        schedule="linear",
        evaluate_every=steps // EVALUATIONS,
        max_grad_norm=1.0,
        weight_decay=0.01,
    )
    return Recipe(task_options=options, model=MODEL, training=training)


def _retrieval_options(described: BeirDescription) -> dict[str, Any]:
    """Return the options of a collection: words of documents and queries."""
    counts = (described.document_words, described.query_words)
    lengths = [min(-(-x // LENGTH_UNIT) * LENGTH_UNIT, LONGEST["words"]) for x in counts]
    return {"length": max(lengths), "query_length": lengths[1], "vocabulary": WORD_IDS}


def _summary_options(described: TextsDescription) -> dict[str, Any]:
    """Return the options of summaries: words of texts and summaries."""
    counts = (described.words, described.summary_words + 1)  # with the end of a summary
    lengths = [min(-(-x // LENGTH_UNIT) * LENGTH_UNIT, LONGEST["words"]) for x in counts]
    return {"length": lengths[0], "target_length": lengths[1], "vocabulary": WORD_IDS}


def _encoding(described: TextsDescription) -> dict[str, Any]:
    """Return the options of the task: words, or bytes of a script without spaces."""
    has_words = described.bytes <= BYTES_PER_WORD * described.words
    unit, count = ("words", described.words) if has_words else ("bytes", described.bytes)
    length = min(-(-count // LENGTH_UNIT) * LENGTH_UNIT, LONGEST[unit])
    return {"length": length, "vocabulary": WORD_IDS if has_words else "bytes"}


def register_imports(cache: Path) -> None:
    """Register the imports in a cache as tasks; those with targets are the protocol `own`."""
    PROTOCOLS.pop(NAME, None)
    register_imported(cache)
    if names := imported_names(OwnTexts, OwnSummaries, BeirTask):
        PROTOCOLS[NAME] = Protocol(
            name=NAME,
            summary="Texts and collections imported from files: words, a small model, ten epochs.",
            source="longspan",
            tasks=tuple(names),
            differs=(
                "Not a published recipe. The length covers 95 % of the training texts, up to 1,024 "
                "words; the steps are ten epochs, at least 200 and at most 5,000."
            ),
            recipe=recipe,
            mechanism_options=OPTIONS,
        )
