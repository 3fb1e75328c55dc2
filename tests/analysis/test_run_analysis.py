"""Analysis of finished runs: measurements, records, and the command `longspan analyze`."""

import dataclasses
import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from longspan.analysis import analyze_run
from longspan.analysis import run_analysis as module
from longspan.analysis.span import uniform_span
from longspan.arena import run
from longspan.errors import DataError, OptionError, RunError
from longspan.files import write_json
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.layers import SelfAttention
from longspan.results import load_analyses, load_analysis, load_results, result_paths
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


def attend_uniformly(model):
    """Zero the query projections, so that every key has the same weight."""
    for part in model.modules():
        if isinstance(part, SelfAttention):
            torch.nn.init.zeros_(part.query.weight)
            torch.nn.init.zeros_(part.query.bias)
    return model


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_uniform_weights_have_uniform_span(listops, pooling):
    rows = np.array([0, 3, 17, 39])
    measured_spans = module.measure_spans(
        attend_uniformly(build_encoder(pooling=pooling)), listops, rows
    )
    lengths = listops.dataset.splits["validation"].tokens.lengths[rows]
    assert sorted(measured_spans.lengths.tolist()) == sorted(lengths.tolist())
    expected = [uniform_span([n]) for n in measured_spans.lengths.tolist()]
    assert measured_spans.spans.shape == (4, 2, 2)
    for sample, span in zip(measured_spans.spans, expected, strict=True):
        assert sample.ravel().tolist() == pytest.approx([span] * 4)
    assert not measured_spans.negative.any()


@pytest.mark.parametrize("name", ["full", "local", "linformer"])
def test_spans_do_not_depend_on_batching(listops, monkeypatch, name):
    model, rows = build_encoder(attention=name, initializer_range=0.5), np.arange(12)
    together = module.measure_spans(model, listops, rows)
    monkeypatch.setattr(module, "TOKENS_PER_BATCH", 1)
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
    single = Batch(inputs=ids, key_mask=mask, **shared)
    pair = dataclasses.replace(single, inputs_b=ids + 1, key_mask_b=mask)
    assert len(list(module._sequences(single))) == 1
    assert [int(x[0, 0]) for x, _ in module._sequences(pair)] == [1, 2]


def test_record_describes_analyzed_samples(finished_runs):
    paths, (record, _) = finished_runs
    reported = []
    found = analyze_run(record, paths, samples=30, row=7, progress=lambda *x: reported.append(x))
    name = f"{found.mechanism}-{found.config_hash}-{found.seed}.json"
    assert (found.filename, name) == (record.name, record.name)
    assert (found.split, found.samples, found.available) == ("validation", 30, 40)
    lengths = build_listops(paths).dataset.splits["validation"].tokens.lengths
    sampled = lengths[module.sample_rows(40, 30)]
    assert found.mean_length == pytest.approx(sampled.mean())
    assert found.uniform == pytest.approx(uniform_span(sampled.tolist()))
    means = [one.mean for layer in found.heads for one in layer]
    assert found.span.mean == pytest.approx(np.mean(means))
    assert [one.mean for one in found.layers] == pytest.approx(
        [np.mean([one.mean for one in layer]) for layer in found.heads]
    )
    assert found.span.deviation > 0
    assert (len(found.layers), len(found.heads), len(found.heads[0])) == (2, 2, 2)
    assert reported[-1] == (30, 30)
    assert (found.tokens.count, found.positions.count) == (16, 23)


def build_listops(paths):
    return tiny.listops(paths.cache)


def test_rollout_describes_requested_row(finished_runs):
    paths, (record, _) = finished_runs
    found = analyze_run(record, paths, samples=1, row=7).rollout
    task = build_listops(paths)
    tokens = task.dataset.splits["validation"].tokens[7]
    assert (found.split, found.row, found.start) == ("validation", 7, "first state")
    assert found.tokens == task.ids_to_tokens(tokens)
    assert " ".join(found.tokens).startswith("[")
    assert len(found.shares) == len(tokens)
    # Over two layers the summary token keeps at least a quarter of itself.
    assert 0.25 < sum(found.shares) < 0.75


