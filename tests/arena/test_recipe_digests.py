"""Recipes of protocols do not change by accident: a digest of each is committed here.

A new option or a corrected value changes a digest. Regenerate it then, and name the change in
CHANGELOG.md: scores before and after it are not comparable.
"""

import hashlib
import json
import sys

import pytest

from longspan.arena import PROTOCOLS
from longspan.config import flatten

REGENERATE = "python tests/arena/test_recipe_digests.py"
MECHANISMS = (
    *("bigbird", "blockwise", "compressive", "dilated", "disjoint", "full", "linear", "linformer"),
    *("local", "long_short", "longformer", "nystrom", "performer", "position_infused", "reformer"),
    *("sinkhorn", "sparse_transformer", "strided_local", "synthesizer", "transformer_xl"),
)
DIGESTS = {
    "lra-small": "c5bbffeb0e931aa8",
    "diagnostic": "307c19c45128116e",
    "lra-repo": "a229a62fbe436ef4",
    "lra-paper": "19a6fbd554d6a981",
    "lra-scaled": "8e0916ad294826d0",
    "questions": "15c98ac98b46ef96",
    "quick": "b01ecbb52bf9e0de",
    "s4-style": "e7ae2fce2cd5be91",
    "self-pretraining": "6446ae65b79784f0",
    "self-pretraining-scaled": "14e52ead52a875f3",
    "smoke": "faf1c9844e4e6398",
    "documents": "fb4371ce1b159b87",
    "documents-small": "f4bbbc304e91e771",
    "wikihop-ablation": "ac762edac9df181c",
    "xiong": "1d912951ef77d892",
    "xiong-ablations": "e11c51ea8c5d3d25",
    "longformer-char": "1898afb24d75bf0d",
    "transformer-xl": "09d30f47237e5747",
    "shortformer": "dca0c37204e9e080",
    "compressive-transformer": "cb549ea038f264ae",
    "long-short-char": "4ebb41c1a2afed62",
}


def digest(protocol):
    """Return a digest of the configurations of all tasks and mechanisms of a protocol."""
    recipes = {
        f"{task} {mechanism}": flatten(protocol.config(task, mechanism))
        for task in protocol.tasks
        for mechanism in MECHANISMS
    }
    return hashlib.sha256(json.dumps(recipes, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", DIGESTS)
def test_recipes_are_unchanged(name):
    assert digest(PROTOCOLS[name]) == DIGESTS[name], (
        f"recipes of {name} have changed; if that is intended, copy the output of `{REGENERATE}`"
    )


if __name__ == "__main__":
    for protocol in PROTOCOLS.values():
        sys.stdout.write(f'    "{protocol.name}": "{digest(protocol)}",\n')
