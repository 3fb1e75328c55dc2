"""What language models use of their context: against loops over every prefix of every document."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tiny
import toy_streams
from longspan.analysis import measure_context, run_context
from longspan.analysis.attention_parts import (
    memory_layers,
    memory_reach,
    shares_by_bucket,
    shares_by_part,
    window_with_memory,
)
from longspan.analysis.context_losses import (
    block_losses,
    block_windows,
    compare_contexts,
    context_lengths,
    losses_by_position,
    position_ranges,
    sum_by_position,
)
from longspan.arena import PROTOCOLS, run
from longspan.arena.protocols import Protocol, Recipe
from longspan.config import ModelConfig, TrainingConfig
from longspan.errors import OptionError, UnknownNameError
from longspan.results import ContextUse, load_result, load_results, load_side_records
from longspan.results.context_use import BLOCK
from longspan.tasks import TASKS
from longspan.tasks import register as register_task
from longspan.training.evaluate import evaluate

MEMORIES = {
    "transformer_xl": {"segment": 16, "memory": 16},
    "compressive": {"segment": 16, "memory": 16, "compressed_memory": 4, "ratio": 4},
    "position_infused": {"segment": 16, "memory": 24},
}
OTHERS = {"local": {"window": 8}, "full": {}}


def make_model(mechanism, **fields):
    own = {
        "position": "none" if mechanism in MEMORIES else "rotary",
        "initializer_range": 0.4,
        "hidden_dropout_prob": 0.0,
        **fields,
    }
    options = own.pop("attention_options", {**MEMORIES, **OTHERS}[mechanism])
    return toy_streams.make_decoder(mechanism, options, **own).eval()


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return open_task(tmp_path_factory.mktemp("task"))


def open_task(tmp_path, **options):
    made = toy_streams.ToyStream(toy_streams.ToyStream.Options(**options))
    made.open(tmp_path / "cache")
    return made


def nats(model, tokens):
    """Return the nats of the last token of each row, given those before it in one call."""
    ids = torch.from_numpy(np.stack(tokens).astype(np.int64))
    with torch.no_grad():
        logits = model(ids[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits[:, -1].double(), ids[:, -1], reduction="none").numpy()


@pytest.mark.parametrize("mechanism", ["transformer_xl", "position_infused", "local"])
def test_losses_by_position_are_those_of_every_prefix(tmp_path, mechanism):
    """A state from segment to segment is a prefix from the beginning of the document."""
    task = open_task(tmp_path, held_out_tokens=36)  # two segments and a part of one
    model, length = make_model(mechanism), task.options.window
    fresh, kept, count = (np.zeros(length) for _ in range(3))
    texts = toy_streams.documents("validation")
    for target in range(1, 36):
        place = (target - 1) % length
        fresh[place] += nats(model, [x[target - 1 - place : target + 1] for x in texts]).sum()
        count[place] += len(texts)
        if task.keeps_state([mechanism]):
            kept[place] += nats(model, [x[: target + 1] for x in texts]).sum()
    segments = task.windows("validation", length, length)
    found = [sum_by_position(model, task, segments, 1, x) for x in (False, True)]
    np.testing.assert_allclose(found[0], [fresh, count], rtol=1e-4)
    if task.keeps_state([mechanism]):
        np.testing.assert_allclose(found[1], [kept, count], rtol=1e-4)
        assert (np.abs(fresh - kept) > 1e-3).any()
    else:
        np.testing.assert_allclose(found[1], found[0])


@pytest.mark.parametrize("mechanism", ["transformer_xl", "compressive"])
def test_losses_by_position_sum_to_the_score_of_the_run(task, mechanism):
    """A batch begins some rows within documents, without a state, as evaluations do."""
    model, length = make_model(mechanism), task.options.window
    segments = task.windows("test", length, length)
    fresh, kept = (sum_by_position(model, task, segments, 3, x) for x in (False, True))
    score = evaluate(model, task, "test", batch_size=3, device=torch.device("cpu")).score
    assert kept.sum(1).tolist() == pytest.approx(
        [score.loss * score.num_targets, score.num_targets], rel=1e-5
    )
    alone = sum_by_position(model, task, segments, 1, False)
    np.testing.assert_allclose(fresh, alone, rtol=1e-5)


def test_ranges_of_positions_double_and_hold_weighted_means():
    assert list(position_ranges(9)) == [(0, 0), (1, 1), (2, 3), (4, 7), (8, 8)]
    assert list(position_ranges(1)) == [(0, 0)]
    assert list(position_ranges(4)) == [(0, 0), (1, 1), (2, 3)]
    fresh = np.array([[4.0, 3.0, 6.0, 1.0], [2, 2, 2, 1]])
    found = losses_by_position(fresh, fresh * [[2.0], [1.0]])
    assert [(x.first, x.last, x.targets) for x in found] == [(0, 0, 2), (1, 1, 2), (2, 3, 3)]
    assert [x.fresh for x in found] == pytest.approx([2, 1.5, 7 / 3])
    assert [x.kept for x in found] == pytest.approx([4, 3, 14 / 3])
    assert {x.kept for x in losses_by_position(fresh, None)} == {None}


@pytest.mark.parametrize("mechanism", [*MEMORIES, "local"])
def test_losses_by_context_are_those_of_cut_documents(task, mechanism):
    model, contexts = make_model(mechanism), [1, 7, 32, 40]
    windows, rows, available = block_windows(task, "validation", 40, 2)
    texts = toy_streams.documents("validation")
    starts = np.cumsum([0, *map(len, texts)])
    # Of a document of n tokens, the targets from 40 on are divided into whole blocks.
    assert available == sum((len(text) - 40) // BLOCK for text in texts)
    assert len(rows) == len(set(rows.tolist())) == 2
    documents = windows.documents[rows]
    firsts = windows.starts[rows] - starts[documents] + 40
    assert not ((firsts - 40) % BLOCK).any()
    expected = np.zeros((len(contexts), len(rows)))
    for line, context in enumerate(contexts):
        for place in range(BLOCK):
            expected[line] += nats(
                model,
                [
                    texts[document][first - context : first + place + 1]
                    for document, first in zip(documents, firsts, strict=True)
                ],
            )
    expected /= BLOCK
    for tokens_per_batch in (1, 150, 10_000):
        found = block_losses(model, windows, rows, contexts, tokens_per_batch)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_blocks_are_drawn_once_for_every_model_and_number_of_contexts(task):
    _, few, available = block_windows(task, "validation", 40, 3)
    _, again, _ = block_windows(task, "validation", 40, 3)
    _, every, _ = block_windows(task, "validation", 40, 1_000)
    assert few.tolist() == again.tolist()
    assert set(few.tolist()) < set(every.tolist())
    assert few.tolist() != every[:3].tolist()  # they are drawn, not the first ones
    assert len(every) == available
    _, none, nothing = block_windows(task, "validation", 400, 3)
    assert (len(none), nothing) == (0, 0)


def test_limits_of_held_out_documents_limit_blocks(tmp_path):
    short = open_task(tmp_path, held_out_tokens=80)
    *_, available = block_windows(short, "validation", 40, 9)
    sizes = [min(80, len(text)) for text in toy_streams.documents("validation")]
    assert available == sum((size - 40) // BLOCK for size in sizes)


def test_contexts_double_up_to_the_longest():
    assert context_lengths(16) == [16]
    assert context_lengths(32) == [32]
    assert context_lengths(33) == [32, 33]
    assert context_lengths(256) == [32, 64, 128, 256]
    assert context_lengths(300) == [32, 64, 128, 256, 300]


def test_intervals_are_paired_over_the_blocks():
    """Blocks differ by far more than the contexts do: unpaired intervals would be 20 times wider.

    The paired one is that of the normal approximation.
    """
    generator = np.random.default_rng(3)
    base, noise = generator.normal(5, 2, 400), generator.normal(0.1, 0.1, 400)
    losses = np.stack((base + noise, base))
    shorter, longest = compare_contexts(losses, [32, 64])
    assert (longest.difference, longest.low, longest.high) == (0, 0, 0)
    assert shorter.loss == pytest.approx(losses[0].mean())
    assert shorter.difference == pytest.approx(noise.mean())
    half = 1.96 * noise.std() / 20
    assert shorter.low == pytest.approx(noise.mean() - half, abs=0.1 * half)
    assert shorter.high == pytest.approx(noise.mean() + half, abs=0.1 * half)


def test_attention_by_bucket_is_that_of_single_pairs(task):
    """A part of 24 keys has buckets of four, one of 16 has two or three in each."""
    model = make_model("transformer_xl", attention_options={"segment": 16, "memory": 24})
    tokens, first = torch.from_numpy(documents_of(48)), 32
    expected = np.zeros((2, 2, 6))
    with torch.no_grad():
        states = model.model(tokens, output_hidden_states=True, use_cache=False).hidden_states
        for x, layer, total in zip(states, model.model.layers, expected, strict=False):
            own = layer.attention
            x = layer.attention_norm(x) if model.config.norm == "pre" else x
            q, k = (y(x).unflatten(-1, (2, 8)).transpose(1, 2) for y in (own.query, own.key))
            for i in range(first, 48):
                seen = torch.ones(1, i - 7, dtype=torch.bool)
                distance = i - torch.arange(8, i + 1)
                pair = q[:, :, i : i + 1], k[:, :, 8 : i + 1], distance[None], seen
                weights = own.mechanism.reference_weights(*pair).mean((0, 1, 2)).numpy() / 16
                for key, weight in enumerate(weights):
                    part, place, size = (0, key, 24) if key < 24 else (1, key - 24, 16)
                    total[part, int(6 * place / size)] += weight
    windows = task.windows("validation", 48, 48)
    (rows,) = np.nonzero(windows.lengths == 48)
    assert len(rows) == 4
    found = shares_by_bucket(model, windows, rows)
    assert [list(x) for x in found] == [["memory", "segment"]] * 2
    np.testing.assert_allclose([list(x.values()) for x in found], expected, rtol=1e-4)
    parts = [list(x.values()) for x in shares_by_part(found)]
    np.testing.assert_allclose(parts, expected.sum(-1), rtol=1e-4)


def documents_of(length):
    """Return whole windows of the held-out documents, (N, length), without their last token."""
    texts = toy_streams.documents("validation")
    cut = [x[at : at + length] for x in texts for at in range(0, len(x) - length, length)]
    return np.stack(cut).astype(np.int64)


@pytest.mark.parametrize("mechanism", MEMORIES)
def test_equal_weights_give_each_bucket_the_share_of_its_keys(task, mechanism):
    """Without scores the share of a bucket is the mean share of its keys among the visible ones."""
    model = make_model(mechanism)
    for name, parameter in model.named_parameters():
        if ".query." in name or name.endswith(("content_bias", "position_bias")):
            torch.nn.init.zeros_(parameter)
    length = window_with_memory(memory_layers(model))
    windows = task.windows("validation", length, length)
    (rows,) = np.nonzero(windows.lengths == length)
    sizes = {"transformer_xl": (16, 16), "compressive": (4, 16, 16), "position_infused": (24, 16)}
    *kept, segment = sizes[mechanism]
    expected = np.zeros((len(kept) + 1, 6))
    for query in range(segment):
        visible = sum(kept) + query + 1
        for part, size in enumerate((*kept, segment)):
            keys = range(size if part < len(kept) else query + 1)
            for key in keys:
                # Four slots are four buckets.
                bucket = key if size < 6 else int(6 * key / size)
                expected[part, bucket] += 1 / visible / segment
    assert expected.sum() == pytest.approx(1)
    found = shares_by_bucket(model, windows, rows)
    for shares, parts in zip(found, shares_by_part(found), strict=True):
        np.testing.assert_allclose([*shares.values()], expected, rtol=1e-5)
        assert list(parts) == ["compressed memory", "memory", "segment"][-len(kept) - 1 :]
        assert list(parts.values()) == pytest.approx(expected.sum(-1).tolist(), rel=1e-5)


def test_models_without_a_memory_have_no_parts(task):
    assert memory_layers(make_model("local")) == []
    assert memory_reach([]) == 0


def test_memories_of_layers_reach_one_behind_the_other():
    layers = memory_layers(make_model("compressive"))
    assert [(x.segment, x.memory_tokens) for x in layers] == [(16, 32)] * 2
    assert memory_reach(layers) == 16 + 2 * 32
    assert window_with_memory(layers) == 48


MODEL = ModelConfig(
    **{**tiny.MODEL, "num_hidden_layers": 2},
    hidden_dropout_prob=0.0,
    attention_dropout=0.0,
    position="rotary",
)
TRAINING = TrainingConfig(
    **{**tiny.TRAIN, "steps": 4, "eval_batch_size": 1}, schedule="constant", train_eval_examples=0
)
ROWS = {"transformer_xl": {"segment": 16, "memory": 16}, "local": {"window": 8}}


def test_models_with_parameters_for_each_position_read_no_further(tmp_path):
    task = open_task(tmp_path, length=64)
    learned = make_model("local", position="learned", max_position_embeddings=64)
    longest = run_context._longest_context(task, learned)
    assert longest + BLOCK - 1 == 64
    windows, rows, _ = block_windows(task, "validation", longest, 2)
    assert np.isfinite(block_losses(learned, windows, rows, [longest], 64)).all()
    assert run_context._longest_context(task, make_model("local")) == 64


def test_windows_that_slide_are_measured_as_segments(tmp_path):
    sliding = open_task(tmp_path, evaluation="sliding", stride=4)
    model, length = make_model("transformer_xl"), 16
    both = []
    for task in (sliding, open_task(tmp_path)):
        segments = task.windows("validation", length, length)
        both.append(sum_by_position(model, task, segments, 1, True))
    np.testing.assert_array_equal(*both)


def register_toy():
    """Register the toy stream, and a protocol of it."""
    if toy_streams.ToyStream.info.name not in TASKS:
        register_task(toy_streams.ToyStream)
    return Protocol(
        name="streams",
        summary="",
        source="a test",
        tasks=(toy_streams.ToyStream.info.name,),
        differs="",
        recipe=lambda _: Recipe({}, MODEL, TRAINING),
        mechanism_options=ROWS,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Paths and records of runs of two mechanisms on the toy stream."""
    protocol = register_toy()
    PROTOCOLS[protocol.name] = protocol
    folder = tmp_path_factory.mktemp("streams")
    paths, made = tiny.paths(folder / "runs", folder / "cache"), {}
    task = toy_streams.ToyStream()
    task.open(paths.cache)
    for name in ROWS:
        experiment = protocol.experiment(task.info.name, name, 0)
        run(experiment, task, paths)
        made[name] = paths.record_file(experiment)
    yield paths, made
    del PROTOCOLS[protocol.name], TASKS[task.info.name]