def test_rollout_starts_at_requested_token(finished_runs):
    paths, (record, _) = finished_runs
    found = analyze_run(record, paths, samples=1, row=7, token=3).rollout
    assert found.start == "token 3"
    # Over two layers a state keeps at least a quarter of itself.
    assert int(np.argmax(found.shares)) == 3
    assert found.shares[3] >= 0.25
    length = len(found.tokens)
    for token in (-1, length):
        message = rf"token of validation example 7 must be in 0\.\.{length - 1}, got {token}"
        with pytest.raises(OptionError, match=message):
            analyze_run(record, paths, samples=1, row=7, token=token)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_rollout_of_scored_tokens_is_mean_over_tokens(tmp_path, pooling):
    task = build("copying", {"train": 2, "validation": 3, "test": 2, "length": 20, "count": 4})
    task.open(tmp_path)
    sizes = {"vocab_size": task.vocab_size, "max_position_embeddings": task.length}
    model = build_encoder(pooling=pooling, initializer_range=0.5, **sizes)
    found = module._roll_out(model, task, 1)
    assert found.start == "scored tokens"
    (batch,) = module._batches_of_rows(task, np.array([1]))
    scored = (batch.targets[0] != IGNORE).nonzero().flatten().tolist()
    assert len(scored) == 4
    each = [module._roll_out(model, task, 1, token).shares for token in scored]
    assert found.shares == pytest.approx(np.mean(each, 0).tolist(), abs=1e-7)


def test_head_without_span_is_excluded_from_its_means_only(finished_runs, monkeypatch):
    paths, (record, _) = finished_runs
    complete, measure = analyze_run(record, paths, samples=4, row=0), module.measure_spans
    kept = []

    def without_span(samples):
        def measured(*arguments):
            measured_spans = measure(*arguments)
            measured_spans.spans[samples, 0, 1] = np.nan
            kept[:] = measured_spans.spans[:, 0, 1]
            return measured_spans

        return measured

    monkeypatch.setattr(module, "measure_spans", without_span([0, 2]))
    found = analyze_run(record, paths, samples=4, row=0)
    assert found.samples == 4
    assert found.heads[0][0] == complete.heads[0][0]
    assert found.layers[1] == complete.layers[1]
    assert found.heads[0][1].mean == pytest.approx((kept[1] + kept[3]) / 2)
    monkeypatch.setattr(module, "measure_spans", without_span([0, 1, 2, 3]))
    with pytest.raises(RunError, match="a head attends to nothing in every sample"):
        analyze_run(record, paths, samples=4, row=0)


def test_rollout_of_image_covers_its_pixels(tmp_path):
    task = build("pathfinder", {"train": 2, "validation": 3, "test": 2})
    task.open(tmp_path)
    model = build_encoder(vocab_size=256, max_position_embeddings=1024, pooling="mean")
    found = module._roll_out(model, task, 2)
    assert (found.side, found.start, found.tokens) == (32, "mean of states", None)
    assert found.levels == task.image("validation", 2).ravel().tolist()
    assert sum(found.shares) == pytest.approx(1, abs=1e-4)


def test_saved_analysis_loads_equal(copied_runs):
    paths, (record, _) = copied_runs
    before = load_results([paths.runs])
    found = analyze_run(record, paths, samples=3, row=0)
    path = found.save(record.parent)
    assert path == record.parent / "analysis" / record.name
    assert load_analysis(path) == found
    assert load_analyses([paths.runs]) == [found]
    assert load_results([paths.runs]) == before
    assert result_paths(paths.runs) == sorted(copied_runs[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 0}, "not an analysis of schema 1"),
        ({"span": {"mean": 1.0}}, r"span\.deviation is missing"),
        ({"layers": [3]}, r"layers\.0 should be an object, got 3"),
        ({"heads": [[{"mean": "far", "deviation": 0.0}]]}, r"heads\.0\.0\.mean should be a valid"),
        ({"samples": 1.5}, r"samples should be a valid integer, got 1\.5"),
        ({"extra": 1}, "extra is not a known field"),
    ],
)
def test_malformed_analysis_is_rejected(copied_runs, change, message):
    paths, (record, _) = copied_runs
    path = analyze_run(record, paths, samples=1, row=0).save(record.parent)
    write_json(path, {**json.loads(path.read_text()), **change})
    with pytest.raises(DataError, match=message):
        load_analyses([paths.runs])


