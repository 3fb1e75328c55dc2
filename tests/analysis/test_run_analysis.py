"""Analysis of finished runs: measurements, records, and the command `longspan analyze`."""

import copy
import dataclasses
import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch

import tiny
from aan_files import write_by_id
from longspan.analysis import analyze_run, example_rollouts, layers
from longspan.analysis import run_analysis as module
from longspan.analysis.span import uniform_span
from longspan.arena import run
from longspan.arena.finished_run import load_run
from longspan.errors import DataError, InputError, NoWeightsError, OptionError, RunError
from longspan.files import write_json
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.attention_layer import SelfAttention
from longspan.results import (
    Analysis,
    load_results,
    load_side_record,
    load_side_records,
    result_paths,
)
from longspan.results.analysis import RANKS
from longspan.tasks import build
from longspan.tasks.base import Batch
from longspan.tasks.scoring import IGNORE

CHANGES = {"model.num_hidden_layers": 2, "model.pooling": "cls"}


@pytest.fixture(scope="module")
def finished_runs(tiny_cache, tmp_path_factory):
    """Paths and records of two finished runs."""
    paths = tiny.paths(tmp_path_factory.mktemp("runs"), tiny_cache)
    made = [tiny.experiment(name, changes=CHANGES) for name in ("full", "local")]
    for one in made:
        run(one, tiny.listops(tiny_cache), paths)
    return paths, [paths.record_file(one) for one in made]


@pytest.fixture
def copied_runs(finished_runs, tmp_path):
    """Mutable copy of the finished runs."""
    paths, records = finished_runs
    shutil.copytree(paths.runs, tmp_path / "runs")
    paths = dataclasses.replace(paths, runs=tmp_path / "runs")
    return paths, [paths.runs / record.relative_to(finished_runs[0].runs) for record in records]


def build_encoder(seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 16, "hidden_size": 16, "max_position_embeddings": 23}
    return LongspanModel(LongspanConfig(**{**sizes, **fields})).eval()


