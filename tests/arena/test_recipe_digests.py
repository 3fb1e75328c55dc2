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
    "lra-small": "a5380e123ad6857e",
    "diagnostic": "e0af86f3e410006d",
    "lra-repo": "825f06b9551eee9d",
    "lra-paper": "cc87da939e5de696",
    "lra-scaled": "25212b2c0755c767",
    "quick": "53c5201567c8b921",
    "s4-style": "15094aa68843d29b",
    "xiong": "eee75caa6f05d2d7",
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
