"""Recipes: values, peak rates, options of mechanisms, grids and choices, against their sources."""

import pytest

from longspan.arena import PROTOCOLS, get, override
from longspan.arena.protocols.compare import recipe_values
from longspan.attention import MECHANISMS
from longspan.tasks import TASKS, build
from longspan.training.schedule import compute_learning_rate

SOURCED = [p for p in PROTOCOLS.values() if p.source != "longspan"]
CASES = sorted(f"{p.name} {task}" for p in SOURCED for task in p.tasks)


def recipe(case):
    protocol, task = case.split()
    return get(protocol).recipe(task)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_models_add_no_positions_to_mechanisms_that_carry_them(name):
    for task in get(name).tasks:
        if get(name).recipe(task).model.position == "none":
            continue
        positions = {m: get(name).config(task, m).model.position for m in MECHANISMS}
        without = {m for m, position in positions.items() if position == "none"}
        assert without == {m for m, cls in MECHANISMS.items() if cls.traits.carries_positions}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_longformer_is_not_local(name):
    # Language models have no global tokens (Beltagy et al. 2020, section 4.1).
    encoders = [x for x in get(name).tasks if TASKS[x].info.head != "causal_lm"]
    for task in encoders:
        options = get(name).config(task, "longformer").mechanism.options
        assert options["global_projections"]
        # The first token is global, by the mechanism or as one of the task's global tokens.
        made = build(task, get(name).config(task, "longformer").task.options)
        assert options["first_global"] or made.num_global_tokens


# Longformer, table 12; train.py of Transformer-XL; shortformer's README; Rae et al. 2020, section 5
CLIPPED = {
    "longformer-char": 0.25,
    "transformer-xl": 0.25,
    "shortformer": 0.1,
    "compressive-transformer": 0.1,
}


def test_only_lra_path_x_and_language_models_clip_gradients():
    norms = {case: recipe(case).training.max_grad_norm for case in CASES}
    found = {case for case, norm in norms.items() if norm is not None}
    language = {case for case in CASES if case.split()[0] in CLIPPED}
    assert found == {"lra-repo path_x", "lra-paper path_x", *language}
    assert all(norms[case] == CLIPPED[case.split()[0]] for case in language)


# The rule of LRA utils/train_utils.py, evaluated by hand: 0.05 / sqrt(8000), 0.05 / sqrt(1000),
# 0.05 * (5000 / 8000) / sqrt(8000), 0.01 / sqrt(175), 0.01 / sqrt(312).
PEAKS = {
    "lra-repo text": 5.590e-4,
    "lra-repo listops": 1.581e-3,
    "lra-repo retrieval": 3.494e-4,
    "lra-paper retrieval": 3.494e-3,
    "lra-paper image": 7.559e-4,
    "lra-paper pathfinder": 5.661e-4,
}


@pytest.mark.parametrize("case", PEAKS)
def test_peak_learning_rates_of_rsqrt_schedule(case):
    training = recipe(case).training
    rates = [compute_learning_rate(training, step) for step in range(training.steps)]
    assert max(rates) == pytest.approx(PEAKS[case], rel=1e-3)
    assert rates.index(max(rates)) == min(training.warmup_steps, training.steps) - 1


GRIDS = [(p.name, t, f) for p in PROTOCOLS.values() for t in p.grids for f in p.grids[t]]


@pytest.mark.parametrize(("protocol", "task", "field"), GRIDS)
def test_grid_values_are_valid(protocol, task, field):
    values = get(protocol).grids[task][field]
    assert len(set(values)) == len(values) > 0
    if field == "seed":
        assert all(isinstance(seed, int) and seed >= 0 for seed in values)
        return
    recipe_of_case = get(protocol).experiment(task, "full", 0)
    for value in values:
        override(recipe_of_case, {field: value})
    # S4's batch size is not in the grid of SPT.
    if field != "training.batch_size":
        assert recipe_values(get(protocol), task, ())[field] in values


@pytest.mark.parametrize("name", PROTOCOLS)
def test_choices_have_reasons_and_other_values_than_the_recipe(name):
    """Each field of a task has at most one choice."""
    protocol = get(name)
    values = {task: recipe_values(protocol, task, MECHANISMS) for task in protocol.tasks}
    for choice in protocol.choices:
        assert all((choice.tasks, choice.source, choice.why)), choice
        assert all(source for _, source in choice.instead), choice
        own = values[choice.tasks[0]][choice.field]
        assert all(values[task][choice.field] == own for task in choice.tasks), choice
        assert own not in [value for value, _ in choice.instead], choice
    cells = [(choice.field, task) for choice in protocol.choices for task in choice.tasks]
    assert len(set(cells)) == len(cells)


# Fields and tasks on which the sources contradict each other.
CONTRADICTIONS = {
    "lra-paper": [("task.length", "text"), ("training.learning_rate", "retrieval")],
    "lra-repo": [
        ("task.length", "text"),
        ("training.learning_rate", "retrieval"),
        ("model.num_hidden_layers", "listops"),
        ("model.num_hidden_layers", "pathfinder"),
        ("model.hidden_size", "pathfinder"),
        ("model.num_attention_heads", "pathfinder"),
    ],
    "lra-small": [("task.length", "text")],
    "xiong": [("training.learning_rate", "text"), ("mechanism.blockwise.block", "listops")],
    "s4-style": [("training.learning_rate", "path_x"), ("training.steps", "retrieval")],
    "self-pretraining": [("model.pooling", "path_x"), ("task.validation", "text")],
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_between_sources_are_choices(name):
    found = {(c.field, task) for c in get(name).choices for task in c.tasks if c.instead}
    assert set(CONTRADICTIONS[name]) <= found


@pytest.mark.parametrize("name", PROTOCOLS)
def test_last_checkpoint_is_scored_if_validation_is_test(name):
    for task in get(name).tasks:
        recipe_of_case = get(name).recipe(task)
        if recipe_of_case.task_options.get("validation") == "test":
            assert recipe_of_case.training.selection == "last"


def test_choice_prints_as_single_line():
    found = {c.field: c for c in get("lra-repo").choices if c.tasks == ("retrieval",)}
    assert found["training.learning_rate"].describe(0.05) == (
        "0.05 (google-research/long-range-arena, lra_benchmarks/matching/configs/"
        "base_match_config.py); not 0.5 (Tay et al. 2021, Long Range Arena, the text): the "
        "protocol is the repository"
    )
    grid = next(c for c in get("xiong").choices if c.field == "training.learning_rate")
    assert "; not 0.0002 or 5e-05 (" in grid.describe(1e-4)
    assert "\n" not in "".join(c.describe("") for p in PROTOCOLS.values() for c in p.choices)
