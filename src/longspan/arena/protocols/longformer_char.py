"""Character language models in five phases, as Longformer trains them.

Beltagy et al. 2020, "Longformer" (https://arxiv.org/abs/2004.05150), section 4 and appendix B: text
and windows double from phase to phase, the learning rate halves. Windows grow from the first layer
to the last, and two heads of the upper layers have gaps. Its code of this part is not public.
"""

from collections.abc import Sequence
from typing import Any

from longspan.arena.protocols._language import (
    ADAM,
    causal_options,
    choose,
    decoder,
    half_precision,
    no_pooling,
)
from longspan.arena.protocols.base import Choice, Protocol, Recipe, Variant, register
from longspan.config import StageConfig, TrainingConfig

PAPER = "Beltagy et al. 2020, Longformer"
TABLE = f"{PAPER}, table 12"
ABLATION = f"{PAPER}, table 4"
TASKS = ("text8", "enwik8")
HEADS = 8
LENGTHS = (2_048, 4_096, 8_192, 16_384, 23_040)
BATCHES = (32, 32, 16, 16, 16)
SMALL, LARGE = (430_000, 50_000, 50_000, 35_000, 5_000), (350_000, 25_000, 10_000, 5_000, 5_000)
FIRST_RATE, LONGEST_WARMUP = 2.5e-4, 10_000
# Of the first phase, in tokens before the query, and the number of layers with each.
WINDOWS = (32, 64, 128, 256, 512)
SMALL_LAYERS, LARGE_LAYERS = (2, 2, 2, 3, 3), (6, 6, 6, 6, 6)
FIXED = 230
# Steps between the keys of two heads (the paper counts gaps), and the number of layers with each.
STEPS_BETWEEN = (1, 2, 3, 4)
SMALL_GAPS, LARGE_GAPS = (6, 2, 2, 2), (15, 5, 5, 5)


def _windows(layers: Sequence[int], phase: int = 0) -> list[int]:
    """Return the windows of the layers in a phase, counted from 0."""
    return [
        window << phase for window, count in zip(WINDOWS, layers, strict=True) for _ in range(count)
    ]


def _dilation(layers: Sequence[int]) -> list[list[int]]:
    """Return the dilations of the heads of each layer."""
    return [
        [1] * (HEADS - 2) + [step] * 2
        for step, count in zip(STEPS_BETWEEN, layers, strict=True)
        for _ in range(count)
    ]


