"""Searches: trials of a grid, and rejection of invalid grids."""

import pytest
from search_cases import small_search

import tiny
from longspan.arena import SearchSpace, get, search, searches
from longspan.attention import MECHANISMS
from longspan.errors import OptionError, UnknownNameError

BATCH_GRID = {"training.batch_size": [4]}


def hyperparameters(experiment):
    training = experiment.config.training
    rates = (training.learning_rate, training.warmup_steps, training.weight_decay)
    return (*rates, experiment.seed)


def test_search_crosses_all_combinations_and_seeds():
    experiments = search("xiong", "listops", "local", SearchSpace()).experiments
    own = get("xiong").grids["listops"]
    assert len(experiments) == 2 * 1 * 2 * 4
    tried = [hyperparameters(x) for x in experiments]
    assert len(set(tried)) == 16
    assert tried[:5] == [
        *((1e-4, 2_000, 0.02, seed) for seed in own["seed"]),
        (1e-4, 2_000, 0.05, own["seed"][0]),
    ]
    assert experiments[0] == get("xiong").experiment("listops", "local", 1234)
    assert all(x.overrides == {} for x in experiments)


def test_only_values_absent_from_protocol_grid_are_overrides():
    def made(**space):
        space = SearchSpace(seeds=[0], **space)
        return search("xiong", "listops", "local", space).experiments

    replaced = made(grid={"training.learning_rate": [3e-4, 7e-4]})
    assert [x.config.training.learning_rate for x in replaced] == [3e-4, 3e-4, 7e-4, 7e-4]
    assert [x.overrides for x in replaced] == [{}, {}, *[{"training.learning_rate": 7e-4}] * 2]
    added = made(grid={"model.num_hidden_layers": [2, 3]})
    assert len(added) == 8
    assert [x.overrides for x in added[:2]] == [{}, {"model.num_hidden_layers": 3}]
    changed = {"model.hidden_dropout_prob": 0.3}
    assert all(x.overrides == changed for x in made(changes=changed))


def test_reference_rows_are_searched():
    grid = {"training.learning_rate": [1e-3, 2e-3]}
    found = search("lra-paper", "image", "cnn-stem", SearchSpace(grid=grid))
    assert found.title == "cnn-stem on image"
    assert {x.overrides["row"] for x in found.experiments} == {"cnn-stem"}
    assert {x.config.model.stem for x in found.experiments} == {"convolution"}
    space = SearchSpace(grid={"model.stem": ["convolution", "none"]})
    with pytest.raises(OptionError, match=r"row 'cnn-stem' sets model\.stem=convolution"):
        search("lra-paper", "image", "cnn-stem", space)


def test_given_seeds_replace_seeds_of_grid():
    def seeds(protocol, **space):
        found = search(protocol, "text", "local", SearchSpace(**space))
        return {x.seed for x in found.experiments}

    assert seeds("xiong", seeds=[7, 8, 7]) == {7, 8}
    assert seeds("smoke", grid=BATCH_GRID) == {0}
    twice = r"seeds are given twice: \[1\], and \[0, 1\] in the grid"
    with pytest.raises(OptionError, match=twice):
        small_search(seeds=[1])


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ({"training.learning_rat": [1]}, UnknownNameError, "called 'learning_rat'; did you mean l"),
        ({"trianing.steps": [1]}, UnknownNameError, "called 'trianing'; did you mean training"),
        ({"mechanism.windw": [1]}, UnknownNameError, "called 'windw'; did you mean window"),
        ({"sede": [1]}, OptionError, "'sede' names no field; use PART.FIELD"),
        (
            {"training.max_grad_norm": [1.0, "no"]},
            OptionError,
            "max_grad_norm should be a valid number, got 'no'",
        ),
        (
            {"training.max_grad_norm": []},
            OptionError,
            r"the grid of training.max_grad_norm must be a list of values, got \[\]",
        ),
        ({"training.schedule": "linear"}, OptionError, "must be a list of values, got 'linear'"),
        (
            {"seed": [0, -1], "training.max_grad_norm": [4]},
            OptionError,
            "seed must be at least 0, got -1",
        ),
        ({"seed": [0, 1]}, OptionError, "'smoke' has no grid for listops; pass one, such as --gri"),
        ({}, OptionError, "protocol 'smoke' has no grid for listops; pass one"),
        (
            {"training.steps": [5]},
            OptionError,
            "training.steps is both overridden and in the grid; pass its one value as a grid, --gr",
        ),
    ],
)
def test_invalid_grids_are_rejected(grid, error, message):
    with pytest.raises(error, match=message):
        small_search(grid=grid)


def test_selection_on_test_split_is_rejected():
    space = SearchSpace(grid=BATCH_GRID, seeds=[0], changes={"task.validation": "test"})
    message = "validation split of text is its test split here, and a search must not select on te"
    with pytest.raises(OptionError, match=message):
        search("smoke", "text", "local", space)
    made, left_out = searches("lra-paper", SearchSpace(grid=BATCH_GRID), mechanisms=["local"])
    assert "text" not in {one.trials[0].experiment.task for one in made}
    assert [x.name for x in left_out] == ["text"]
    with pytest.raises(OptionError, match="protocol 'smoke' has no grid for any of its tasks"):
        searches("smoke", SearchSpace())


def test_selection_on_test_split_is_checked_in_every_combination():
    for values in (["test"], [5000, "test"]):
        with pytest.raises(OptionError, match="split of text is its test split here"):
            search("smoke", "text", "local", SearchSpace(grid={"task.validation": values}))
    held_out = search("lra-paper", "text", "local", SearchSpace(grid={"task.validation": [5000]}))
    assert all(x.config.task.options["validation"] == 5000 for x in held_out.experiments)


def test_mechanism_options_are_not_applied_to_baseline():
    changes = {"mechanism.window": 8, "task.min_length": 4}
    with pytest.raises(UnknownNameError, match="option of task 'text' called 'min_length'"):
        searches("smoke", SearchSpace(grid=BATCH_GRID, changes=changes), mechanisms=["local"])
    space = SearchSpace(grid=BATCH_GRID, changes={"mechanism.window": 8})
    (made, *_), _ = searches("smoke", space, mechanisms=["local"])
    assert made.experiments[0].config.mechanism.options["window"] == 8


def test_search_under_torchrun_is_rejected(monkeypatch):
    for name, value in tiny.LAUNCH.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="a search runs in one process, but torchrun has started"):
        small_search()


def test_unfit_combinations_are_rejected_if_named_else_skipped():
    # The hidden size is not a multiple of three.
    space = SearchSpace(grid={"model.num_attention_heads": [2, 3]})
    with pytest.raises(OptionError, match="must be a multiple of"):
        searches("smoke", space, tasks=["listops"], mechanisms=["local"])
    made, left_out = searches("smoke", space, tasks=["listops"])
    assert (made, len(left_out)) == ([], len(MECHANISMS))
    assert "must be a multiple of" in left_out[0].reason
