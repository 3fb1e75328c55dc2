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
    "lra-small": "46f67193b6474ba5",
    "diagnostic": "6e9a56dbe1e3f45a",
    "lra-repo": "ba352d169e58c530",
    "lra-paper": "1bfe839cbc4c6d2d",
    "lra-scaled": "9f09047a9b9d08ba",
    "questions": "3ec4c7363fc34e5e",
    "quick": "33c2396626787a65",
    "s4-style": "df15738d984b2434",
    "self-pretraining": "ef5db1ec8e32b861",
    "self-pretraining-scaled": "57794dda6ba96e78",
    "smoke": "4957db11a36edaa0",
    "documents": "ea3bc4b61d096fcd",
    "documents-small": "e60b57df62f1dfa6",
    "wikihop-ablation": "456a14334e280702",
    "xiong": "97a584118b73ff94",
    "xiong-ablations": "4c4d8a905802e590",
    "longformer-char": "eebd75ff7df89b63",
    "transformer-xl": "1828f2e53714b74f",
    "shortformer": "209c9deaedf7fc12",
    "compressive-transformer": "3d1c2cba158794ee",
    "long-short-char": "f518391e0aec861b",
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
