"""Digests of all recipes of each protocol, against accidental changes.

A new mechanism or option changes the digests, and so does a corrected value of a recipe.
Regenerate them then, and name the change in CHANGELOG.md: scores before and after it are not
comparable.
"""

import hashlib
import json
import sys

import pytest

from longspan.arena import PROTOCOLS
from longspan.attention import MECHANISMS
from longspan.config import flatten

REGENERATE = "python tests/arena/test_recipe_digests.py"
DIGESTS = {
    "lra-small": "2df29ee16b3c97bc",
    "diagnostic": "193a08e2104bf854",
    "lra-repo": "03cd6a8c5fa609f9",
    "lra-paper": "09e3144e7628b9b7",
    "lra-scaled": "1539079e257363cb",
    "quick": "e2a03efe66d9dc54",
    "s4-style": "ceecb933f677aeb4",
    "xiong": "39b02052e13cf2c4",
}


def digest(protocol):
    """Return a digest of the configurations of all tasks and mechanisms of a protocol."""
    recipes = {
        f"{task} {mechanism}": flatten(protocol.config(task, mechanism))
        for task in protocol.tasks
        for mechanism in MECHANISMS
    }
    return hashlib.sha256(json.dumps(recipes, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_recipes_are_unchanged(name):
    assert digest(PROTOCOLS[name]) == DIGESTS.get(name), (
        f"recipes of {name} have changed; if that is intended, copy the output of `{REGENERATE}`"
    )


def test_digests_cover_all_protocols():
    assert set(DIGESTS) == set(PROTOCOLS)


if __name__ == "__main__":
    for protocol in PROTOCOLS.values():
        sys.stdout.write(f'    "{protocol.name}": "{digest(protocol)}",\n')
