"""Character language models in three phases, as Long-Short Transformer trains them.

Zhu et al. 2021, "Long-Short Transformer" (https://arxiv.org/abs/2107.02192), with the scripts of
NVIDIA/transformer-ls, autoregressive/launch: lengths double, the learning rate halves.
"""

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

PAPER = "Zhu et al. 2021, Long-Short Transformer"
CODE = "NVIDIA/transformer-ls, autoregressive"
TASKS = ("text8", "enwik8")
LENGTHS = (2_048, 4_096, 8_192)
STEPS, WARMUPS = (430_000, 50_000, 50_000), (10_000, 5_000, 5_000)
RATES = {"text8": 5e-4, "enwik8": 2.5e-4}  # of the first phase
# Of eight GPUs.
BATCHES = {"text8": (32, 32, 16), "enwik8": (32, 32, 32)}
LARGE_BATCHES = (32, 64, 32)
WINDOW = 512
SCORED, EVALUATION_MEMORY = 256, 32_768


def phases(rate: float, batches: tuple[int, ...]) -> tuple[StageConfig, ...]:
    """Return the phases, each with moments of its own.

    Held-out text is scored in segments until the last phase, that of the recipe.
    """
    made = []
    for phase in range(2):
        changes: dict[str, Any] = {
            "task.length": LENGTHS[phase],
            "task.evaluation": "segments",
            "task.evaluation_length": None,
            "task.stride": None,
            "training.batch_size": batches[phase],
            "training.learning_rate": rate / 2**phase,
            "training.warmup_steps": WARMUPS[phase],
            "training.evaluate_every": 1_000,
        }
        made.append(StageConfig(steps=STEPS[phase], changes=changes, keep_optimizer=False))
    return (*made, StageConfig(steps=STEPS[-1], keep_optimizer=False))


MODEL = decoder(12, 512, 8, 2_048, norm="pre", dropout=0.2, attention_dropout=0.2)
OPTIONS = {
    "length": LENGTHS[-1],
    "evaluation": "sliding",
    "evaluation_length": EVALUATION_MEMORY + SCORED,
    "stride": SCORED,
}


def _training(task: str) -> TrainingConfig:
    rate, batches = RATES[task], BATCHES[task]
    return TrainingConfig(
        steps=sum(STEPS),
        batch_size=batches[-1],
        learning_rate=rate / 4,
        warmup_steps=WARMUPS[-1],
        schedule="constant",
        evaluate_every=STEPS[-1] // 5,
        weight_decay=0.01,
        adam_epsilon=1e-8,
        gradient_accumulation_steps=8,
        precision="bf16",
        eval_batch_size=4,
        train_eval_examples=0,
        stages=phases(rate, batches),
    )


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(task_options=OPTIONS, model=MODEL, training=_training(task))


LARGE = Variant(
    name="long-short-large",
    tasks=("enwik8",),
    changes={
        "model.num_hidden_layers": 30,
        "model.hidden_dropout_prob": 0.4,
        "model.attention_dropout": 0.4,
        "training.weight_decay": 0.1,
        "training.stages": phases(RATES["enwik8"], LARGE_BATCHES),
    },
    source=f"{PAPER}; {CODE}/launch/enwik8-large-phase*.sh",
    mechanism="long_short",
)
CHOICES = (
    Choice(
        tasks=TASKS,
        field="model.position",
        value="rotary",
        source="longspan",
        instead=(("relative", f"{CODE}/model_lib/layer.py"),),
        why="its attention adds relative positions to windows and landmarks; ours has none of them",
    ),
    Choice(
        tasks=TASKS,
        field="mechanism.long_short.variant",
        value="xiong",
        source=f"{CODE}/model_lib/layer.py",
        instead=(("ls", f"{PAPER}, section 3"),),
        why="the causal code compresses keys and values before their normalization",
    ),
    half_precision(TASKS, f"{CODE}/launch"),
    *choose(TASKS, ADAM, "fairseq, the defaults of its Adam", "the scripts set none"),
    *choose(
        TASKS,
        {"model.attention_dropout": 0.2},
        f"{CODE}/launch, its one dropout",
        "the scripts set one dropout, and that of embeddings",
    ),
    *choose(
        TASKS,
        {"training.selection": "best validation"},
        f"{CODE}/launch: phase 3 begins with the best checkpoint of phase 2",
        "phase 2 begins with the last one of phase 1",
    ),
    *no_pooling(TASKS),
)

register(
    Protocol(
        name="long-short-char",
        summary="Character language models in three phases of growing length, as Long-Short.",
        source=f"{PAPER}; {CODE}",
        tasks=TASKS,
        differs=(
            "The code keeps a memory as long as a segment (2,048 to 8,192 states), which a "
            "window and landmarks reach into; here a model reads each segment anew, since a state "
            "of long_short has no bound (task.keep_state=all keeps it all). Its evaluation keeps "
            "32,768 states and scores 256 characters at a time; here windows of 33,024 overlap so "
            "that as many are before the 256 that are scored. Positions are rotary, where its "
            "attention has relative ones. Phases begin with fresh moments. A phase begins with "
            "the best checkpoint of the one before; in the code, the second begins with the last "
            "one. The batch is that of eight GPUs. long-short-large is its model of 30 layers. "
            "Other mechanisms have windows of 512 keys."
        ),
        recipe=recipe,
        mechanism_options={
            **causal_options(WINDOW, WINDOW, WINDOW),
            "long_short": {"window": WINDOW, "segment": 16, "segment_rank": 1, "variant": "xiong"},
        },
        choices=CHOICES,
        variants=(LARGE,),
    )
)
