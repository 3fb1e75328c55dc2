"""Protocols of left-to-right language models: phases, rows of the papers, sizes."""

import dataclasses
import math

import pytest

from longspan.arena import get, override
from longspan.arena.grid import find_refusal
from longspan.arena.model import full_num_parameters, num_parameters
from longspan.attention import MECHANISMS
from longspan.attention import build as build_mechanism
from longspan.config import StageConfig, flatten
from longspan.tasks import TASKS, build

NAMES = (
    *("longformer-char", "transformer-xl", "shortformer", "compressive-transformer"),
    "long-short-char",
)
ROWS = [(name, row.name, task) for name in NAMES for row in get(name).named_rows
        for task in row.tasks]  # fmt: skip


def row(protocol, name, task):
    return get(protocol).row(task, name, 0)


def differing(protocol, name, other, task):
    mine, theirs = (flatten(row(protocol, x, task).config) for x in (name, other))
    return {field for field in mine | theirs if mine.get(field) != theirs.get(field)}


@pytest.mark.parametrize(("protocol", "name", "task"), ROWS)
def test_rows_of_the_papers_are_built_with_every_stage(protocol, name, task):
    made = row(protocol, name, task)
    assert find_refusal(made) is None
    stages = made.config.stages()
    assert sum(x.training.steps for x in stages) == made.config.training.steps
    for stage in stages:
        assert stage.training.gradient_accumulation_steps <= stage.training.batch_size
    assert stages[-1].task == made.config.task


@pytest.mark.parametrize("protocol", NAMES)
def test_every_causal_mechanism_has_a_row_in_every_stage(protocol):
    for task in get(protocol).tasks:
        for name, cls in MECHANISMS.items():
            if cls.traits.causal:
                made = row(protocol, name, task)
                stages = made.config.stages()
                assert {x.mechanism.name for x in stages} == {name}
                shortest = min(stages, key=lambda x: x.task.options["length"])
                assert find_refusal(dataclasses.replace(made, config=shortest)) is None


@pytest.mark.parametrize("protocol", NAMES)
def test_published_scores_name_rows_of_the_protocol(protocol):
    scored = [(task, x) for task in TASKS for x in TASKS[task].info.published
              if x.protocol == protocol]  # fmt: skip
    assert scored
    for task, score in scored:
        assert score.mechanism in get(protocol).row_names
        assert task in get(protocol).row_tasks(score.mechanism)
        assert score.metric in TASKS[task].info.metrics


FIRST = [32, 32, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512]


@pytest.mark.parametrize("name", ["longformer", "longformer-small"])
def test_windows_of_longformer_double_with_each_phase(name):
    stages = row("longformer-char", name, "enwik8").config.stages()
    for phase, stage in enumerate(stages):
        assert stage.mechanism.options["window"] == [2**phase * window for window in FIRST]
    assert stages[-1].mechanism.options["window"][-1] == 8_192
    # The fixed window of table 4 is the average, 230.
    assert sum(FIRST) / len(FIRST) == pytest.approx(230, abs=1)


def test_two_heads_of_the_upper_layers_have_gaps():
    config = row("longformer-char", "longformer-small", "text8").config
    large = row("longformer-char", "longformer-large", "enwik8").config
    gaps = [1] * 15 + [2] * 5 + [3] * 5 + [4] * 5
    assert large.mechanism.options["dilation"] == [[1] * 6 + [gap] * 2 for gap in gaps]
    for layer, gap in ((0, 1), (11, 4)):
        options = {**config.mechanism.options, "window": 2}
        made = build_mechanism("longformer", heads=8, head_dim=64, layer=layer, causal=True,
                               **options)  # fmt: skip
        seen = made.pattern.dense(12)[:, -1]  # of the last query, by head
        assert seen[-1].nonzero().flatten().tolist() == [11 - 2 * gap, 11 - gap, 11]
        assert seen[0].nonzero().flatten().tolist() == [9, 10, 11]


