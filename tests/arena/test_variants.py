"""Named rows of ablations: mechanisms with other options or global tokens, and scaled models."""

import dataclasses

import pytest

from longspan.arena import get, grid
from longspan.arena.model import model_config, num_parameters
from longspan.attention import build as build_mechanism
from longspan.config import flatten
from longspan.errors import OptionError, UnknownNameError
from longspan.tasks import build

ABLATIONS = get("xiong-ablations")
VARIANTS = [x for x in ABLATIONS.named_rows if x.kind == "variant"]
TASK = "newsgroups"


def row(name, **changes):
    return ABLATIONS.row(TASK, name, 0, changes)


def mechanism_of(name):
    config = row(name).config
    return build_mechanism(config.mechanism.name, **config.mechanism.options)


def differing(name, other):
    mine, theirs = flatten(row(name).config), flatten(row(other).config)
    return {field: x for field, x in mine.items() if theirs[field] != x}


def test_variants_differ_from_their_mechanism_in_what_their_name_says():
    assert differing("local-no-globals", "local") == {"task.global_tokens": "none"}
    assert differing("disjoint-passage-globals", "disjoint") == {"task.global_tokens": 64}
    assert differing("disjoint-256", "disjoint") == {"mechanism.block": 256}
    for variant in VARIANTS:
        found = set(differing(variant.name, variant.mechanism))
        assert found == set(variant.changes)
        assert row(variant.name).overrides == {"variant": variant.name}


@pytest.mark.parametrize(
    ("overlapping", "disjoint", "keys"),
    [("blockwise-16", "disjoint-32", 32), ("blockwise", "disjoint", 128),
     ("blockwise-128", "disjoint-256", 256)],
)  # fmt: skip
def test_overlap_is_compared_at_equal_numbers_of_keys(overlapping, disjoint, keys):
    """Inside a long text, every token of both rows sees as many keys."""
    tokens = 4 * keys
    for name in (overlapping, disjoint):
        seen = mechanism_of(name).pattern.dense(tokens)[0].sum(-1)
        assert set(seen[keys:-keys].flatten().tolist()) == {keys}


def test_table_of_a_protocol_has_its_rows_and_seeds():
    experiments, left_out = grid("xiong-ablations", tasks=[TASK])
    assert left_out == []
    assert {x.row_name for x in experiments} == set(ABLATIONS.rows)
    assert {x.seed for x in experiments} == {0, 1, 2, 3}
    assert len({x.name for x in experiments}) == len(ABLATIONS.rows) * 4
    chosen, _ = grid("xiong-ablations", tasks=[TASK], mechanisms=["disjoint-32"], seeds=[7])
    assert [(x.row_name, x.mechanism, x.seed) for x in chosen] == [("disjoint-32", "disjoint", 7)]


def test_rows_without_a_name_differ_in_their_record_from_variants():
    """The same options by `--set` are an override; by the name of a row they are not."""
    named, changed = row("disjoint-32"), row("disjoint", **{"mechanism.block": 32})
    assert named.hash == changed.hash
    assert changed.overrides == {"mechanism.block": 32}
    assert named.name != changed.name


def test_variants_are_limited_and_refused_like_reference_rows():
    changed = ABLATIONS.row(TASK, "disjoint-32", 0, {"disjoint-32.steps": 9, "training.steps": 7})
    assert changed.config.training.steps == 9
    assert ABLATIONS.row(TASK, "disjoint-64", 0, {"disjoint-32.steps": 9}).overrides == {
        "variant": "disjoint-64"
    }
    with pytest.raises(OptionError, match=r"sets mechanism\.block=32, got 8"):
        row("disjoint-32", **{"mechanism.block": 8})
    with pytest.raises(UnknownNameError, match="'smoke' has no reference row 'disjoint-32'"):
        get("smoke").row("listops", "disjoint-32", 0)
    limited = dataclasses.replace(VARIANTS[0], tasks=("text",))
    protocol = dataclasses.replace(ABLATIONS, named_rows=(limited,), rows=())
    with pytest.raises(OptionError, match=r"variant 'local-no-globals' is a row of text only"):
        protocol.row(TASK, "local-no-globals", 0)


def test_scale_multiplies_layers_heads_and_widths():
    base, double = row("full").config.model, row("full-double").config.model
    assert (base.num_hidden_layers, base.num_attention_heads, base.hidden_size) == (2, 4, 128)
    assert (double.num_hidden_layers, double.num_attention_heads) == (4, 8)
    assert (double.hidden_size, double.intermediate_size) == (256, 512)
    half = row("full-half").config.model
    assert (half.num_hidden_layers, half.num_attention_heads, half.hidden_size) == (1, 2, 64)
    assert {x.name for x in ABLATIONS.named_rows if x.kind == "reference row"} == {
        f"{name}-{size}" for name in ("full", "blockwise") for size in ("half", "double")
    }


def test_scale_is_set_for_a_run_a_task_or_a_row_and_recorded_by_field():
    for name in ("model.scale", f"{TASK}.scale", "full.model.scale"):
        made = row("full", **{name: 0.5})
        assert made.overrides == {
            "model.hidden_size": 64,
            "model.num_hidden_layers": 1,
            "model.num_attention_heads": 2,
            "model.intermediate_size": 128,
            "model.classifier_hidden_size": 64,
        }
        # The record's overrides give the run again.
        assert row("full", **made.overrides) == made
    named = row("full", **{"model.scale": 2, "model.num_hidden_layers": 3}).config.model
    assert (named.num_hidden_layers, named.hidden_size) == (3, 256)
    assert row("full", **{"model.scale": 1}).overrides == {}


def test_scaled_models_can_be_built_with_every_mechanism():
    for name in ("longformer", "linformer", "sinkhorn"):
        experiment = row(name, **{"model.scale": 1.5})
        task = build(TASK, experiment.config.task.options)
        model_config(experiment.config, task)
        assert num_parameters(experiment.config, task) > 0


@pytest.mark.parametrize("factor", [0, -1, float("inf"), "big", True, None])
def test_impossible_scales_are_refused(factor):
    with pytest.raises(OptionError, match=r"model\.scale must be a positive number, such as 0\.5"):
        row("full", **{"model.scale": factor})
