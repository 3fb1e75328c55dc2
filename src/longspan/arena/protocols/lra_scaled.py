"""Long Range Arena with shortened inputs, which takes minutes per run on CPU.

The small model of Nystromformer and Xiong et al. on shorter inputs, in about a thousand steps. Its
scores are comparable with each other only: inputs, steps and learning rates are not those of any
paper.
"""

import dataclasses
from typing import Any

from longspan.arena.protocols import lra_small
from longspan.arena.protocols.base import MechanismOptions, Protocol, Recipe, register
from longspan.config import TrainingConfig

OPTIONS: dict[str, dict[str, Any]] = {
    # a quarter of the length; 343 tokens on average
    "listops": {
        "train": 40_000,
        "validation": 1_000,
        "test": 2_000,
        "min_length": 200,
        "max_length": 500,
    },
    # an eighth of the length
    "text": {"length": 512, "validation": 1_000, "test": 5_000},
    # whole images, fewer of them scored
    "image": {"validation": 1_000, "test": 5_000},
}
MODEL = dataclasses.replace(lra_small.MODEL, hidden_dropout_prob=0.0, attention_dropout=0.0)
# The summary token reads all tokens where a mechanism has global ones: with a mean over tokens a
# window of 8 in two layers never relates the first operator of an expression to its last argument.
SUMMARIZED = {"listops": dataclasses.replace(MODEL, pooling="cls")}
LISTOPS = TrainingConfig(
    steps=1_000,
    batch_size=32,
    learning_rate=1e-3,
    warmup_steps=100,
    schedule="linear",
    evaluate_every=100,
    weight_decay=0.01,
    max_grad_norm=1.0,
    precision="bf16",
    eval_batch_size=64,
)
TRAIN = {
    "listops": LISTOPS,
    "text": LISTOPS,
    "image": dataclasses.replace(LISTOPS, batch_size=16),
}


def _sized(length: int) -> MechanismOptions:
    """Options that grow with the length, in the proportion of the small recipe on ListOps."""
    rank, segment, block = length // 8, length // 8, length // 32
    return {
        "strided_local": {"block": block},
        "bigbird": {"block": block, "num_random_blocks": 3},
        "sparse_transformer": {"kind": "fixed", "stride": block, "summary": block // 4},
        "reformer": {"chunk": block, "hashes": 2},
        "performer": {"features": rank},
        "linformer": {"rank": rank},
        "nystrom": {"landmarks": rank // 2, "conv_kernel_size": 35},
        "long_short": {"window": 8, "rank": rank // 8},
        "transformer_xl": {"segment": segment, "memory": segment, "backprop_through_memory": True},
        "compressive": {
            "segment": segment,
            "memory": segment,
            "compressed_memory": segment // 2,
            "backprop_through_memory": True,
        },
        "position_infused": {
            "segment": segment,
            "memory": segment,
            "backprop_through_memory": True,
        },
    }


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(
        task_options=OPTIONS[task], model=SUMMARIZED.get(task, MODEL), training=TRAIN[task]
    )


register(
    Protocol(
        name="lra-scaled",
        summary=(
            "ListOps, Text and Image of LRA, scaled down for CPU cores (2 to 10 minutes a run on "
            "one core of an AMD EPYC): shorter inputs, a thousand steps."
        ),
        source="longspan",
        tasks=tuple(OPTIONS),
        differs=(
            "Not a published recipe, and not comparable with one. Model and optimizer are those of "
            "lra-small (64 wide, 2 layers, 2 heads; linear schedule, bfloat16). ListOps has 201 to "
            "499 tokens in place of 501 to 1,999, Text 512 bytes in place of 4,000, Image its "
            "1,024 pixels; 1,000 steps in place of 5,000 to 35,000, so the learning rate is ten "
            "times as high (1e-3), with a warmup of 100 steps, clipped gradients, a weight decay "
            "of 0.01 and, as no example is seen more than twice, no dropout; batches of Image have "
            "16 examples in place of 256. Validation has 1,000 examples, test 2,000 (ListOps) or "
            "5,000. Ranks, features, landmarks, segments and blocks follow the length, in about "
            "the proportions that lra-small has on ListOps; windows of 8 and blocks of 8 to 32 are "
            "kept. Text and Image average the tokens, as lra-small does; the first token is global "
            "in longformer alone. On ListOps pooling is a summary token: it is global in the "
            "mechanisms that have global tokens, so that local patterns can relate what lies far "
            "apart. Mechanisms of strided blocks, or of segments with a memory, have "
            "none: their summary stands in the first block or segment and reads nothing behind it, "
            "as in the local attention that LRA released; their scores on ListOps say what such a "
            "summary can know."
        ),
        recipe=recipe,
        mechanism_options={**lra_small.SETTINGS, **_sized(512)},
        task_mechanism_options={"image": _sized(1_024)},
    )
)