def test_invalid_analysis_requests_are_rejected(copied_runs, monkeypatch):
    paths, (record, other) = copied_runs
    with pytest.raises(OptionError, match="samples must be >= 1, got 0"):
        analyze_run(record, paths, samples=0, row=0)
    with pytest.raises(OptionError, match=r"row of 'validation' must be in 0\.\.39, got 40"):
        analyze_run(record, paths, samples=1, row=40)
    monkeypatch.setattr("longspan.analysis.weights.TOLERANCE", -1)
    with pytest.raises(
        RunError, match=f"{record.name} cannot be analyzed: full has no attention weights"
    ):
        analyze_run(record, paths, samples=1, row=0)
    shutil.rmtree(other.parent / "work" / other.stem)
    with pytest.raises(DataError, match="holds no saved model"):
        analyze_run(other, paths, samples=1, row=0)


def cli_flags(paths):
    return ["--cache", paths.cache, "--device", "cpu"]


def test_command_prints_one_line_per_run(cli, copied_runs):
    paths, _ = copied_runs
    code, printed, _ = cli("analyze", paths.runs, "--samples", 5, *cli_flags(paths))
    assert code == 0
    lines = printed.splitlines()
    found = load_analyses([paths.runs])
    assert [one.mechanism for one in found] == ["full", "local"]
    assert len(lines) == 2
    for line, one in zip(lines, found, strict=True):
        assert line.startswith(f"quick listops {one.mechanism}, seed 0: span {one.span.mean:.1f} ±")
        assert f"uniform attention {one.uniform:.1f}" in line
        assert "5 of 40 samples" in line


def test_command_prints_json_and_rollout(cli, copied_runs):
    paths, records = copied_runs
    code, printed, _ = cli("analyze", *records, "--samples", 2, "--json", *cli_flags(paths))
    assert code == 0
    assert json.loads(printed) == [dataclasses.asdict(x) for x in load_analyses([paths.runs])]
    arguments = ["analyze", records[0], "--samples", 2, "--rollout", 7, *cli_flags(paths)]
    code, printed, _ = cli(*arguments)
    rollout = load_analysis(records[0].parent / "analysis" / records[0].name).rollout
    assert rollout.row == 7
    assert " ".join(rollout.tokens) in printed
    largest = int(np.argmax(rollout.shares))
    assert f"largest: {rollout.tokens[largest]!r} at {largest} (" in printed
    _, printed, _ = cli("analyze", records[0], "--samples", 2, "--token", 1, *cli_flags(paths))
    assert "validation example 0, from token 1:" in printed


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


def test_plots_are_written_for_every_run(cli, copied_runs, tmp_path):
    paths, records = copied_runs
    folder = tmp_path / "plots"
    arguments = ["--samples", 1, *cli_flags(paths), "--plot", folder]
    code, _, errors = cli("analyze", *records, *arguments)
    assert code == 0
    analyses = [load_analysis(path.parent / "analysis" / path.name) for path in records]
    written = {path.name for path in folder.iterdir()}
    assert len(written) == errors.count("plot: ") == 3 * len(records)
    for analysis in analyses:
        (name,) = (x for x in written if f"rollout-listops-{analysis.mechanism}" in x)
        with Image.open(folder / name) as picture:
            # 64 tokens in a line, 8 pixels per token.
            lines = -(-len(analysis.rollout.shares) // 64)
            assert picture.size == (8 * 64, 8 * lines)
