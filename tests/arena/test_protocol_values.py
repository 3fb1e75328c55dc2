"""Recipes: values, peak rates, options of mechanisms, grids and choices, against their sources."""

import math

import pytest

from longspan.arena import PROTOCOLS, get, override
from longspan.arena.protocols.compare import recipe_values
from longspan.attention import MECHANISMS
from longspan.tasks import TASKS, build
from longspan.tasks.lra.masked_inputs import MASK_PROBABILITIES
from longspan.training.schedule import compute_learning_rate
from published_values import check_sources

FIELDS = (
    *("model.num_hidden_layers", "model.num_attention_heads", "model.hidden_size"),
    *("model.intermediate_size", "model.pooling", "model.norm", "model.position"),
    *("model.hidden_dropout_prob", "model.attention_dropout", "training.batch_size"),
    *("training.steps", "training.learning_rate", "training.warmup_steps"),
    *("training.weight_decay", "training.schedule", "training.selection"),
    *("training.adam_betas", "training.adam_epsilon", "training.precision"),
)
TORCH_ADAM = {"training.adam_betas": [0.9, 0.999], "training.adam_epsilon": 1e-8}
BF16, MEAN = {"training.precision": "bf16"}, {"model.pooling": "mean"}
BEST = {"training.selection": "best validation"}
RSQRT = {"training.schedule": "rsqrt"}
# Of all fields above those whose value no source states alike: choices of ours, for every task.
CHOSEN = {
    "compressive-transformer": {
        **TORCH_ADAM, **MEAN, **BEST, "model.position": "rotary", "training.weight_decay": 0.0,
        "training.precision": "no",
    },
    "long-short-char": {
        **TORCH_ADAM, **MEAN, **BEST, **BF16, "model.position": "rotary",
        "model.attention_dropout": 0.2,
    },
    "longformer-char": {**TORCH_ADAM, **MEAN, **BEST, **BF16, "model.position": "rotary"},
    "lra-small": BF16,
    "s4-style": {"model.position": "sinusoidal"},
    "shortformer": {**TORCH_ADAM, **MEAN, **BF16, "training.learning_rate": 2.5e-4},
    "transformer-xl": {**MEAN, "model.position": "rotary"},
    # five epochs of nine tenths of 43,738 questions
    "wikihop-ablation": {**BF16, "training.steps": 5 * 39_364 // 32},
}  # fmt: skip
# And those of single tasks.
CHOSEN_FOR = {
    # dropout of models of the same size
    "compressive-transformer enwik8": {
        "model.hidden_dropout_prob": 0.15, "model.attention_dropout": 0.15,
        "training.batch_size": 4 * 64,
    },
    "compressive-transformer wikitext_103": {
        "model.hidden_dropout_prob": 0.2, "model.attention_dropout": 0.2,
    },
    "compressive-transformer pg19": {
        "model.hidden_dropout_prob": 0.1, "model.attention_dropout": 0.1, "model.hidden_size": 1024,
        "model.num_attention_heads": 16, "model.intermediate_size": 4096,
    },
    "documents text": {"training.steps": 15 * (19_860 // 32), "training.warmup_steps": 930},
    "documents arxiv_summarization": {**MEAN, "training.steps": 5 * (203_037 // 16)},
    "lra-paper image": {**RSQRT, "model.hidden_size": 64},
    "lra-paper pathfinder": RSQRT,
    "lra-paper path_x": {
        **RSQRT, "model.num_hidden_layers": 4, "model.num_attention_heads": 8,
        "model.hidden_size": 128, "model.intermediate_size": 128, "training.learning_rate": 0.01,
    },
    **{
        f"s4-style {task}": {"training.learning_rate": 1e-3}
        for task in ("listops", "text", "retrieval", "image")
    },
    **{
        f"self-pretraining {task}": MEAN
        for task in (*(f"masked_{x.info.name}" for x in MASK_PROBABILITIES), "path_x")
    },
    # rotary positions need heads of an even width
    "transformer-xl wikitext_103": {"model.position": "sinusoidal"},
    "xiong text": BF16,
    "xiong retrieval": BF16,
}  # fmt: skip
SOURCED = [p for p in PROTOCOLS.values() if p.source != "longspan"]
CASES = sorted(f"{p.name} {task}" for p in SOURCED for task in p.tasks)


def recipe(case):
    protocol, task = case.split()
    return get(protocol).recipe(task)


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_a_source_or_known_choices(case):
    """Each value equals the transcription of a source, or one of the tables above."""
    protocol, task = case.split()
    checks = [x for x in check_sources(get(protocol)) if x.task == task]
    equal = {x.field for x in checks if x.verdict == "equal"}
    values = recipe_values(get(protocol), task, ())
    found = {field: values[field] for field in FIELDS if field not in equal}
    assert found == {**CHOSEN.get(protocol, {}), **CHOSEN_FOR.get(case, {})}


LANGUAGE = (
    *("longformer-char", "transformer-xl", "shortformer", "compressive-transformer"),
    "long-short-char",
)


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


def test_pair_heads():
    with_pairs = [p for p in PROTOCOLS.values() if "retrieval" in p.tasks]
    heads = {p.name: p.recipe("retrieval").model.pair_head for p in with_pairs}
    assert heads.pop("lra-repo") == "concatenate"
    assert set(heads.values()) == {"interaction"}


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


# NYS gradients: eval_frequency
EVALUATED = {"listops": 50, "text": 500, "retrieval": 300, "image": 175, "pathfinder": 312}


def test_evaluation_intervals_of_lra_small():
    found = {task: recipe(f"lra-small {task}").training.evaluate_every for task in EVALUATED}
    assert found == EVALUATED


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


# Beltagy et al. 2020, section 3.1: global attention on CLS, six projections.
PUBLISHED_LONGFORMER = {"first_global": True, "global_projections": True}
# Options of mechanisms in the sources; LRA models/*, NYS extra_attn_config, XF PR 192
OPTIONS = {
    "lra-repo listops bigbird": {"block": 64, "num_random_blocks": 3},
    "lra-repo listops linformer": {"rank": 16, "sharing": "key_value"},
    "lra-repo listops reformer": {"chunk": 10, "hashes": 1, "buckets": 10},
    "lra-repo listops strided_local": {"block": 50},
    "lra-repo image strided_local": {"block": 64},
    "lra-repo text sinkhorn": {"block": 50, "iterations": 1},
    "lra-repo pathfinder sinkhorn": {"block": 64, "iterations": 1},
    "lra-repo text longformer": {"window": 256, **PUBLISHED_LONGFORMER},
    "lra-small text longformer": {"window": 8, **PUBLISHED_LONGFORMER},
    "lra-repo text performer": {"feature_map": "relu", "features": None},
    "lra-repo text sparse_transformer": {"kind": "fixed", "stride": 50, "summary": 10},
    "lra-small text nystrom": {"landmarks": 128, "conv_kernel_size": 35},
    "lra-small text linformer": {"rank": 256},
    "lra-small image performer": {"features": 256},
    "lra-small image reformer": {"chunk": 64, "hashes": 2},
    "xiong text nystrom": {"landmarks": 64, "conv_kernel_size": 35},
    "xiong text long_short": {"window": 8, "rank": 32, "variant": "xiong"},
    "xiong text reformer": {"chunk": 64, "hashes": 4},
    "xiong listops reformer": {"chunk": 64, "hashes": 2},
    "xiong text sinkhorn": {"block": 8},
    "xiong text local": {"window": 8},
    "xiong text blockwise": {"block": 16},
    "xiong listops blockwise": {"block": 8},
    "xiong retrieval blockwise": {"block": 32},
    "xiong retrieval disjoint": {"block": 64},
    "xiong text linformer": {"rank": 4096 // 16},
    "xiong listops linformer": {"rank": 2048 // 16},
    "xiong listops performer": {"features": 64},
    "xiong text performer": {"features": 256},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_mechanism_options(case):
    protocol, task, mechanism = case.split()
    assert get(protocol).options_for(task, mechanism) == OPTIONS[case]


def test_xiong_grids():
    # XF run_grid_search.py at 61554f67: rates x warmup x weight decay x seeds
    counts = {task: math.prod(map(len, grid.values())) for task, grid in get("xiong").grids.items()}
    assert counts == {"listops": 2 * 1 * 2 * 4, "text": 3 * 1 * 3 * 4, "retrieval": 2 * 2 * 2 * 3}
    assert get("xiong").grids["text"]["training.learning_rate"] == (1e-4, 3e-4, 5e-5)
    assert get("xiong").grids["retrieval"]["seed"] == (14, 3, 5)


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