def measure(trained, name, **changes):
    paths, records = trained
    return measure_context(records[name], paths, **{"blocks": 4, "tolerance": 0.01, **changes})


def test_measured_run_is_described_by_its_record(trained):
    found = measure(trained, "transformer_xl")
    assert (found.mechanism, found.split, found.segment) == ("transformer_xl", "validation", 16)
    # A segment of 16 tokens, and a memory of 16 in each of two layers.
    assert [one.context for one in found.contexts] == [32, 48]
    texts = toy_streams.documents("validation")
    assert found.available == sum((len(x) - 48) // BLOCK for x in texts)
    assert found.blocks == 4
    assert [(x.first, x.last) for x in found.positions][-1] == (8, 15)
    assert sum(x.targets for x in found.positions) == sum(len(x) - 1 for x in texts)
    score = load_result(trained[1]["transformer_xl"]).scores["validation"]
    kept = sum(x.kept * x.targets for x in found.positions) / score.num_targets
    assert kept == pytest.approx(score.loss, rel=1e-5)
    assert [list(x) for x in found.parts] == [["memory", "segment"]] * 2
    assert found.part_windows == sum((len(x) - 1) // 32 for x in texts)


def test_models_without_a_memory_read_a_segment(trained):
    found = measure(trained, "local", split="test")
    assert [one.context for one in found.contexts] == [16]
    assert found.effective == 16
    assert {one.kept for one in found.positions} == {None}
    assert (found.parts, found.part_windows) == ([], 0)


def test_longer_contexts_than_the_segments_can_be_asked_for(trained):
    found = measure(trained, "local", max_context=70, blocks=100)
    assert [one.context for one in found.contexts] == [32, 64, 70]
    assert found.blocks == found.available == 4
    # Two layers with windows of 8 see 16 tokens back: the rest of the context changes nothing.
    assert [one.difference for one in found.contexts] == pytest.approx([0, 0, 0], abs=1e-6)
    assert found.effective == 32


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"split": "train"}, UnknownNameError, "no held-out split called 'train'"),
        ({"blocks": 1, "tolerance": -1.0}, OptionError, "blocks must be >= 2, got 1; the toler"),
        ({"max_context": 0}, OptionError, "longest context must be >= 1, got 0"),
        (
            {"max_context": 110},
            OptionError,
            "1 block of 16 targets in validation has 110 tokens before it in its document, 2 are "
            "needed; pass --max-context of at most 98",
        ),
    ],
)
def test_requests_without_sense_are_refused(trained, changes, error, message):
    with pytest.raises(error, match=message):
        measure(trained, "local", **changes)


