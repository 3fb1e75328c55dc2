"""Analyses of models that read windows, score tokens, or get global tokens from their task."""

from pathlib import Path

import numpy as np
import pytest
import torch

import toy_streams
from aan_files import write_by_id
from conll_files import write_conll
from corpus_files import make_task, write_folder
from longspan.analysis import example_rollouts, layers
from longspan.analysis import run_analysis as module
from longspan.arena.protocols.files import register_imports
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.errors import OptionError
from longspan.models import LongspanConfig
from longspan.results.analysis import pack_tokens
from longspan.tasks import build
from own_files import forgotten_imports, reviews, write_csv
from wikihop_files import write_wikihop

CASES = {
    "wikihop": (write_wikihop, {"length": 128, "candidates": 6, "windows": 2}),
    "coreference": (write_conll, {"length": 48, "windows": 3}),
}
WINDOW = {"attention": "longformer", "attention_options": {"window": 2}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for name, (write, _) in CASES.items():
        found[name] = tmp_path_factory.mktemp(name)
        write(found[name])
    return found


def opened(folders, name, **options):
    task = build(name, {**CASES[name][1], **options})
    task.open(folders[name] / "cache", folders[name])
    return task


def build_model(task, **fields):
    torch.manual_seed(0)
    sizes = {"vocab_size": task.vocab_size, "max_position_embeddings": task.length}
    config = LongspanConfig(hidden_size=16, **{**sizes, **task.model_fields, **fields})
    config.num_labels = task.num_classes
    return task.head(config).eval()


def first_window(task, row):
    (batch,) = layers.batches_of_rows(task, np.array([row]))
    return batch, batch.inputs["input_ids"][0, 0][batch.inputs["attention_mask"][0, 0]]


@pytest.mark.parametrize("name", CASES)
def test_texts_in_windows_are_analyzed_by_their_first_window(folders, name):
    task = opened(folders, name)
    model = build_model(task, **WINDOW)
    rows = np.arange(task.size("validation"))
    measured = module.measure_spans(model.base_model, task, rows)
    assert measured.spans.shape == (len(rows), 2, 2)
    lengths = [len(first_window(task, row)[1]) for row in rows]
    assert sorted(measured.lengths.tolist()) == sorted(lengths)
    for found in example_rollouts.roll_out_examples(model, task, rows.tolist()):
        batch, tokens = first_window(task, found.row)
        assert batch.inputs["input_ids"].shape[1] > 1
        assert (found.part, found.start) == (1, "the scored tokens")
        assert found.tokens == task.ids_to_tokens(tokens.numpy())
        assert len(found.shares.unpack()) == len(tokens)
        assert found.shares.unpack().sum() == pytest.approx(1, abs=1e-3)


def test_encoder_decoders_are_refused():
    """The message has what was expected, what was given, and the remedy."""
    with pytest.raises(OptionError) as caught:
        module._check_layout(Path("runs/local-1-0.json"), build("pubmed_summarization"))
    for part in (
        "need a model with one stack of layers",
        "local-1-0.json is an encoder-decoder of pubmed_summarization",
        "Name the record of a run on another task",
    ):
        assert part in str(caught.value)


def test_models_of_all_texts_are_refused(tmp_path):
    path = write_csv(tmp_path / "all.csv", [x[:2] for x in reviews(30)], ("body", "stars"))
    import_texts(tmp_path / "cache", "whole", path, TextsRequest(text="body", target="stars"))
    with forgotten_imports(tmp_path):
        register_imports(tmp_path / "cache")
        task = build("whole", {"length": 64, "train_on": "all"})
        task.open(tmp_path / "cache")
        message = r"need examples of validation; local-1-0\.json has the splits train\. Name"
        with pytest.raises(OptionError, match=message):
            module._check_layout(Path("runs/local-1-0.json"), task)


def test_scored_tokens_of_candidates_are_their_markers(folders):
    task = opened(folders, "wikihop")
    batch, tokens = first_window(task, 0)
    (scored,) = example_rollouts._scored_tokens(batch)
    symbols = task.ids_to_tokens(batch.inputs["input_ids"][0, 0].numpy())
    assert [symbols[n] for n in scored.nonzero().flatten()] == ["[ent]"] * int(
        (batch.inputs["candidate_positions"] >= 0).sum()
    )
    assert len(tokens) <= 128


def test_tokens_of_a_window_are_counted(folders):
    task = opened(folders, "wikihop")
    _, tokens = first_window(task, 0)
    module._first_row(task, 0, len(tokens) - 1)
    with pytest.raises(OptionError, match=rf"must be in 0\.\.{len(tokens) - 1}"):
        module._first_row(task, 0, len(tokens))


def test_spans_are_those_of_the_task_s_global_tokens(folders):
    """With global tokens a window of two tokens attends far beyond them."""
    spans = {}
    for chosen in ("none", "candidates"):
        task = opened(folders, "wikihop", global_tokens=chosen)
        model = build_model(task, **WINDOW)
        spans[chosen] = module.measure_spans(model.base_model, task, np.arange(2)).spans
    assert spans["none"].max() <= 2
    assert spans["candidates"].min() > 10


@pytest.mark.parametrize("name", ["full", "local", "linear", "transformer_xl", "gated_delta"])
def test_left_to_right_models_are_analyzed_by_their_segments(tmp_path, name):
    """Stored rows of a stream are no segments, and decoders keep a state by default."""
    task = toy_streams.ToyStream(toy_streams.ToyStream.Options(length=12))
    task.open(tmp_path / "cache")
    model = toy_streams.make_decoder(name, {}, position="auto").eval()
    rows = np.arange(task.size("validation"))
    measured = module.measure_spans(model.base_model, task, rows)
    assert np.isfinite(measured.spans[measured.lengths > 1]).all()
    assert (measured.spans < measured.lengths[:, None, None] / 2).all()
    for found in example_rollouts.roll_out_examples(model, task, rows.tolist()):
        (batch,) = layers.batches_of_rows(task, np.array([found.row]))
        (sequence,) = layers.sequences(batch)
        assert (found.part, found.start, found.prediction) == (1, "the scored tokens", None)
        assert found.tokens == task.ids_to_tokens(sequence.inputs[sequence.mask].numpy())
        assert found.shares.unpack().sum() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("kind", ["class", "labels", "number"])
def test_rollouts_name_the_class_of_texts_that_have_one(tmp_path, kind):
    rows = [(text, label, f"{label};{number % 3}", number) for text, label, number in reviews(30)]
    columns = {"class": "stars", "labels": "tags", "number": "score"}
    path = write_csv(tmp_path / "reviews.csv", rows, ("body", *columns.values()))
    request = TextsRequest(text="body", target=columns[kind], kind=kind)
    import_texts(tmp_path / "cache", kind, path, request)
    with forgotten_imports(tmp_path):
        register_imports(tmp_path / "cache")
        task = build(kind, {"length": 64})
        task.open(tmp_path / "cache")
        found = example_rollouts.roll_out_examples(build_model(task), task, [0, 1])
    names = {"pos", "neg"} if kind == "class" else {None}
    assert {x for one in found for x in (one.label, one.prediction)} <= names


@pytest.mark.parametrize("kind", ["corpus", "pairs"])
def test_rollouts_of_masked_texts_are_of_the_tokens_read(tmp_path, kind):
    """Windows and second texts are examples that no stored row has."""
    with forgotten_imports(tmp_path):
        if kind == "corpus":
            task = make_task(tmp_path / "cache", write_folder(tmp_path / "files"))
            task = task(task.Options(length=32))
        else:
            task = build("masked_retrieval", {"length": 40})
        data = None if kind == "corpus" else write_by_id(tmp_path / "pairs")
        task.open(tmp_path / "cache", data)
        rows = [0, task.size("validation") - 1]
        assert rows[1] >= len(task.dataset.splits["validation"])
        for found in example_rollouts.roll_out_examples(build_model(task), task, rows):
            (batch,) = layers.batches_of_rows(task, np.array([found.row]))
            ids = batch.inputs["input_ids"][batch.inputs["attention_mask"]]
            assert (ids == task.masking.mask_id).any()
            packed = pack_tokens(task.ids_to_tokens(ids.numpy()))
            assert {"text": found.text, "separator": found.separator} == packed
            found.check()


def test_rollouts_of_autoencoders_start_at_the_pooled_state(tmp_path):
    sizes = {"train": 3, "validation": 2, "test": 1}
    task = build("compression", {**sizes, "length": 12})
    task.open(tmp_path / "cache")
    (found,) = example_rollouts.roll_out_examples(build_model(task), task, [1])
    assert (found.start, found.prediction) == ("the last token", None)
    assert found.shares.unpack().argmax() == 11


def test_mechanisms_without_global_tokens_are_analyzed(folders):
    task = opened(folders, "wikihop")
    model = build_model(task, attention="linear")
    measured = module.measure_spans(model.base_model, task, np.arange(2))
    assert np.isfinite(measured.spans).all()
