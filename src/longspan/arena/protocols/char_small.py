"""Character language models of long documents at the size of two CPU cores.

The recipes of the sources, side by side: windows that grow by layer, and dilation (Beltagy et al.
2020), memories (Dai et al. 2019; Rae et al. 2020; Press et al. 2021), and staged training.
"""

from typing import Any

from longspan.arena.protocols.base import (
    GENERIC,
    MechanismOptions,
    Protocol,
    Recipe,
    ReferenceRow,
    Variant,
)
from longspan.config import ModelConfig, StageConfig, TrainingConfig
from longspan.tasks import TASKS

NAME, CORPUS = "char-small", "novels"
LENGTH, SHORT, LAYERS, HEADS = 2_048, 512, 4, 4
TOKENS = 2 * LENGTH  # of an update, at every length
STEPS = 1_000
GROWING = [32, 64, 128, 256]
FIXED = [sum(GROWING) // LAYERS] * LAYERS
LONGFORMER = "Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, table 4"
MODEL = ModelConfig(
    hidden_size=128,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=512,
    classifier_hidden_size=128,  # of no model here
    norm="pre",
    position="rotary",
    hidden_dropout_prob=0.0,
    attention_dropout=0.0,
    initializer_range=0.02,
)
TRAINING = TrainingConfig(
    steps=STEPS,
    batch_size=TOKENS // LENGTH,
    learning_rate=2e-3,
    warmup_steps=100,
    schedule="cosine",
    evaluate_every=250,
    weight_decay=0.01,
    adam_betas=(0.9, 0.98),
    max_grad_norm=1.0,
    eval_batch_size=8,
    train_eval_examples=0,
)
# A memory of a segment; windows and ranks with about as many keys for a query.
OPTIONS: MechanismOptions = {
    "local": {"window": FIXED[0]},
    "longformer": {"window": FIXED[0]},
    "dilated": {"window": FIXED[0], "dilation": 2},
    "blockwise": {"block": 64},
    "disjoint": {"block": 128},
    "bigbird": {"block": 32, "num_random_blocks": 2},
    "strided_local": {"block": 128},
    "reformer": {"chunk": 32, "hashes": 2},
    "sinkhorn": {"block": 64},
    "linear": {},
    "performer": {"features": 128},
    "long_short": {"window": 64, "rank": 4},
    "transformer_xl": {"segment": SHORT, "memory": SHORT},
    "compressive": {
        "segment": SHORT,
        "memory": SHORT // 2,
        "compressed_memory": SHORT // 2,
        "ratio": 4,
        "compression": "conv",
    },
    "position_infused": {"segment": SHORT, "memory": SHORT},
}
SHORT_CHANGES: dict[str, Any] = {
    "task.length": SHORT,
    "task.evaluation_length": SHORT,
    "training.batch_size": TOKENS // SHORT,
    "training.eval_batch_size": TRAINING.eval_batch_size * LENGTH // SHORT,
}


def _stage(length: int, share: int, rate: float, warmup: int = 0) -> StageConfig:
    """Return a stage on segments of another length, with as many tokens in an update.

    The learning rate is constant but in the last stage, that of the whole length.
    """
    other = {"task.length": length, "training.batch_size": TOKENS // length}
    own = {**other, "training.schedule": "constant"} if length < LENGTH else {}
    rates = {"training.learning_rate": rate, "training.warmup_steps": warmup}
    return StageConfig(steps=share, changes={**own, **rates})


# Half the learning rate behind the first stage, as Longformer; two stages, as Shortformer.
DOUBLING = (_stage(256, 5, 2e-3, 100), _stage(512, 2, 1e-3), _stage(LENGTH, 3, 1e-3))
TWO_STAGES = (_stage(128, 1, 2e-3, 100), _stage(LENGTH, 1, 2e-3))


def _variant(name: str, mechanism: str, changes: dict[str, Any], source: str) -> Variant:
    return Variant(name=name, tasks=(CORPUS,), changes=changes, source=source, mechanism=mechanism)


def _layers(*dilated: int) -> list[list[int]]:
    """Return the dilations of the heads of each layer: two heads of some layers have gaps."""
    plain = [1] * HEADS
    return [
        plain if layer not in dilated else [1] * (HEADS - 2) + [2, 2] for layer in range(LAYERS)
    ]


# The ablation of the paper: equal windows on average, two heads of the upper layers with dilation.
WINDOWS = (
    _variant("growing", "longformer", {"mechanism.window": GROWING}, LONGFORMER),
    _variant("shrinking", "longformer", {"mechanism.window": GROWING[::-1]}, LONGFORMER),
    _variant(
        "growing-dilated",
        "longformer",
        {"mechanism.window": GROWING, "mechanism.dilation": _layers(2, 3)},
        LONGFORMER,
    ),
    _variant("fixed-dilated", "longformer", {"mechanism.dilation": _layers(2, 3)}, LONGFORMER),
)
STAGED = (
    _variant(
        "growing-staged",
        "longformer",
        {"mechanism.window": GROWING, "training.stages": DOUBLING},
        "Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, section 4.2",
    ),
    _variant(
        "full-staged",
        "full",
        {"training.stages": TWO_STAGES},
        "Press et al. 2021, https://arxiv.org/abs/2012.15832, section 4",
    ),
)
SHORT_ROW = ReferenceRow(
    name="full-short",
    tasks=(CORPUS,),
    changes=SHORT_CHANGES,
    source="full attention on segments as long as the memories' ones",
)


def recipe(task: str) -> Recipe:
    """Return the recipe of the corpus."""
    return Recipe(
        task_options={"length": LENGTH, "held_out_tokens": 65_536}, model=MODEL, training=TRAINING
    )


def make_char_small() -> Protocol:
    """Return the protocol, whose corpus is imported."""
    return Protocol(
        name=NAME,
        summary="Character language models of novels with one small model: hours on two CPU cores.",
        source="longspan",
        tasks=tuple(name for name in (CORPUS,) if name in TASKS),
        differs=(
            "Not a published recipe: those of Longformer, Transformer-XL, Compressive Transformer "
            "and Shortformer, scaled down to one. Bytes of novels; 4 layers of width 128; 1,000 "
            "updates of 4,096 bytes, in segments of 2,048 bytes that follow each other in a row of "
            "the batch. transformer_xl, compressive and position_infused work on segments of 512 "
            "and keep their memory from update to update; the others begin anew with every segment "
            "of 2,048. The reference row full-short reads 512 bytes at a time. Positions are "
            "rotary but for mechanisms with their own. Of each held-out novel the first 65,536 "
            "bytes are scored, segment by segment: tokens at the beginning of one have less "
            "context, but for memories. growing, shrinking and *-dilated have windows by layer, of "
            "120 keys before a query on average, as longformer. *-staged begin with shorter "
            "segments and have as many bytes in all."
        ),
        recipe=recipe,
        mechanism_options=OPTIONS,
        references=(SHORT_ROW,),
        variants=(*WINDOWS, *STAGED),
        imports={CORPUS: f"longspan data import corpus FOLDER --name {CORPUS} --objective next"},
    )


GENERIC[NAME] = make_char_small