def test_the_proposed_longest_context_has_two_blocks(trained):
    assert measure(trained, "local", max_context=98).blocks == 2


def test_runs_on_other_layouts_are_refused(tiny_cache, tmp_path):
    paths = tiny.paths(tmp_path, tiny_cache)
    experiment = tiny.experiment()
    run(experiment, tiny.listops(tiny_cache), paths)
    with pytest.raises(OptionError, match="listops has examples of another form"):
        measure_context(paths.record_file(experiment), paths, blocks=4, tolerance=0.01)


def test_command_saves_prints_and_reports(cli, trained, tmp_path):
    paths, records = trained
    flags = ["--cache", paths.cache, "--device", "cpu", "--blocks", 3]
    code, out, err = cli("context", *records.values(), *flags)
    assert code == 0, err
    first, second = out.splitlines()
    assert first.startswith("streams toy_stream transformer_xl, seed 0: effective context ")
    assert "attention of the last layer: memory " in first
    assert "3 of 8 blocks of validation" in first
    assert "with 16 tokens" in second
    saved = load_side_records(ContextUse, [paths.runs])
    assert {x.filename for x in saved} == {path.name for path in records.values()}
    assert {x.blocks for x in saved} == {3}
    assert len(load_results([paths.runs])) == 2
    code, out, _ = cli("context", records["local"], *flags, "--max-context", 40, "--json")
    assert [x["context"] for x in json.loads(out)[0]["contexts"]] == [32, 40]
    page = tmp_path / "report.html"
    code, out, err = cli("report", paths.runs, "--section", "context", "--output", page)
    assert code == 0, err
    assert "loss by the context that is left" in " ".join(out.split())
    assert "attention by part of the keys" in " ".join(out.split())
    assert "Use of the context" in page.read_text()
    code, _, err = cli("context", paths.runs, *flags, "--max-context", 110)
    assert code == 1
    assert err.count("failed: ") == 2
