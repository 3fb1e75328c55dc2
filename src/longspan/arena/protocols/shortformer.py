"""Language models of words on short inputs first, or with a cache, as Shortformer trains them.

Press et al. 2021, "Shortformer" (https://arxiv.org/abs/2012.15832), with the commands of
ofirpress/shortformer. The baseline is that of Baevski and Auli 2019: inputs of 3,072 tokens.
"""

from collections.abc import Mapping
from typing import Any

from longspan.arena.protocols._language import (
    causal_options,
    choose,
    decoder,
    half_precision,
    no_pooling,
)
from longspan.arena.protocols.base import Choice, Protocol, Recipe, ReferenceRow, Variant, register
from longspan.config import StageConfig, TrainingConfig

PAPER = "Press et al. 2021, Shortformer"
CODE = "ofirpress/shortformer, README.md"
ARCHITECTURE = "fairseq, models/transformer_lm.py, transformer_lm_wiki103"
TASKS = ("wikitext_103",)
LENGTH, CACHED, SHORT = 3_072, 512, 128
TOKENS = 8 * 9_216  # of an update, on eight GPUs
STEPS = 286_000
STAGED, CACHED_STAGED = 70_050, 140_100  # steps of the first stage
WARMUP = 16_000

MODEL = decoder(
    16,
    1_024,
    8,
    4_096,
    norm="pre",
    dropout=0.3,
    attention_dropout=0.1,
    position="sinusoidal",
    cutoffs=(20_000, 60_000),
    factor=4,
)
TRAINING = TrainingConfig(
    steps=STEPS,
    batch_size=TOKENS // LENGTH,
    learning_rate=2.5e-4,
    warmup_steps=WARMUP,
    schedule="cosine",
    schedule_over="run",
    evaluate_every=4_000,
    adam_epsilon=1e-8,
    max_grad_norm=0.1,
    gradient_accumulation_steps=TOKENS // LENGTH,
    precision="bf16",
    eval_batch_size=4,
    train_eval_examples=0,
)
SLIDING = {"task.evaluation": "sliding", "task.evaluation_length": LENGTH, "task.stride": 512}


def _of_length(length: int) -> dict[str, Any]:
    """Return the changes for inputs of another length, with as many tokens in an update."""
    return {"task.length": length, "training.batch_size": TOKENS // length}


def stages(first: int, changes: Mapping[str, Any]) -> tuple[StageConfig, ...]:
    """Return two stages, the first of short inputs.

    Args:
        first: steps of the first one.
        changes: fields that it changes beside lengths.
    """
    short = {
        **_of_length(SHORT),
        "task.evaluation": "segments",
        "task.evaluation_length": None,
        "task.stride": None,
        **changes,
    }
    return (StageConfig(steps=first, changes=short), StageConfig(steps=STEPS - first))


def _cache(part: str, length: int) -> dict[str, int]:
    """Return the options of a segment and a cache of as many tokens."""
    return {f"{part}.segment": length, f"{part}.memory": length}


STAGES = {"training.stages": stages(STAGED, {})}
CACHED_CHANGES = {**_of_length(CACHED), **_cache("mechanism", CACHED)}
TABLE = f"{PAPER}, table 5"
BASELINES = (
    ReferenceRow(
        name="baseline-sliding", tasks=TASKS, changes=SLIDING, source=f"{TABLE}: baseline, S.W."
    ),
)
VARIANTS = (
    Variant(name="staged", tasks=TASKS, changes=STAGES, source=f"{PAPER}, section 4.2"),
    Variant(
        name="staged-sliding",
        tasks=TASKS,
        changes={**STAGES, **SLIDING},
        source=f"{TABLE}: staged training",
    ),
    Variant(
        name="pia-cache",
        tasks=TASKS,
        changes=CACHED_CHANGES,
        source=f"{TABLE}: PIA + caching",
        mechanism="position_infused",
    ),
    Variant(
        name="shortformer",
        tasks=TASKS,
        changes={
            **CACHED_CHANGES,
            "training.stages": stages(CACHED_STAGED, _cache("position_infused", SHORT)),
        },
        source=f"{TABLE}: Shortformer",
        mechanism="position_infused",
    ),
)


def recipe(task: str) -> Recipe:
    """Return the recipe of the baseline."""
    return Recipe(task_options={"length": LENGTH}, model=MODEL, training=TRAINING)


CHOICES = (
    Choice(
        tasks=TASKS,
        field="training.learning_rate",
        value=2.5e-4,
        source="Dai et al. 2019, Transformer-XL, for Adam on the same text",
        instead=((1.0, CODE),),
        why="the optimizer of the source is Nesterov's accelerated gradient; here it is AdamW",
    ),
    *choose(
        TASKS,
        {"training.adam_betas": [0.9, 0.999], "training.adam_epsilon": 1e-8},
        "longspan, torch's defaults of Adam",
        "the source has another optimizer",
    ),
    half_precision(TASKS, CODE),
    *no_pooling(TASKS),
)

register(
    Protocol(
        name="shortformer",
        summary="Words of WikiText-103: short inputs first, and cached states.",
        source=f"{PAPER}; {CODE}",
        tasks=TASKS,
        differs=(
            "AdamW in place of Nesterov's accelerated gradient, at another learning rate. The "
            "adaptive softmax has no dropout of its own (0.2). An update has 73,728 tokens, "
            "9,216 on each of eight GPUs, as the 1,401 updates of its epochs show. The row full is "
            "the baseline, scored in segments without overlap; baseline-sliding and "
            "staged-sliding are scored in windows of 3,072 every 512 tokens, as its table 5. "
            "staged reads 128 tokens at a time in the first 50 epochs, shortformer in the first "
            "100, then 512 with a cache of 512, as pia-cache throughout. One schedule "
            "spans both stages. The cosine ends with the run (the source's, after "
            "270,000 updates). Activations inside feed-forward layers have no dropout (0.1), and "
            "GELU (ReLU). Articles begin with an empty cache; the code reads a split as one text. "
            "position_infused without a name has a cache of 512 within inputs of 3,072."
        ),
        recipe=recipe,
        mechanism_options=causal_options(CACHED, CACHED, CACHED),
        choices=CHOICES,
        references=BASELINES,
        variants=VARIANTS,
    )
)