def _warmup(steps: int) -> int:
    return min(steps // 10, LONGEST_WARMUP)


def phases(steps: Sequence[int], layers: Sequence[int]) -> tuple[StageConfig, ...]:
    """Return the phases, with the windows of the mechanism of the paper.

    Held-out text is scored in segments until the last phase, that of the recipe.

    Args:
        steps: steps of the phases.
        layers: number of layers with each window.
    """
    made = []
    for phase, own in enumerate(steps[:-1]):
        changes: dict[str, Any] = {
            "task.length": LENGTHS[phase],
            "task.evaluation": "segments",
            "task.evaluation_length": None,
            "task.stride": None,
            "training.batch_size": BATCHES[phase],
            "training.learning_rate": FIRST_RATE / 2**phase,
            "training.warmup_steps": _warmup(own),
            "longformer.window": _windows(layers, phase),
        }
        made.append(StageConfig(steps=own, changes=changes))
    return (*made, StageConfig(steps=steps[-1]))


OPTIONS = {
    "length": LENGTHS[-1],
    "evaluation": "sliding",
    "evaluation_length": 32_256,
    "stride": 512,
}
MODEL = decoder(12, 512, HEADS, 2_048, norm="pre", dropout=0.2, attention_dropout=0.0)
TRAINING = TrainingConfig(
    steps=sum(SMALL),
    batch_size=BATCHES[-1],
    learning_rate=FIRST_RATE / 2**4,
    warmup_steps=_warmup(SMALL[-1]),
    schedule="constant",
    evaluate_every=5_000,
    weight_decay=0.01,
    adam_epsilon=1e-8,
    max_grad_norm=0.25,
    gradient_accumulation_steps=8,
    precision="bf16",
    gradient_checkpointing=True,
    eval_batch_size=4,
    train_eval_examples=0,
    stages=phases(SMALL, SMALL_LAYERS),
)
RELATIVE = {"model.position": "relative"}
GROWING = _windows(SMALL_LAYERS)
# The first phase alone, 150,000 steps of it.
FIRST_PHASE: dict[str, Any] = {
    **RELATIVE,
    **TRAINING.stages[0].changes_of("full"),
    "training.steps": 150_000,
    "training.stages": (),
}


def _row(name: str, tasks: tuple[str, ...], changes: dict[str, Any], source: str) -> Variant:
    return Variant(name=name, tasks=tasks, changes=changes, source=source, mechanism="longformer")


def _ablated(name: str, window: int | list[int], row: str, dilation: Any = 1) -> Variant:
    own = {"mechanism.window": window, "mechanism.dilation": dilation}
    return _row(name, ("text8",), {**FIRST_PHASE, **own}, f"{ABLATION}: {row}")


LARGE_CHANGES = {
    **RELATIVE,
    "mechanism.window": _windows(LARGE_LAYERS, 4),
    "mechanism.dilation": _dilation(LARGE_GAPS),
    "model.num_hidden_layers": sum(LARGE_LAYERS),
    "model.hidden_dropout_prob": 0.4,
    "training.steps": sum(LARGE),
    "training.stages": phases(LARGE, LARGE_LAYERS),
}
VARIANTS = (
    _row("longformer-small", TASKS, RELATIVE, f"{PAPER}, table 2"),
    _row("longformer-large", ("enwik8",), LARGE_CHANGES, f"{PAPER}, table 3"),
    _ablated("decreasing", GROWING[::-1], "decreasing w (from 512 to 32)"),
    _ablated("fixed", FIXED, "fixed w (= 230)"),
    _ablated("increasing", GROWING, "increasing w (from 32 to 512)"),
    _ablated("no-dilation", GROWING, "no dilation"),
    _ablated("dilation-2-heads", GROWING, "dilation on 2 heads", _dilation(SMALL_GAPS)),
)


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(task_options=OPTIONS, model=MODEL, training=TRAINING)


CHOICES = (
    Choice(
        tasks=TASKS,
        field="model.position",
        value="rotary",
        source="longspan",
        instead=(("relative", TABLE),),
        why="few mechanisms can add relative positions; the rows of the paper's models have them",
    ),
    half_precision(TASKS, f"{PAPER}, appendix B: float16 and 32, attention in float32"),
    *(
        Choice(
            tasks=TASKS,
            field=field,
            value=_windows(SMALL_LAYERS, phase),
            source=f"{PAPER}, sections 4.1 and 4.2, and the ends in table 4",
            instead=instead,
            why="windows double from layer to layer and from phase to phase; their average in the "
            "first phase is that of table 4, to the nearest ten",
        )
        for phase, (field, instead) in enumerate(
            (
                ("stage.1.longformer.window", (("32 to 8,192", f"{TABLE}, as printed"),)),
                ("stage.2.longformer.window", ()),
                ("stage.3.longformer.window", ()),
                ("stage.4.longformer.window", ()),
                ("mechanism.longformer.window", (("512 to no number", f"{TABLE}, as printed"),)),
            )
        )
    ),
    *choose(
        TASKS,
        {"model.attention_dropout": 0.0},
        "kimiyoung/transformer-xl, pytorch/run_enwik8_base.sh, whose code the paper builds on",
        "the table names one dropout",
    ),
    *choose(TASKS, ADAM, "kimiyoung/transformer-xl, pytorch/train.py", "the table names none"),
    *choose(
        TASKS,
        {"training.selection": "best validation"},
        "longspan",
        "a phase of the paper ends when validation gets no better",
    ),
    *no_pooling(TASKS),
)

register(
    Protocol(
        name="longformer-char",
        summary="Character language models in five phases of growing length, as Longformer.",
        source=f"{PAPER}, section 4 and appendix B",
        tasks=TASKS,
        differs=(
            "longformer-small and longformer-large are the models of the paper, longformer is the "
            "former with rotary positions, as the rows of other mechanisms, whose options are the "
            "same in all phases. The paper names the windows of the first layer and of the last: "
            "here they double from 32 to 512 in the first phase, in 2, 2, 2, 3 and 3 of the 12 "
            "layers, whose mean is 229 (its fixed window is 230), and double with each phase; its "
            "table prints 32 to 8,192 for the first phase and no end for the last. A window of w "
            "is w tokens before the query. Lengths of the phases between are doubled; rates "
            "halved. A phase is selected on validation: segments of its length without overlap, "
            "in the last one the sliding windows of the test. The paper ran phases until "
            "validation got no better, in float16 with attention in float32. In the rows of table "
            "4 (increasing, decreasing, fixed, no-dilation, dilation-2-heads; 150,000 steps of "
            "the first phase on text8, no-dilation being increasing) held-out text is read in "
            "segments of 2,048; the paper does not say how, and reports validation. Vocabularies "
            "have ids for padding and bytes that do not occur."
        ),
        recipe=recipe,
        mechanism_options={
            **causal_options(512, 512, 512),
            "longformer": {
                "window": _windows(SMALL_LAYERS, 4),
                "dilation": _dilation(SMALL_GAPS),
            },
        },
        choices=CHOICES,
        variants=VARIANTS,
    )
)
