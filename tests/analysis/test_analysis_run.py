"""From a finished run to the record of its analysis, and to what the command line says."""

import dataclasses
import json
import shutil
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from longspan.analysis import analyse, pictures
from longspan.analysis import run as module
from longspan.analysis.span import uniform_span
from longspan.arena import run
from longspan.errors import DataError, OptionError, RunError, UnknownNameError
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.layers import SelfAttention
from longspan.results import load_all, load_analyses, load_analysis, runs_below
from longspan.tasks import build
from longspan.tasks.base import IGNORE, Batch

CHANGES = {"model.layers": 2, "model.pooling": "cls"}


@pytest.fixture(scope="module")
def ended(tiny_cache, tmp_path_factory):
    """Two runs that have ended: paths and records."""
    paths = tiny.paths(tmp_path_factory.mktemp("runs"), tiny_cache)
    made = [tiny.experiment(name, changes=CHANGES) for name in ("full", "local")]
    for one in made:
        run(one, tiny.listops(tiny_cache), paths)
    return paths, [paths.record_file(one) for one in made]


@pytest.fixture
def copied(ended, tmp_path):
    """The same in a folder of the test's own."""
    paths, records = ended
    shutil.copytree(paths.runs, tmp_path / "runs")
    paths = dataclasses.replace(paths, runs=tmp_path / "runs")
    return paths, [paths.runs / record.relative_to(ended[0].runs) for record in records]


def encoder(seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 16, "hidden_size": 16, "max_position_embeddings": 23}
    return LongspanModel(LongspanConfig(**{**sizes, **fields})).eval()


def blind(model):
    """The same model, none of whose queries tells keys apart."""
    for part in model.modules():
        if isinstance(part, SelfAttention):
            torch.nn.init.zeros_(part.query.weight)
            torch.nn.init.zeros_(part.query.bias)
    return model


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_model_that_tells_no_keys_apart_spans_what_uniform_attention_does(listops, pooling):
    rows = np.array([0, 3, 17, 39])
    seen = module.look(blind(encoder(pooling=pooling)), listops, rows)
    lengths = listops.built.splits["validation"].tokens.lengths[rows]
    assert sorted(seen.lengths.tolist()) == sorted(lengths.tolist())
    expected = [uniform_span([n]) for n in seen.lengths.tolist()]
    assert seen.spans.shape == (4, 2, 2)
    for sample, span in zip(seen.spans, expected, strict=True):
        assert sample.ravel().tolist() == pytest.approx([span] * 4)
    assert not seen.negative.any()


@pytest.mark.parametrize("name", ["full", "local", "linformer"])
def test_how_samples_are_put_in_batches_is_no_matter(listops, monkeypatch, name):
    model, rows = encoder(attention=name, initializer_range=0.5), np.arange(12)
    together = module.look(model, listops, rows)
    monkeypatch.setattr(module, "TOKENS", 1)
    alone = module.look(model, listops, rows)
    np.testing.assert_allclose(alone.spans, together.spans, rtol=1e-3)
    assert together.spans.std(0).min() > 0.1


def test_a_layer_is_looked_at_as_it_is(listops):
    """The spans of the first layer, from its projections with plain matrices."""
    model, task = encoder(initializer_range=0.5, pooling="cls"), listops
    rows = np.array([5])
    seen = module.look(model, task, rows)
    tokens = task.built.splits["validation"].tokens[5].astype(np.int64)
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
            assert seen.spans[0, 0, head] == pytest.approx(float(far.mean()), rel=1e-4)


def test_samples_are_drawn_alike_everywhere_and_none_twice():
    rows = module.drawn(1000, 100)
    assert len(set(rows.tolist())) == 100
    assert all(a < b for a, b in pairwise(rows.tolist()))
    assert rows.tolist() == module.drawn(1000, 100).tolist() != list(range(100))
    assert module.drawn(7, 100).tolist() == list(range(7))