def build_model(task, seed=0, **fields):
    """Return an untrained model with the head of a task."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": task.vocab_size, "max_position_embeddings": task.length}
    config = LongspanConfig(hidden_size=16, **{**sizes, **fields})
    config.num_labels = task.num_classes
    return task.head(config).eval()


def attend_uniformly(model):
    """Zero the query projections, so that every key has the same weight."""
    for part in model.modules():
        if isinstance(part, SelfAttention):
            torch.nn.init.zeros_(part.query.weight)
            torch.nn.init.zeros_(part.query.bias)
    return model


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("causal", [False, True])
def test_uniform_weights_have_uniform_span(listops, pooling, causal):
    if causal and pooling == "cls":
        pytest.skip("a summary token before the text reads nothing of it")
    rows = np.array([0, 3, 17, 39])
    encoder = attend_uniformly(build_encoder(pooling=pooling, is_decoder=causal))
    measured_spans = module.measure_spans(encoder, listops, rows)
    lengths = listops.dataset.splits["validation"].tokens.lengths[rows]
    assert sorted(measured_spans.lengths.tolist()) == sorted(lengths.tolist())
    expected = [uniform_span([n], causal) for n in measured_spans.lengths.tolist()]
    assert measured_spans.spans.shape == (4, 2, 2)
    for sample, span in zip(measured_spans.spans, expected, strict=True):
        assert sample.ravel().tolist() == pytest.approx([span] * 4)
    assert not measured_spans.negative.any()
    averaged = module._average(measured_spans, listops, "uniform", encoder.config.is_decoder)
    assert averaged.uniform == pytest.approx(averaged.mean.mean)


def test_mechanism_has_the_options_of_the_evaluations(tiny_cache, tmp_path):
    """A window that covers the inputs, in evaluations alone, has the spans of full attention."""
    paths, task = tiny.paths(tmp_path, tiny_cache), tiny.listops(tiny_cache)
    covering = {"evaluation.window": task.length}
    one = tiny.experiment("local", changes=CHANGES | covering)
    run(one, task, paths)
    model = load_run(paths.record_file(one), paths).model.base_model.eval()
    rows = np.arange(task.size("validation"))
    narrow = module.measure_spans(model, task, rows).spans.mean()
    alike = {"attention": "full", "attention_options": {}}
    config = LongspanConfig(**{**model.config.to_dict(), **alike})
    full = LongspanModel(config).eval()
    full.load_state_dict(model.state_dict())
    wide = module.measure_spans(full, task, rows).spans.mean()
    spans = analyze_run(paths.record_file(one), paths, samples=1_000, examples=0).spans
    assert spans.mean.mean == pytest.approx(wide)
    assert wide > 1.001 * narrow


def test_spectra_are_left_out_of_long_inputs_and_empty_heads(listops, monkeypatch):
    model, rows = build_encoder(initializer_range=0.5), np.arange(3)
    spectra = module.measure_spectra(model, listops, rows)
    assert (spectra.samples, np.shape(spectra.heads)) == (3, (2, 2, len(RANKS)))
    assert 0 < spectra.share(1 / 32) < spectra.share(3 / 4) <= 1
    monkeypatch.setattr(module, "LONGEST_MATRIX", listops.length - 1)
    assert module.measure_spectra(model, listops, rows) is None
    monkeypatch.setattr(module, "LONGEST_MATRIX", listops.length)
    empty = torch.full((1, 2, len(RANKS)), torch.nan)
    monkeypatch.setattr(module, "compute_spectra", lambda *_: empty)
    assert module.measure_spectra(model, listops, rows) is None


@pytest.mark.parametrize("name", ["full", "local", "linformer"])
def test_spans_do_not_depend_on_batching(listops, monkeypatch, name):
    model, rows = build_encoder(attention=name, initializer_range=0.5), np.arange(12)
    together = module.measure_spans(model, listops, rows)
    monkeypatch.setattr(layers, "TOKENS_PER_BATCH", 1)
    alone = module.measure_spans(model, listops, rows)
    np.testing.assert_allclose(alone.spans, together.spans, rtol=1e-3)
    assert together.spans.std(0).min() > 0.1


def test_spans_of_first_layer_follow_from_its_projections(listops):
    model, task = build_encoder(initializer_range=0.5, pooling="cls"), listops
    rows = np.array([5])
    measured_spans = module.measure_spans(model, task, rows)
    tokens = task.dataset.splits["validation"].tokens[5].astype(np.int64)
    layer = model.layers[0]
    with torch.no_grad():
        x = layer.attention_norm(model.embeddings(torch.from_numpy(tokens)[None]))[0]
        own = layer.attention
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            q, k = (x @ y.weight[part].T + y.bias[part] for y in (own.query, own.key))
            weights = (q @ k.T / 8**0.5).softmax(-1)[1:, 1:].double()
            place = torch.arange(len(tokens))
            far = (weights * (place[:, None] - place).abs()).sum(1) / weights.sum(1)
            assert measured_spans.spans[0, 0, head] == pytest.approx(float(far.mean()), rel=1e-4)


def test_sampled_rows_are_reproducible_and_distinct():
    rows = module.sample_rows(1000, 100)
    assert len(set(rows.tolist())) == 100
    assert all(a < b for a, b in pairwise(rows.tolist()))
    assert rows.tolist() == module.sample_rows(1000, 100).tolist() != list(range(100))
    assert module.sample_rows(7, 100).tolist() == list(range(7))


def test_both_sequences_of_a_pair_are_samples():
    ids, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool)
    shared = {"targets": torch.zeros(2, dtype=torch.long), "rows": torch.arange(2)}
    texts = {"input_ids": ids, "attention_mask": mask}
    single = Batch(inputs=texts, **shared)
    pair = Batch(inputs={**texts, "input_ids_b": ids + 1, "attention_mask_b": mask}, **shared)
    assert len(list(layers.sequences(single))) == 1
    assert [int(x.inputs[0, 0]) for x in layers.sequences(pair)] == [1, 2]


def test_record_describes_analyzed_samples(finished_runs):
    paths, (record, _) = finished_runs
    reported = []

    def report(*counts):
        reported.append(counts)

    analysis = analyze_run(record, paths, samples=30, examples=0, progress=report)
    name = f"{analysis.mechanism}-{analysis.config_hash}-{analysis.seed}.json"
    assert (analysis.filename, name) == (record.name, record.name)
    assert (analysis.split, analysis.refusal, analysis.rollouts) == ("validation", None, [])
    found = analysis.spans
    assert (found.samples, found.available) == (30, 40)
    lengths = build_listops(paths).dataset.splits["validation"].tokens.lengths
    sampled = lengths[module.sample_rows(40, 30)]
    assert found.mean_length == pytest.approx(sampled.mean())
    assert found.uniform == pytest.approx(uniform_span(sampled.tolist()))
    means = [one.mean for layer in found.heads for one in layer]
    assert found.mean.mean == pytest.approx(np.mean(means))
    assert [one.mean for one in found.layers] == pytest.approx(
        [np.mean([one.mean for one in layer]) for layer in found.heads]
    )
    assert found.mean.deviation > 0
    assert (len(found.layers), len(found.heads), len(found.heads[0])) == (2, 2, 2)
    assert reported[-1] == (30, 30)
    assert (analysis.tokens.count, analysis.positions.count) == (16, 23)


def build_listops(paths):
    return tiny.listops(paths.cache)


def test_rollouts_describe_several_examples(finished_runs):
    paths, (record, _) = finished_runs
    found = analyze_run(record, paths, samples=1, examples=4, row=7).rollouts
    task = build_listops(paths)
    rows = [one.row for one in found]
    assert rows[0] == 7
    assert len(set(rows)) == 4
    stored = task.dataset.splits["validation"]
    for one in found:
        tokens = stored.tokens[one.row]
        assert (one.split, one.part, one.start) == ("validation", 1, "the CLS token")
        assert one.tokens == task.ids_to_tokens(tokens)
        assert one.text.startswith("[")
        assert one.label == str(stored.labels[one.row])
        shares = one.shares.unpack()
        assert len(shares) == len(tokens)
        # Over two layers the CLS token keeps at least a quarter of itself.
        assert 0.25 < shares.sum() < 0.75


def test_predictions_are_the_classes_with_the_largest_logits(listops):
    model = build_model(listops, pooling="cls", initializer_range=0.5)
    found = example_rollouts.roll_out_examples(model, listops, range(8))
    expected = []
    for row in range(8):
        tokens = listops.dataset.splits["validation"].tokens[row].astype(np.int64)
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(tokens)[None]).logits[0]
        expected.append(str(max(range(10), key=logits.tolist().__getitem__)))
    assert [one.prediction for one in found] == expected
    assert len(set(expected)) > 1


def test_shares_of_an_example_do_not_depend_on_the_others(finished_runs):
    paths, (record, _) = finished_runs
    together = analyze_run(record, paths, samples=1, examples=8).rollouts
    for one in together[::3]:
        (alone,) = analyze_run(record, paths, samples=1, examples=1, row=one.row).rollouts
        assert alone.shares.unpack() == pytest.approx(one.shares.unpack(), abs=1e-4)


def test_rollout_starts_at_requested_token(finished_runs):
    paths, (record, _) = finished_runs
    found, other = analyze_run(record, paths, samples=1, examples=2, row=7, token=3).rollouts
    assert (found.start, other.start) == ("token 3", "the CLS token")
    shares = found.shares.unpack()
    # Over two layers a state keeps at least a quarter of itself.
    assert int(np.argmax(shares)) == 3
    assert shares[3] >= 0.25
    length = len(found.tokens)
    for token in (-1, length):
        message = rf"token of validation example 7 must be in 0\.\.{length - 1}, got {token}"
        with pytest.raises(OptionError, match=message):
            analyze_run(record, paths, samples=1, examples=1, row=7, token=token)


def test_both_texts_of_a_pair_have_rollouts(tmp_path):
    source = write_by_id(tmp_path / "aan")
    options = {"train": 4, "validation": 2, "test": 2, "length": 40}
    task = build("retrieval", options)
    task.open(tmp_path / "cache", source)
    model = build_model(task, pooling="cls")
    found = example_rollouts.roll_out_examples(model, task, [1, 0])
    assert [(one.row, one.part) for one in found] == [(1, 1), (1, 2), (0, 1), (0, 2)]
    stored = task.dataset.splits["validation"]
    for one in found:
        tokens = (stored.tokens if one.part == 1 else stored.second)[one.row]
        assert one.tokens == task.ids_to_tokens(tokens)
        assert len(one.shares.unpack()) == len(tokens)
        assert one.label in ("no citation", "citation")
        assert one.prediction in ("no citation", "citation")


@pytest.mark.parametrize(("pooling", "start"), [("cls", "the CLS token"), ("mean", "the mean")])
def test_rollout_is_product_of_the_layers_weights(listops, pooling, start):
    model = build_model(listops, pooling=pooling, initializer_range=0.5)
    (found,) = example_rollouts.roll_out_examples(model, listops, [5])
    assert found.start.startswith(start)
    tokens = listops.dataset.splits["validation"].tokens[5].astype(np.int64)
    ids = torch.from_numpy(tokens)[None]
    weights = layers.read_layers(
        model.base_model,
        layers.Sequences(ids, torch.ones_like(ids, dtype=torch.bool)),
        lambda call: torch.cat([w for _, w in call.columns()], 3)[0].mean(0).double(),
    )
    size = len(weights[0])
    flow = torch.eye(size, dtype=torch.float64)
    for one in weights:
        flow = (one + torch.eye(size)) / 2 @ flow
    expected = flow[0, 1:] if pooling == "cls" else flow.mean(0)
    assert found.shares.unpack() == pytest.approx(expected.numpy(), abs=1e-4)


def test_model_without_attention_weights_has_embeddings_only(cli, copied_runs, monkeypatch):
    paths, (record, other) = copied_runs
    monkeypatch.setattr("longspan.attention.weights.TOLERANCE", -1.0)
    found = analyze_run(record, paths, samples=1, examples=1)
    assert (found.spans, found.rollouts) == (None, [])
    assert "full has no attention weights" in found.refusal
    assert (found.tokens.count, found.positions.count) == (16, 23)
    path = found.save(record.parent)
    assert load_side_record(Analysis, path) == found
    code, printed, _ = cli("analyze", other, "--samples", 1, *cli_flags(paths))
    assert code == 0
    assert "local, seed 0: embeddings only; local has no attention weights" in printed
    monkeypatch.setattr(module, "_embeddings", lambda *_: {"positions": None, "tokens": None})
    message = f"{record.name} cannot be analyzed: full has no attention weights"
    with pytest.raises(RunError, match=message):
        analyze_run(record, paths, samples=1, examples=1)


def test_errors_of_the_model_are_no_refusals(copied_runs, monkeypatch):
    paths, (record, _) = copied_runs

    def refuse(*_, **__):
        raise InputError("token id 99 is outside the vocabulary")

    monkeypatch.setattr(module, "measure_spans", refuse)
    with pytest.raises(InputError, match="token id 99"):
        analyze_run(record, paths, samples=1, examples=1)


def test_model_without_attention_layers_has_no_weights(listops, monkeypatch):
    model = build_encoder()
    monkeypatch.setattr(layers, "SelfAttention", torch.nn.Bilinear)
    with pytest.raises(
        NoWeightsError, match="has no attention layers, and so no attention weights"
    ):
        module.measure_spans(model, listops, np.array([1]))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_rollout_of_scored_tokens_is_mean_over_tokens(tmp_path, pooling):
    task = build("copying", {"train": 2, "validation": 3, "test": 2, "length": 20, "count": 4})
    task.open(tmp_path)
    model = build_model(task, pooling=pooling, initializer_range=0.5)
    (found,) = example_rollouts.roll_out_examples(model, task, [1])
    assert (found.start, found.label) == ("the scored tokens", None)
    (batch,) = layers.batches_of_rows(task, np.array([1]))
    scored = (batch.targets[0] != IGNORE).nonzero().flatten().tolist()
    assert len(scored) == 4
    each = [
        example_rollouts.roll_out_examples(model, task, [1], token)[0].shares.unpack()
        for token in scored
    ]
    assert found.shares.unpack() == pytest.approx(np.mean(each, 0).tolist(), abs=1e-4)


def test_head_without_span_is_excluded_from_its_means_only(finished_runs, monkeypatch):
    paths, (record, _) = finished_runs
    measure = module.measure_spans
    complete = analyze_run(record, paths, samples=4, examples=0).spans
    kept = []

    def without_span(samples):
        def measured(*arguments):
            measured_spans = measure(*arguments)
            measured_spans.spans[samples, 0, 1] = np.nan
            kept[:] = measured_spans.spans[:, 0, 1]
            return measured_spans

        return measured

    monkeypatch.setattr(module, "measure_spans", without_span([0, 2]))
    found = analyze_run(record, paths, samples=4, examples=0).spans
    assert found.samples == 4
    assert found.heads[0][0] == complete.heads[0][0]
    assert found.layers[1] == complete.layers[1]
    assert found.heads[0][1].mean == pytest.approx((kept[1] + kept[3]) / 2)
    monkeypatch.setattr(module, "measure_spans", without_span([0, 1, 2, 3]))
    with pytest.raises(RunError, match="a head attends to nothing in every sample"):
        analyze_run(record, paths, samples=4, examples=0)


def test_rollout_of_image_covers_its_pixels(tmp_path):
    task = build("pathfinder", {"train": 2, "validation": 3, "test": 2})
    task.open(tmp_path)
    model = build_model(task, pooling="mean", num_hidden_layers=1)
    (found,) = example_rollouts.roll_out_examples(model, task, [2])
    assert (found.side, found.start, found.tokens) == (32, "the mean over the tokens", None)
    assert found.levels.unpack().tolist() == task.image("validation", 2).ravel().tolist()
    assert found.shares.unpack().sum() == pytest.approx(1, abs=1e-4)
    assert found.label in task.class_names


def test_saved_analysis_loads_equal(copied_runs):
    paths, (record, _) = copied_runs
    before = load_results([paths.runs])
    found = analyze_run(record, paths, samples=3, examples=3)
    path = found.save(record.parent)
    assert path == record.parent / "analysis" / record.name
    assert load_side_record(Analysis, path) == found
    assert load_side_records(Analysis, [paths.runs]) == [found]
    assert load_results([paths.runs]) == before
    assert result_paths(paths.runs) == sorted(copied_runs[1])


@pytest.fixture(scope="module")
def saved_analysis(finished_runs, tmp_path_factory):
    """Name and content of the file of an analysis."""
    paths, (record, _) = finished_runs
    folder = tmp_path_factory.mktemp("analysis")
    path = analyze_run(record, paths, samples=1, examples=1).save(folder)
    return path.name, json.loads(path.read_text())


# Place of a part, its changed fields, and the message.
DAMAGED = [
    ((), {"schema": 0}, "not an analysis of schema 2, got 0"),
    ((), {"schema": 1}, "not an analysis of schema 2, got 1; analyze again"),
    ((), {"spans": {"samples": 1}}, r"spans\.available is missing"),
    ((), {"rollouts": [3]}, r"rollouts\.0 should be an object, got 3"),
    ((), {"seed": 1.5}, r"seed should be a valid integer, got 1\.5"),
    ((), {"extra": 1}, "extra is not a known field"),
    (("rollouts", 0), {"text": "[MAX 1"}, r"rollout of example \d+: \d+ shares of 2 tokens"),
    (("rollouts", 0, "shares"), {"data": "eJw="}, "quantized numbers are truncated"),
    (("positions",), {"dimensions": 7}, "368 numbers are no vectors of 7"),
    (("positions",), {"grid": [5, 5]}, r"23 vectors do not fill a grid of \[5, 5\]"),
]


@pytest.mark.parametrize(("keys", "fields", "message"), DAMAGED)
def test_damaged_analysis_is_rejected_with_its_file(
    copied_runs, saved_analysis, keys, fields, message
):
    name, content = saved_analysis
    content = part = copy.deepcopy(content)
    for key in keys:
        part = part[key]
    part.update(fields)
    paths, (record, _) = copied_runs
    path = record.parent / "analysis" / name
    path.parent.mkdir()
    write_json(path, content)
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        load_side_records(Analysis, [paths.runs])


def test_invalid_analysis_requests_are_rejected(copied_runs):
    paths, (record, other) = copied_runs
    with pytest.raises(OptionError, match="samples must be >= 1, got 0"):
        analyze_run(record, paths, samples=0, examples=1)
    with pytest.raises(OptionError, match="examples must be >= 0, got -1"):
        analyze_run(record, paths, samples=1, examples=-1)
    with pytest.raises(OptionError, match=r"row of 'validation' must be in 0\.\.39, got 40"):
        analyze_run(record, paths, samples=1, examples=1, row=40)
    shutil.rmtree(other.parent / "work" / other.stem)
    with pytest.raises(OptionError, match="samples must be >= 1, got 0"):
        analyze_run(other, paths, samples=0, examples=1)  # before the model is loaded
    with pytest.raises(DataError, match="holds no saved model"):
        analyze_run(other, paths, samples=1, examples=1)


def cli_flags(paths):
    return ["--cache", paths.cache, "--device", "cpu"]


def test_command_prints_one_line_per_run(cli, copied_runs):
    paths, _ = copied_runs
    code, printed, _ = cli("analyze", paths.runs, "--samples", 5, *cli_flags(paths))
    assert code == 0
    lines = printed.splitlines()
    found = load_side_records(Analysis, [paths.runs])
    assert [one.mechanism for one in found] == ["full", "local"]
    assert len(lines) == 2
    for line, one in zip(lines, found, strict=True):
        assert line.startswith(
            f"smoke listops {one.mechanism}, seed 0: span {one.spans.mean.mean:.1f} ±"
        )
        assert f"uniform attention {one.spans.uniform:.1f}" in line
        assert "5 of 40 samples" in line


def test_command_prints_json_and_records_a_rollout(cli, copied_runs):
    paths, records = copied_runs
    code, printed, _ = cli("analyze", *records, "--samples", 2, "--json", *cli_flags(paths))
    assert code == 0
    assert json.loads(printed) == [
        dataclasses.asdict(x) for x in load_side_records(Analysis, [paths.runs])
    ]
    arguments = ["--samples", 2, "--rollout", 7, "--token", 1, *cli_flags(paths)]
    assert cli("analyze", records[0], *arguments)[0] == 0
    saved = load_side_record(Analysis, records[0].parent / "analysis" / records[0].name)
    assert (saved.rollouts[0].row, saved.rollouts[0].start) == (7, "token 1")


def test_run_without_model_is_reported_and_skipped(cli, copied_runs):
    paths, (record, _) = copied_runs
    shutil.rmtree(record.parent / "work" / record.stem)
    code, printed, errors = cli("analyze", paths.runs, "--samples", 2, *cli_flags(paths))
    assert code == 1
    assert f"failed: {record.stem}: " in errors
    assert "holds no saved model" in errors
    assert len(printed.splitlines()) == 1
    code, _, errors = cli("analyze", record, *cli_flags(paths))
    assert code == 2
    assert "holds no saved model" in errors
