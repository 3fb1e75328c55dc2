"""The order in which settings are given makes no difference."""

import itertools

import pytest

from longspan.arena import get
from longspan.errors import LongspanError

# Values that are valid together, and not one by one in every order; and values that never are.
CASES = {
    "heads and width": {
        "model.hidden_size": 96,
        "model.num_attention_heads": 3,
        "model.intermediate_size": 50,
    },
    "accumulation and batch": {
        "training.batch_size": 64,
        "training.gradient_accumulation_steps": 64,
        "training.steps": 7,
    },
    "steps and stages": {
        "training.steps": 3,
        "training.stages": [{"steps": 1, "changes": {"training.batch_size": 2}}, {"steps": 1}],
        "training.batch_size": 4,
    },
    "stages and options": {
        "mechanism.window": 5,
        "training.stages": [{"steps": 1, "changes": {"mechanism.window": 3}}, {"steps": 1}],
        "evaluation.window": 6,
    },
    "one for all, one for a mechanism, one for a task": {
        "mechanism.window": 5,
        "local.window": 6,
        "needle.local.window": 7,
        "needle.steps": 9,
    },
    "scale and a width": {"model.scale": 2, "model.hidden_size": 64, "model.num_hidden_layers": 1},
    "equal limits": {"local.window": 5, "local.mechanism.window": 5, "needle.steps": 3},
    "refused: contradiction": {"local.window": 5, "needle.window": 6, "training.steps": 3},
    "refused: values": {"training.steps": 0, "training.batch_size": 0, "model.hidden_size": 10},
    "sliding evaluation": {
        "task.evaluation": "sliding",
        "task.stride": 40,
        "task.evaluation_length": 64,
        "training.stages": [
            {"steps": 1, "changes": {"task.stride": None, "task.evaluation": "segments"}},
            {"steps": 1},
        ],
    },
}
PROTOCOL = {
    "sliding evaluation": ("transformer-xl", "enwik8"),
    # Runs of `quick` end at a score, which excludes stages.
    "steps and stages": ("diagnostic", "copying"),
    "stages and options": ("diagnostic", "copying"),
}


def outcome(case, changes):
    """Return the experiment of a row, or the message of the refusal."""
    protocol, task = PROTOCOL.get(case, ("quick", "needle"))
    try:
        made = get(protocol).row(task, "local", 0, changes)
    except LongspanError as error:
        return sorted(str(error).split("; "))
    return made.name, made.config, made.overrides


@pytest.mark.parametrize("case", CASES)
def test_order_of_settings_makes_no_difference(case):
    orders = itertools.permutations(CASES[case].items())
    first, *others = (outcome(case, dict(order)) for order in orders)
    assert isinstance(first, list) == case.startswith("refused")
    assert all(other == first for other in others)
