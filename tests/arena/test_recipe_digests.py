"""Recipes of protocols do not change by accident: a digest of each is committed here.

A corrected value changes a digest; a new field with its default does not, as in the hash of a run.
Regenerate it then, and name the change in CHANGELOG.md: scores before and after it are not
comparable.
"""

import hashlib
import json
import sys

import pytest

from longspan.arena import PROTOCOLS
from longspan.arena.experiment import hash_config

REGENERATE = "python tests/arena/test_recipe_digests.py"
MECHANISMS = (
    *("bigbird", "blockwise", "compressive", "dilated", "disjoint", "full", "linear", "linformer"),
    *("local", "long_short", "longformer", "nystrom", "performer", "position_infused", "reformer"),
    *("sinkhorn", "sparse_transformer", "strided_local", "synthesizer", "transformer_xl"),
)
DIGESTS = {
    "compressive-transformer": "5514e65f6563ec14",
    "diagnostic": "57880466f62b7051",
    "documents": "b2bed0f6a019b9ca",
    "documents-small": "3732ef7967a53697",
    "long-short-char": "20a491ddc815fc7b",
    "longformer-char": "04c2f293ce26c672",
    "lra-converged": "9094f04da682ad0b",
    "lra-paper": "475e026108e99544",
    "lra-repo": "227752e464a15d5a",
    "lra-scaled": "a2589729604a5acf",
    "lra-small": "f8adec9ebf15a511",
    "mechanism-ablations": "1de103979b114415",
    "mixers": "1de103979b114415",
    "path-x-small": "512eab730ee04050",
    "questions": "f6d1a3a537e507ef",
    "quick": "1de103979b114415",
    "recall-state": "67fe94566af838df",
    "s4-style": "3087da24855dd450",
    "self-pretraining": "be6d8471e517d882",
    "self-pretraining-scaled": "49978d94ad525f24",
    "shortformer": "0812ec0d7693bd1d",
    "smoke": "ee2140e6528bcd78",
    "speedrun": "1dde8f17718fa7dc",
    "transformer-xl": "7ea406acea2b3a85",
    "wikihop-ablation": "9af2bece472be818",
    "xiong": "484cd6f07b108bee",
    "xiong-ablations": "6d54135c5ed7b794",
}


def digest(protocol):
    """Return a digest of the configurations of all tasks and mechanisms of a protocol."""
    recipes = {
        f"{task} {mechanism}": hash_config(protocol.config(task, mechanism))
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