def test_both_texts_of_a_pair_are_samples():
    ids, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool)
    shared = {"targets": torch.zeros(2, dtype=torch.long), "rows": torch.arange(2)}
    single = Batch(inputs=ids, key_mask=mask, **shared)
    pair = dataclasses.replace(single, inputs_b=ids + 1, key_mask_b=mask)
    assert len(list(module._sequences(single))) == 1
    assert [int(x[0, 0]) for x, _ in module._sequences(pair)] == [1, 2]


def test_the_record_says_what_was_looked_at(ended):
    paths, (record, _) = ended
    told = []
    found = analyse(record, paths, samples=30, row=7, progress=lambda *x: told.append(x))
    name = f"{found.mechanism}-{found.config_hash}-{found.seed}.json"
    assert (found.filename, name) == (record.name, record.name)
    assert (found.split, found.samples, found.available) == ("validation", 30, 40)
    lengths = build_listops(paths).built.splits["validation"].tokens.lengths
    drawn = lengths[module.drawn(40, 30)]
    assert found.mean_length == pytest.approx(drawn.mean())
    assert found.uniform == pytest.approx(uniform_span(drawn.tolist()))
    means = [one.mean for layer in found.heads for one in layer]
    assert found.span.mean == pytest.approx(np.mean(means))
    assert [one.mean for one in found.layers] == pytest.approx(
        [np.mean([one.mean for one in layer]) for layer in found.heads]
    )
    assert found.span.deviation > 0
    assert (len(found.layers), len(found.heads), len(found.heads[0])) == (2, 2, 2)
    assert told[-1] == (30, 30)
    assert (found.tokens.count, found.positions.count) == (16, 23)


def build_listops(paths):
    return tiny.listops(paths.cache)


def test_the_rollout_is_of_the_row_that_was_asked_for(ended):
    paths, (record, _) = ended
    found = analyse(record, paths, samples=1, row=7).rollout
    task = build_listops(paths)
    tokens = task.built.splits["validation"].tokens[7]
    assert (found.split, found.row, found.start) == ("validation", 7, "first state")
    assert found.tokens == task.words(tokens)
    assert " ".join(found.tokens).startswith("[")
    assert len(found.shares) == len(tokens)
    # the summary keeps a quarter of itself over two layers, and what it attends to
    assert 0.25 < sum(found.shares) < 0.75


def test_a_rollout_starts_at_a_token_that_is_asked_for(ended):
    paths, (record, _) = ended
    found = analyse(record, paths, samples=1, row=7, token=3).rollout
    assert found.start == "token 3"
    # over two layers a state keeps a quarter of itself
    assert int(np.argmax(found.shares)) == 3
    assert found.shares[3] >= 0.25
    length = len(found.tokens)
    for token in (-1, length):
        message = f"token {token} of validation example 7: expected 0 to {length - 1}"
        with pytest.raises(OptionError, match=message):
            analyse(record, paths, samples=1, row=7, token=token)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_rollout_of_scored_tokens_is_the_mean_of_those_from_each(tmp_path, pooling):
    task = build("copying", {"train": 2, "validation": 3, "test": 2, "length": 20, "count": 4})
    task.open(tmp_path)
    sizes = {"vocab_size": task.vocabulary, "max_position_embeddings": task.length}
    model = encoder(pooling=pooling, initializer_range=0.5, **sizes)
    found = module._rollout(model, task, 1)
    assert found.start == "scored tokens"
    (batch,) = module._examples(task, np.array([1]))
    asked = (batch.targets[0] != IGNORE).nonzero().flatten().tolist()
    assert len(asked) == 4
    each = [module._rollout(model, task, 1, token).shares for token in asked]
    assert found.shares == pytest.approx(np.mean(each, 0).tolist(), abs=1e-7)