def test_large_longformer_has_the_steps_and_sizes_of_the_paper():
    config = row("longformer-char", "longformer-large", "enwik8").config
    steps = [350_000, 25_000, 10_000, 5_000, 5_000]  # table 12
    assert [x.training.steps for x in config.stages()] == steps
    assert (config.model.num_hidden_layers, config.model.hidden_dropout_prob) == (30, 0.4)
    windows = config.stages()[0].mechanism.options["window"]
    assert (len(windows), windows[0], windows[-1]) == (30, 32, 512)
    assert windows == sorted(windows)


def test_rows_of_table_4_differ_in_windows_or_dilation_alone():
    found = differing("longformer-char", "longformer", "longformer-small", "enwik8")
    assert found == {"model.position"}  # the model of the paper with rotary positions
    compared = ("decreasing", "fixed", "no-dilation", "dilation-2-heads")
    found = {x: differing("longformer-char", x, "increasing", "text8") for x in compared}
    window = {"mechanism.window"}
    assert found == dict(
        zip(compared, (window, window, set(), {"mechanism.dilation"}), strict=True)
    )
    config = row("longformer-char", "increasing", "text8").config
    assert config.mechanism.options["window"] == FIRST
    assert (config.training.steps, config.training.stages) == (150_000, ())
    first = row("longformer-char", "longformer-small", "text8").config.stages()[0]
    assert (config.task, config.model) == (first.task, first.model)
    shrunk = row("longformer-char", "decreasing", "text8").config
    assert shrunk.mechanism.options["window"] == FIRST[::-1]


# Press et al. 2021, section 2: 9,216 tokens on a GPU.
WORDS_OF_AN_UPDATE = 73_728


@pytest.mark.parametrize("name", ["full", "staged", "staged-sliding", "pia-cache", "shortformer"])
def test_stages_of_shortformer_have_equal_updates(name):
    stages = row("shortformer", name, "wikitext_103").config.stages()
    for stage in stages:
        assert stage.training.batch_size * stage.task.options["length"] == WORDS_OF_AN_UPDATE


def test_updates_of_an_epoch_show_eight_gpus():
    """The README of shortformer has 70,050 updates in 50 epochs, and 140,100 in 100."""
    an_epoch = math.ceil(103_227_021 / WORDS_OF_AN_UPDATE)
    for name, epochs in (("staged", 50), ("shortformer", 100)):
        config = row("shortformer", name, "wikitext_103").config
        assert config.training.stages[0].steps == epochs * an_epoch


def test_short_inputs_of_shortformer_come_first():
    def found(name):
        return [
            (x.training.steps, x.task.options["length"], x.mechanism.options.get("memory"))
            for x in row("shortformer", name, "wikitext_103").config.stages()
        ]

    assert found("staged") == [(70_050, 128, None), (215_950, 3_072, None)]
    assert found("shortformer") == [(140_100, 128, 128), (145_900, 512, 512)]
    assert found("pia-cache") == [(286_000, 512, 512)]
    sliding = row("shortformer", "staged-sliding", "wikitext_103").config
    assert sliding.stages()[1].task.options["stride"] == 512
    assert sliding.stages()[0].task.options["evaluation"] == "segments"


@pytest.mark.parametrize("name", ["staged", "staged-sliding", "shortformer"])
def test_one_schedule_spans_both_stages_of_shortformer(name):
    """Both commands of the README have the same warmup, period and last update."""
    config = row("shortformer", name, "wikitext_103").config
    for stage in config.stages():
        training = stage.training
        assert (training.schedule, training.schedule_over) == ("cosine", "run")
        assert (training.warmup_steps, training.learning_rate) == (16_000, 2.5e-4)


