"""The ablations of "Simple Local Attentions Remain Competitive" as rows of one table.

Xiong et al. (Wenhan), NAACL 2022, https://arxiv.org/abs/2112.07210, section 4.3: global tokens,
overlap of the blocks, block size. The paper pretrains each model; here models are trained from
scratch, with the recipe of `documents-small`. Its initialization from a short model is a question
of pretraining: rows NAME-from-scratch of `xiong-small`.
"""

from collections.abc import Mapping
from typing import Any

from longspan.arena.protocols import documents_small, own
from longspan.arena.protocols.base import (
    MechanismOptions,
    Protocol,
    ReferenceRow,
    Variant,
    register,
)

SOURCE = "Xiong et al. 2022, section 4.3"
KEYS = 128  # that a token attends to, unless the name of the row says otherwise
PASSAGE = 64
LOCAL: MechanismOptions = {
    "local": {"window": KEYS // 2},
    "blockwise": {"block": KEYS // 2},  # a token sees half a block on either side too
    "disjoint": {"block": KEYS},
}
BLOCKS = {"blockwise": (16, 32, 128, 256), "disjoint": (32, 64, 256, 512)}
SCALES = {"half": 0.5, "double": 2.0}


def _variant(mechanism: str, suffix: str, changes: Mapping[str, Any]) -> Variant:
    return Variant(
        name=f"{mechanism}-{suffix}",
        tasks=documents_small.TASKS,
        changes=changes,
        source=SOURCE,
        mechanism=mechanism,
    )


VARIANTS = (
    *(_variant(x, "no-globals", {"task.global_tokens": "none"}) for x in LOCAL),
    *(_variant(x, "passage-globals", {"task.global_tokens": PASSAGE}) for x in LOCAL),
    *(_variant(x, str(n), {"mechanism.block": n}) for x, sizes in BLOCKS.items() for n in sizes),
)
REFERENCES = tuple(
    ReferenceRow(
        name=f"{mechanism}-{size}",
        tasks=documents_small.TASKS,
        changes={"model.scale": scale},
        source="longspan",
        mechanism=mechanism,
    )
    for mechanism in ("full", "blockwise")
    for size, scale in SCALES.items()
)

register(
    Protocol(
        name="xiong-ablations",
        summary="Global tokens, overlap, block size: the ablations of Xiong et al. as rows.",
        source="longspan",
        tasks=documents_small.TASKS,
        differs=(
            f"The questions are those of {SOURCE}; the figures of its tables are not at hand, and "
            "it asks on pretrained models of 24 layers. A token attends to 128 keys, and the "
            "first token is global. NAME-no-globals has no global token, NAME-passage-globals one "
            "in each 64 tokens, in place of one in each block. blockwise-32 and disjoint-64 name "
            "the block, and see 64 keys both: the overlap is their difference. full-half, "
            "full-double, blockwise-half and blockwise-double scale the model (model.scale). "
            "All else is as in documents-small."
        ),
        recipe=documents_small.recipe,
        mechanism_options={**own.WITHOUT_GLOBALS, **LOCAL},
        references=REFERENCES,
        variants=VARIANTS,
        rows=("full", *LOCAL, *(row.name for row in (*VARIANTS, *REFERENCES))),
        seeds=documents_small.SEEDS,
    )
)