def test_a_head_without_a_span_leaves_the_others_their_sample(ended, monkeypatch):
    paths, (record, _) = ended
    whole, look = analyse(record, paths, samples=4, row=0), module.look
    kept = []

    def dead(few):
        def looked(*arguments):
            seen = look(*arguments)
            seen.spans[few, 0, 1] = np.nan
            kept[:] = seen.spans[:, 0, 1]
            return seen

        return looked

    monkeypatch.setattr(module, "look", dead([0, 2]))
    found = analyse(record, paths, samples=4, row=0)
    assert found.samples == 4
    assert found.heads[0][0] == whole.heads[0][0]
    assert found.layers[1] == whole.layers[1]
    assert found.heads[0][1].mean == pytest.approx((kept[1] + kept[3]) / 2)
    monkeypatch.setattr(module, "look", dead([0, 1, 2, 3]))
    with pytest.raises(RunError, match="in no sample a head's token attends to anything"):
        analyse(record, paths, samples=4, row=0)


def test_an_image_is_rolled_out_over_its_pixels(tmp_path):
    task = build("pathfinder", {"train": 2, "validation": 3, "test": 2})
    task.open(tmp_path)
    model = encoder(vocab_size=256, max_position_embeddings=1024, pooling="mean")
    found = module._rollout(model, task, 2)
    assert (found.side, found.start, found.tokens) == (32, "mean of states", None)
    assert found.levels == task.image("validation", 2).ravel().tolist()
    assert sum(found.shares) == pytest.approx(1, abs=1e-4)


def test_a_record_is_read_as_it_was_written(copied):
    paths, (record, _) = copied
    before = load_all([paths.runs])
    found = analyse(record, paths, samples=3, row=0)
    path = found.save(record.parent)
    assert path == record.parent / "analysis" / record.name
    assert load_analysis(path) == found
    assert load_analyses([paths.runs]) == [found]
    assert load_all([paths.runs]) == before
    assert runs_below(paths.runs) == sorted(copied[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 0}, "not an analysis of schema 1"),
        ({"span": {"mean": 1.0}}, r"Span with missing fields \['deviation'\]"),
        ({"layers": [3]}, "a Span has named fields, got 3"),
        ({"heads": [[{"mean": "far", "deviation": 0.0}]]}, "mean must be a number"),
        ({"samples": 1.5}, "samples must be a whole number"),
        ({"extra": 1}, r"unknown fields \['extra'\]"),
    ],
)
def test_a_malformed_record_is_refused(copied, change, message):
    paths, (record, _) = copied
    path = analyse(record, paths, samples=1, row=0).save(record.parent)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        load_analyses([paths.runs])


def test_what_cannot_be_analysed_says_why(copied, monkeypatch):
    paths, (record, other) = copied
    with pytest.raises(OptionError, match="samples=0; use 1 or more"):
        analyse(record, paths, samples=0, row=0)
    with pytest.raises(OptionError, match="row 40 of 'validation': expected 0 to 39"):
        analyse(record, paths, samples=1, row=40)
    monkeypatch.setattr("longspan.analysis.weights.TOLERANCE", -1)
    with pytest.raises(RunError, match=f"{record.name} cannot be analysed: full has no weights"):
        analyse(record, paths, samples=1, row=0)
    shutil.rmtree(other.parent / "work" / other.stem)
    with pytest.raises(DataError, match="holds no saved model"):
        analyse(other, paths, samples=1, row=0)


def flags(paths):
    return ["--cache", paths.cache, "--device", "cpu"]


def test_the_command_prints_a_line_for_each_run(cli, copied):
    paths, _ = copied
    code, printed, _ = cli("analyse", paths.runs, "--samples", 5, *flags(paths))
    assert code == 0
    lines = printed.splitlines()
    found = load_analyses([paths.runs])
    assert [one.mechanism for one in found] == ["full", "local"]
    assert len(lines) == 2
    for line, one in zip(lines, found, strict=True):
        assert line.startswith(f"quick listops {one.mechanism}, seed 0: span {one.span.mean:.1f} ±")
        assert f"uniform attention {one.uniform:.1f}" in line
        assert "5 of 40 samples" in line


