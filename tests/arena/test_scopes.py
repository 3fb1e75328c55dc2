"""Settings limited to a task or a row: which runs they apply to, and rejected names."""

import pytest

from longspan.arena import SearchSpace, get, grid, search, searches
from longspan.attention import MECHANISMS
from longspan.config import flatten
from longspan.errors import LongspanError, OptionError

DIAGNOSTIC = {"tasks": ["recall", "copying"], "mechanisms": ["local", "full"]}
# Name of the setting, field that it sets, and the runs that it applies to.
LIMITS = {
    "training.steps": ("training.steps", {("recall", "local"), ("recall", "full"),
                                          ("copying", "local"), ("copying", "full")}),
    "recall.training.steps": ("training.steps", {("recall", "local"), ("recall", "full")}),
    "recall.steps": ("training.steps", {("recall", "local"), ("recall", "full")}),
    "recall.length": ("task.length", {("recall", "local"), ("recall", "full")}),
    "recall.task.length": ("task.length", {("recall", "local"), ("recall", "full")}),
    "recall.hidden_size": ("model.hidden_size", {("recall", "local"), ("recall", "full")}),
    "local.window": ("mechanism.window", {("recall", "local"), ("copying", "local")}),
    "local.mechanism.window": ("mechanism.window", {("recall", "local"), ("copying", "local")}),
    "local.steps": ("training.steps", {("recall", "local"), ("copying", "local")}),
    "copying.local.window": ("mechanism.window", {("copying", "local")}),
    "local.copying.window": ("mechanism.window", {("copying", "local")}),
    "copying.full.training.steps": ("training.steps", {("copying", "full")}),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_setting_applies_to_its_runs_alone_and_is_recorded_by_its_field(name):
    field, runs = LIMITS[name]
    made, left_out = grid("diagnostic", **DIAGNOSTIC, changes={name: 36})
    assert not left_out
    protocol = get("diagnostic")
    for experiment in made:
        pair = (experiment.task, experiment.mechanism)
        changes = {field: 36} if pair in runs else {}
        assert experiment == protocol.row(*pair, 0, changes)
        assert experiment.overrides == changes
        assert (flatten(experiment.config).get(field) == 36) == (pair in runs)


def test_setting_that_is_limited_to_fewer_runs_wins():
    changes = {
        "recall.local.steps": 4,
        "training.steps": 1,
        "local.steps": 2,
        "recall.training.steps": 3,
        "copying.full.steps": 1,
    }
    made, _ = grid("diagnostic", **DIAGNOSTIC, changes=changes)
    steps = {(x.task, x.mechanism): x.config.training.steps for x in made}
    assert steps == {
        ("recall", "local"): 4,
        ("recall", "full"): 3,
        ("copying", "local"): 2,
        ("copying", "full"): 1,
    }


def test_settings_of_equal_reach_must_agree():
    with pytest.raises(OptionError, match=r"recall\.local\.training\.steps$") as raised:
        grid("diagnostic", **DIAGNOSTIC, changes={"recall.steps": 1, "local.steps": 2})
    assert "local.steps" in str(raised.value)
    made, _ = grid("diagnostic", **DIAGNOSTIC, changes={"recall.steps": 2, "local.steps": 2})
    assert {x.config.training.steps for x in made} == {2, 2_000}


def test_reference_row_is_a_limit_of_its_own():
    changes = {"cnn-stem.steps": 7}
    rows = ["full", "cnn-stem"]
    made, _ = grid("lra-paper", tasks=["image"], mechanisms=rows, changes=changes)
    steps = {x.row_name: x.config.training.steps for x in made}
    assert steps["cnn-stem"] == 7 != steps["full"]


INVALID = {
    "locl.window": "no part, task or mechanism called 'locl'; did you mean local?",
    "bigbird.block": "'bigbird.block' applies to no run of this command; its tasks are recall, "
    "copying; its mechanisms are local, full",
    "listops.steps": "'listops.steps' applies to no run of this command; its tasks are recall, ",
    "full.window": "mechanism 'full' has no option 'window'; it has sink_logit",
    "local.windw": "mechanism 'local' has no option 'windw'; did you mean window?",
    "local.mechanism.windw": "no option of mechanism 'local' called 'windw'; did you mean window?",
    "recall.stps": "task 'recall' has no option 'stps'; did you mean steps",
    "recall.block": "task 'recall' has no option 'block'",
    "recall.copying.steps": "names two tasks",
    "local.full.steps": "names two mechanisms",
    "local.": "mechanism 'local' has no option ''; it has window",
    "local": "'local' names no field",
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_setting_is_rejected(name):
    with pytest.raises(LongspanError) as raised:
        grid("diagnostic", **DIAGNOSTIC, changes={name: 8})
    assert INVALID[name] in str(raised.value)


def test_search_takes_limited_settings_and_grids():
    space = SearchSpace(
        grid={"training.learning_rate": [1e-3, 1e-2], "local.window": [2, 4]},
        changes={"recall.steps": 8, "full.batch_size": 2},
    )
    found, _ = searches("diagnostic", space, tasks=["recall"], mechanisms=["local", "full"])
    assert [len(one.trials) for one in found] == [4, 2]
    local, full = found
    assert set(local.grid) == {"training.learning_rate", "mechanism.window", "seed"}
    assert {x.config.mechanism.options["window"] for x in local.experiments} == {2, 4}
    assert all(x.overrides["training.steps"] == 8 for x in local.experiments + full.experiments)
    assert all("training.batch_size" not in x.overrides for x in local.experiments)
    with pytest.raises(OptionError, match=r"'text\.steps' applies to no run"):
        searches("diagnostic", SearchSpace(grid=space.grid, changes={"text.steps": 1}))
    with pytest.raises(OptionError, match=r"training\.steps is both overridden and in the grid"):
        search("diagnostic", "recall", "local", SearchSpace(
            grid={"recall.steps": [1, 2]}, changes={"local.steps": 3}
        ))  # fmt: skip


def test_overrides_hold_only_values_that_differ_from_the_protocol():
    protocol = get("diagnostic")
    window = protocol.options_for("recall", "local")["window"]
    same = {"local.window": window, "recall.learning_rate": 2e-3, "training.steps": 2_000}
    assert protocol.row("recall", "local", 0, same).overrides == {}
    # 1 and 1.0 are one value.
    assert protocol.row("recall", "local", 0, {"training.max_grad_norm": 1}).overrides == {}
    (value,) = protocol.row("recall", "local", 0, {"recall.learning_rate": 1}).overrides.values()
    assert type(value) is float


def test_no_mechanism_has_the_name_of_a_task_or_part():
    from longspan.config.run import PARTS
    from longspan.tasks import TASKS

    assert not {*MECHANISMS, *(r.name for r in get("lra-paper").named_rows)} & {*TASKS, *PARTS}
