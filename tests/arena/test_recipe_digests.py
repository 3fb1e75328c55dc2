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
    "lra-small": "9f5532379f063558",
    "diagnostic": "27bba22f57a7276d",
    "lra-repo": "a311f17275327921",
    "lra-paper": "3f27b8e4c6b61c71",
    "lra-scaled": "ba8891d55a747596",
    "lra-converged": "4d58ecc33f9b16b2",
    "questions": "4cb2e8fa6b3c558c",
    "quick": "4e4ac91a3a9968f9",
    "s4-style": "adcd183968d35f35",
    "self-pretraining": "bda1227c3cd48f34",
    "self-pretraining-scaled": "6369b232e2347f92",
    "smoke": "5e4da8032bc3f7a2",
    "documents": "c556faf822863657",
    "documents-small": "6261bd6a7f3993a7",
    "wikihop-ablation": "7dd2dd06079f4d08",
    "xiong": "7c5e1f5dd5e57f1b",
    "xiong-ablations": "563a5434c3a6133a",
    "longformer-char": "daf10036052c63e8",
    "transformer-xl": "c92fed52cf0339cf",
    "shortformer": "9dd5b2a51dfc23fb",
    "compressive-transformer": "d36d13a542d277dc",
    "long-short-char": "27bf7daa269815dd",
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
