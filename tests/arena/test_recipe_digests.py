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
    "lra-small": "3b289b9e3db8f30c",
    "diagnostic": "a208295878b2f078",
    "lra-repo": "c197dcd61dc51a0b",
    "lra-paper": "e27258b4c7abf082",
    "mechanism-ablations": "48bca34465513bf2",
    "lra-scaled": "98aade95c215b47b",
    "lra-converged": "b0e27d816b9c6c6e",
    "questions": "485061bc8e2f88d5",
    "quick": "48bca34465513bf2",
    "s4-style": "b44648d4830e64c8",
    "self-pretraining": "064578fd17cf5cdb",
    "self-pretraining-scaled": "4359191a67e46b4b",
    "smoke": "d799b63d42f53b2f",
    "documents": "3af080d6d72ffa27",
    "documents-small": "b6b29cfaf4d5834c",
    "wikihop-ablation": "79b3f925d1cb5d95",
    "xiong": "43ba206f7b6e2910",
    "xiong-ablations": "d49fe7f7d4d43e35",
    "longformer-char": "49f213d46a7b92d6",
    "transformer-xl": "6c02a5ea669ce1d7",
    "shortformer": "71b9e2016656e301",
    "compressive-transformer": "c3a91b70dff726dc",
    "long-short-char": "884141cd6fa638df",
    "path-x-small": "c2168f9acfaa8eaf",
    "speedrun": "3a75e017634737d5",
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
