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
    "lra-small": "18f0dbfe4df509fc",
    "diagnostic": "113dfe89908d3943",
    "lra-repo": "47557e81c08eb72d",
    "lra-paper": "cbcbba96bc5075e4",
    "lra-scaled": "d0e4758afcd0de97",
    "questions": "6809c836e4112aed",
    "quick": "a04e2fdec64804d3",
    "s4-style": "629bac0c7bb755ca",
    "self-pretraining": "7d1da28131124ed8",
    "self-pretraining-scaled": "218e71f5dcb1ef3c",
    "smoke": "2beab1c4c2a33d55",
    "documents": "04746c9fb6c9f7a7",
    "documents-small": "d54cfc55470d3932",
    "wikihop-ablation": "d29679dbe3c5aed8",
    "xiong": "b0ec25540c68e98b",
    "xiong-ablations": "20619b2a23df5c65",
    "longformer-char": "25dc1e882a3b7785",
    "transformer-xl": "96936b5e3c6577b5",
    "shortformer": "a87f24b628578023",
    "compressive-transformer": "ba107a13b67b66e8",
    "long-short-char": "7dfa5d05476511d9",
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