def test_the_command_prints_json_and_the_rollout(cli, copied):
    paths, records = copied
    code, printed, _ = cli("analyse", *records, "--samples", 2, "--json", *flags(paths))
    assert code == 0
    assert json.loads(printed) == [dataclasses.asdict(x) for x in load_analyses([paths.runs])]
    arguments = ["analyse", records[0], "--samples", 2, "--rollout", 7, *flags(paths)]
    code, printed, _ = cli(*arguments)
    rollout = load_analysis(records[0].parent / "analysis" / records[0].name).rollout
    assert rollout.row == 7
    assert " ".join(rollout.tokens) in printed
    most = int(np.argmax(rollout.shares))
    assert f"most: {rollout.tokens[most]!r} at {most} (" in printed
    _, printed, _ = cli("analyse", records[0], "--samples", 2, "--token", 1, *flags(paths))
    assert "validation example 0, from token 1:" in printed


def test_a_run_without_its_model_is_left_out_and_named(cli, copied):
    paths, (record, _) = copied
    shutil.rmtree(record.parent / "work" / record.stem)
    code, printed, told = cli("analyse", paths.runs, "--samples", 2, *flags(paths))
    assert code == 1
    assert f"failed: {record.stem}: " in told
    assert "holds no saved model" in told
    assert len(printed.splitlines()) == 1
    code, _, told = cli("analyse", record, *flags(paths))
    assert code == 2
    assert "holds no saved model" in told


def test_a_picture_is_of_one_run(cli, copied, tmp_path):
    paths, records = copied
    picture = tmp_path / "seen.svg"
    arguments = ["analyse", "--samples", 1, *flags(paths), "--picture", picture]
    code, _, told = cli(*arguments, *records)
    assert code == 2
    assert "--picture draws one run, there are 2" in told
    code, _, _ = cli(*arguments, records[0])
    assert code == 0
    root = ElementTree.parse(picture).getroot()
    drawn = "".join(root.itertext())
    rollout = load_analysis(records[0].parent / "analysis" / records[0].name).rollout
    assert all(token in drawn for token in rollout.tokens)
    marks = [float(x.get("fill-opacity")) for x in root.iter() if x.get("fill-opacity")]
    largest = max(rollout.shares)
    assert marks == pytest.approx([x / largest for x in rollout.shares], abs=0.006)


def test_a_picture_of_an_image_shows_it_beside_what_was_used(ended, tmp_path):
    paths, (record, _) = ended
    found = analyse(record, paths, samples=1, row=0)
    levels, shares = list(range(0, 160, 10)), [0.0] * 15 + [0.5]
    image = dataclasses.replace(found.rollout, side=4, levels=levels, tokens=None, shares=shares)
    found = dataclasses.replace(found, rollout=image, positions=None, tokens=None)
    pictures.write(found, tmp_path / "seen.png")
    drawn = np.array(Image.open(tmp_path / "seen.png"))
    size = pictures.SIDE
    assert drawn.shape == (size, 2 * size + pictures.GAP)
    step = size // 4
    middles = slice(step // 2, size, step)
    assert drawn[middles, :size][:, middles].ravel().tolist() == levels
    used = drawn[middles, size + pictures.GAP :][:, middles].ravel().tolist()
    assert used == [0] * 15 + [255]
    with pytest.raises(UnknownNameError, match=r"no ending of a picture called '\.gif'"):
        pictures.write(found, tmp_path / "seen.gif")
    with pytest.raises(OptionError, match=r"use \.svg"):
        pictures.write(dataclasses.replace(found, rollout=None), tmp_path / "seen.png")


def test_positions_of_an_image_are_small_pictures_of_each_square(ended):
    paths, (record, _) = ended
    found = analyse(record, paths, samples=1, row=0).positions
    cells = torch.rand(6, 6) * 2 - 1
    square = dataclasses.replace(found, grid=[2, 3], matrix=cells.tolist())
    drawn = pictures.cosines(square)
    assert drawn.shape == (2 * 3 - 1, 3 * 4 - 1)
    for row in range(2):
        for column in range(3):
            small = drawn[3 * row : 3 * row + 2, 4 * column : 4 * column + 3]
            expected = (cells[3 * row + column] + 1) * 127.5
            assert np.abs(small.ravel() - expected.numpy()).max() <= 0.51
