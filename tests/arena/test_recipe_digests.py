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
    "lra-small": "d6d00f3dec9add92",
    "diagnostic": "881833fd227a0c5c",
    "lra-repo": "3271de7933facb8b",
    "lra-paper": "28163c5b91f3b755",
    "mechanism-ablations": "5e35efc8b44e6a85",
    "lra-scaled": "b352d933036fbe6a",
    "lra-converged": "1de434d7cc87d308",
    "questions": "5b0632841df009be",
    "quick": "5e35efc8b44e6a85",
    "s4-style": "434e799420d65886",
    "self-pretraining": "e478dfb0d89eb720",
    "self-pretraining-scaled": "c86b87d0ba1bc4a9",
    "smoke": "5f6551d1dfca86f5",
    "documents": "14a15c5c9f75db43",
    "documents-small": "d039206d8efecf51",
    "wikihop-ablation": "0cfe4cc38d0b1e24",
    "xiong": "57a1f82e9068a0df",
    "xiong-ablations": "b085beac9ddb9f30",
    "longformer-char": "344165a2241831ab",
    "transformer-xl": "e333bb9ca44b03b5",
    "shortformer": "c1963e4ef696216c",
    "compressive-transformer": "8d8290942309fbcf",
    "long-short-char": "4417d13499637b94",
    "path-x-small": "a52a62ee330b54cf",
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