@pytest.mark.parametrize(
    ("name", "task", "batch", "steps"),
    [
        ("compressive", "enwik8", 64, 104_000),
        ("max-pooling", "enwik8", 64, 104_000),
        ("transformer_xl", "wikitext_103", 128, 516_000),
        ("compressive", "pg19", 512, 516_000),
    ],
)
def test_updates_of_compressive_transformer_see_four_batches_after_60_000(name, task, batch, steps):
    """The same examples pass through the model at a time, under one schedule."""
    first, last = row("compressive-transformer", name, task).config.stages()
    found = [(x.training.steps, x.training.batch_size) for x in (first, last)]
    assert found == [(60_000, batch), (steps - 60_000, 4 * batch)]
    at_once = {
        x.training.batch_size / x.training.gradient_accumulation_steps for x in (first, last)
    }
    assert len(at_once) == 1
    assert last.training.schedule_over == "run"
    assert (first.task, first.mechanism) == (last.task, last.mechanism)


def test_large_long_short_has_the_batches_of_its_script():
    stages = row("long-short-char", "long-short-large", "enwik8").config.stages()
    assert [x.training.batch_size for x in stages] == [32, 64, 32]


# Parameters in millions: Beltagy et al. 2020, tables 2 and 3; Dai et al. 2019, tables 1
# and 2; Press et al. 2021, table 1.
PUBLISHED_SIZES = [
    ("longformer-char", "longformer-small", "enwik8", 41),
    ("longformer-char", "longformer-large", "enwik8", 102),
    ("transformer-xl", "transformer_xl", "enwik8", 41),
    ("transformer-xl", "transformer-xl-24", "enwik8", 277),
    ("compressive-transformer", "transformer_xl", "enwik8", 277),
    ("transformer-xl", "transformer_xl", "wikitext_103", 151),
    ("shortformer", "full", "wikitext_103", 247),
]


@pytest.mark.parametrize(("protocol", "name", "task", "millions"), PUBLISHED_SIZES)
def test_numbers_of_parameters_are_those_of_the_papers(protocol, name, task, millions):
    config = row(protocol, name, task).config
    found = num_parameters(config, build(task, config.task.options)) / 1e6
    assert found == pytest.approx(millions, rel=0.02)


def test_large_model_of_words_has_the_weights_of_its_script():
    """Layers of width 1,024 with positions, and the clusters; the paper says 257 million."""
    layers = 18 * (5 * 1_024**2 + 2 * 1_024 * 4_096)
    widths = {1_024: 20_000, 256: 20_000, 64: 160_000, 16: 67_736}
    words = sum(width * (number + 1_024) for width, number in widths.items())
    config = row("transformer-xl", "transformer-xl-large", "wikitext_103").config
    found = num_parameters(config, build("wikitext_103", config.task.options))
    assert found == pytest.approx(layers + words, rel=0.001)
    assert f"{found / 1e6:.0f} million weights" in get("transformer-xl").differs


@pytest.mark.parametrize(
    ("protocol", "name"),
    [("transformer-xl", "transformer-xl-large"), ("compressive-transformer", "compressive")],
)
def test_large_models_of_words_have_the_clusters_of_transformer_xl(protocol, name):
    model = row(protocol, name, "wikitext_103").config.model
    assert (model.adaptive_cutoffs, model.adaptive_factor) == ((20_000, 40_000, 200_000), 4)


def test_only_words_have_clusters():
    for protocol in NAMES:
        tasks = {x for x in get(protocol).tasks if x != "wikitext_103"}
        assert not any(get(protocol).recipe(x).model.adaptive_cutoffs for x in tasks)


def test_parameters_of_full_are_counted_beside_stages_of_another_mechanism():
    """`mechanism.segment` of a stage is no option of `full`."""
    made = row("transformer-xl", "transformer_xl", "enwik8")
    stages = (StageConfig(steps=1, changes={"mechanism.segment": 8}), StageConfig(steps=1))
    staged = override(made, {"training.stages": stages})
    task = build("enwik8", made.config.task.options)
    expected = full_num_parameters(made.config, task)
    assert full_num_parameters(staged.config, task) == expected > 0
