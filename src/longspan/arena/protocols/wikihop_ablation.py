"""The ablation of Longformer on WikiHop: which of its parts matter for reading several documents.

Beltagy et al. 2020, "Longformer" (https://arxiv.org/abs/2004.05150), section 6.5 and table 10, with
the hyperparameters of appendix D and of allenai/longformer, scripts/wikihop.py. The row of the
mechanism `longformer` is the model itself; the reference rows are those of the table. Windows of
the table are in tokens of both sides, options of the mechanism in tokens of one side.
"""

from collections.abc import Mapping

from longspan.arena.protocols.base import (
    Choice,
    MechanismOptions,
    Protocol,
    Recipe,
    ReferenceRow,
    register,
)
from longspan.config import ModelConfig, TrainingConfig

PAPER = "Beltagy et al. 2020, Longformer"
TABLE = f"{PAPER}, table 10"
APPENDIX = f"{PAPER}, appendix D"
CODE = "allenai/longformer, scripts/wikihop.py"
TASKS = ("wikihop",)
LAYERS, WINDOW = 12, 256  # keys on each side

MODEL = ModelConfig(
    hidden_size=768,
    num_hidden_layers=LAYERS,
    num_attention_heads=12,
    intermediate_size=3072,
    classifier_hidden_size=0,
    norm="post",
    pooling="first",
    initializer_range=0.02,
)
STEPS = 6_150  # five epochs of nine tenths of 43,738 questions
TRAIN = TrainingConfig(
    steps=STEPS,
    batch_size=32,
    gradient_accumulation_steps=32,
    learning_rate=3e-5,
    warmup_steps=200,
    schedule="linear",
    evaluate_every=250,
    weight_decay=0.01,
    adam_betas=(0.9, 0.98),
    adam_epsilon=1e-6,
    precision="bf16",
    eval_batch_size=8,
)
OPTIONS = {"length": 4096, "windows": 4}
SETTINGS: MechanismOptions = {
    "longformer": {"window": WINDOW, "first_global": True, "global_projections": True},
    "local": {"window": WINDOW},
    "blockwise": {"block": WINDOW},
    "disjoint": {"block": 2 * WINDOW},
    "bigbird": {"block": 64, "num_random_blocks": 3},
    "linformer": {"rank": WINDOW},
    "performer": {"features": WINDOW},
    "nystrom": {"landmarks": WINDOW, "conv_kernel_size": 35},
}
NO_PROJECTIONS = {"mechanism.global_projections": False}
NO_GLOBAL = {"mechanism.first_global": False, "task.global_tokens": "none"}
SHORT = {"task.length": 512, "task.windows": 48}


def _row(
    name: str, changes: Mapping[str, object], source: str, mechanism: str = "longformer"
) -> ReferenceRow:
    return ReferenceRow(name=name, tasks=TASKS, changes=changes, source=source, mechanism=mechanism)


def _windows(first: int, last: int) -> list[int]:
    """Return windows that grow by equal steps from the first layer to the last."""
    return [first + round(layer * (last - first) / (LAYERS - 1)) for layer in range(LAYERS)]


ROWS = (
    _row("roberta", SHORT, f"{TABLE}: RoBERTa-base (seqlen: 512)", "full"),
    _row("epochs-15", {"training.steps": 3 * STEPS}, f"{TABLE}: Longformer (4,096, 15 epochs)"),
    _row(
        "length-512-full",
        {**SHORT, **NO_PROJECTIONS, **NO_GLOBAL, "mechanism.window": 512},
        f"{TABLE}: Longformer (seqlen: 512, attention: n^2), as a window that covers the text",
    ),
    _row(
        "length-2048",
        {"task.length": 2048, "task.windows": 9},
        f"{TABLE}: Longformer (seqlen: 2,048)",
    ),
    _row("no-projections", NO_PROJECTIONS, f"{TABLE}: Longformer (no linear proj.)"),
    _row(
        "no-global",
        {**NO_PROJECTIONS, **NO_GLOBAL},
        f"{TABLE}: Longformer (no linear proj. no global atten.)",
    ),
    _row("window-64", {"mechanism.window": 32}, "longspan: a smaller window, 64 in all layers"),
    _row(
        "window-increasing",
        {"mechanism.window": _windows(16, 256)},
        f"longspan: the windows of {PAPER}, table 4 (increasing w, from 32 to 512)",
    ),
    _row(
        "window-decreasing",
        {"mechanism.window": _windows(256, 16)},
        f"longspan: the windows of {PAPER}, table 4 (decreasing w, from 512 to 32)",
    ),
)

CHOICES = (
    Choice(
        tasks=TASKS,
        field="training.steps",
        value=STEPS,
        source="longspan",
        instead=((6_834, APPENDIX),),
        why="five epochs of the questions that validation leaves; the paper trains on all",
    ),
    Choice(
        tasks=TASKS,
        field="task.windows",
        value=4,
        source="longspan",
        instead=(("all", APPENDIX),),
        why="bounds the memory of a step; the slices of a record count the questions that are cut",
    ),
    Choice(
        tasks=TASKS,
        field="training.precision",
        value="bf16",
        source="longspan",
        instead=(("no", CODE),),
        why="the option --fp16 of the code is off by default; bfloat16 needs no loss scaling",
    ),
)


def recipe(task: str) -> Recipe:
    """Return the recipe of the task."""
    return Recipe(task_options=OPTIONS, model=MODEL, training=TRAIN)


register(
    Protocol(
        name="wikihop-ablation",
        summary="The ablation of Longformer on WikiHop, at the size of its base model.",
        source=f"{PAPER}, section 6.5 and appendix D; {CODE}",
        tasks=TASKS,
        differs=(
            "All rows of the table start from RoBERTa: name a checkpoint with longspan finetune "
            "CHECKPOINT --task wikihop --protocol wikihop-ablation --mechanism ROW, whose "
            "tokenizer is used. The rows of no MLM pretraining and of trained positions alone "
            "differ from the first one in the checkpoint (docs/arena.md); without a checkpoint "
            "weights are drawn, of bytes unless task.vocabulary says otherwise. Validation is a "
            "tenth of the training questions and selects the checkpoint; test is the development "
            "set, on which the paper selects, too. The scores of a candidate are averaged over "
            "windows, as in the paper; its code sums them. Rows with other windows are not in the "
            "table."
        ),
        recipe=recipe,
        mechanism_options=SETTINGS,
        choices=CHOICES,
        references=ROWS,
    )
)
