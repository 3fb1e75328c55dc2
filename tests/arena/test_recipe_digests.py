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
    "lra-small": "0f04cdb51600a695",
    "diagnostic": "17dd310abc664c38",
    "lra-repo": "b890900527b35828",
    "lra-paper": "cc6277082342fb52",
    "lra-scaled": "0f3cf769761503ec",
    "questions": "caaaabadebf1c360",
    "quick": "8311c0b11973814c",
    "s4-style": "3320573f8ce027fb",
    "smoke": "8573a14a693aa1bd",
    "xiong": "60af98baba654ce1",
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
