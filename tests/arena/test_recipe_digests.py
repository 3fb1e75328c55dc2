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
    "lra-small": "c51d5aa115082b01",
    "diagnostic": "17dd310abc664c38",
    "lra-repo": "cb31d1c5706470fc",
    "lra-paper": "d027ae633d84a5fb",
    "lra-scaled": "01b2cc5e4521450d",
    "questions": "94388b8abc0a7803",
    "quick": "8311c0b11973814c",
    "s4-style": "ae91d26576ccf257",
    "self-pretraining": "469613e36b4d5a15",
    "self-pretraining-scaled": "9a7007cee3b19c95",
    "smoke": "150bf8fb60a1f6e3",
    "documents": "e7a9d92571ce37aa",
    "documents-small": "e33636153944306b",
    "wikihop-ablation": "8212814aedd033e0",
    "xiong": "4c607fd03aefa57a",
    "xiong-ablations": "2ee179d94a90480f",
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
