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
    *("based", "convolution", "lru"),
)
DIGESTS = {
    "lra-small": "9a4b4bf94eb53096",
    "diagnostic": "0a8f8e0683946e61",
    "lra-repo": "c4138e5794783fad",
    "lra-paper": "742d86f4aab63bdc",
    "mechanism-ablations": "b00c598bae31ed4d",
    "lra-scaled": "1fc6ace4ce7d2f7e",
    "lra-converged": "3b13b8bc1ec7f1ce",
    "questions": "5be096526afba00d",
    "quick": "b00c598bae31ed4d",
    "s4-style": "8b53b8ff862e73f8",
    "self-pretraining": "921df0f7e847fa15",
    "self-pretraining-scaled": "457d134b1c6267fd",
    "smoke": "3c73e45e9410d8f1",
    "documents": "9f86127d1fc1687c",
    "documents-small": "1952350e4ebb07b3",
    "wikihop-ablation": "d810c6d2e4979358",
    "xiong": "11e134500a0f206a",
    "xiong-ablations": "cc48c304150dd80d",
    "longformer-char": "dabd1d7d4428e47f",
    "transformer-xl": "c807d16a6678948b",
    "shortformer": "5a494d74174328da",
    "compressive-transformer": "7bf3f6974100a6e4",
    "long-short-char": "f3d701bfbba40d77",
    "path-x-small": "1069246f4e2b5912",
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
