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
    "lra-small": "cefdee7fed4e7754",
    "diagnostic": "50b745ab2cd6c69c",
    "lra-repo": "7441d326b1cc4fc6",
    "lra-paper": "4e8591cc157be40d",
    "mechanism-ablations": "97842724f1e661a9",
    "lra-scaled": "2c1f4df3b5fdb922",
    "lra-converged": "9a93eda81acc2ae9",
    "questions": "73bb895fbb5289f5",
    "quick": "97842724f1e661a9",
    "s4-style": "9b30ccae4cdc0734",
    "self-pretraining": "880048dde06b5c5f",
    "self-pretraining-scaled": "9d531c77d9fa9cc3",
    "smoke": "003876f923f48ac0",
    "documents": "1fdc7abeaf9c5e4c",
    "documents-small": "b480c471b39475d0",
    "wikihop-ablation": "186c515499ba72da",
    "xiong": "d6eaedb41297710c",
    "xiong-ablations": "efee1fe6050308f4",
    "longformer-char": "29f1112967d653f9",
    "transformer-xl": "cd7aa02e1f1c1ac7",
    "shortformer": "59bd5a66a7d96e98",
    "compressive-transformer": "9bc52b9a8fb33ced",
    "long-short-char": "9f198aa63b0c9101",
    "path-x-small": "fe274beb03ce0f0d",
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
