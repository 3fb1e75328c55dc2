"""Masked inputs of the tasks of Long Range Arena: shares, mask tokens, pairs, one data set."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from task_calls import open_task

import tiny
from aan_files import PAIRS, PAPERS, write_by_id
from cifar_files import write_batches
from longspan.errors import DataError, OptionError
from longspan.tasks import IGNORE, SPLITS, TASKS, build
from longspan.tasks.lra.masked_inputs import MASK_PROBABILITIES, MASKED

IMAGE = {"validation": 10}


def images(folder, name="masked_image", **options):
    data = folder / "data"
    found = data if data.exists() else write_batches(data, 8)
    return open_task(name, folder / "cache", found, **IMAGE, **options)


def pairs(folder, name="masked_retrieval", **options):
    data = folder / "pairs"
    found = data if data.exists() else write_by_id(data)
    return open_task(name, folder / "cache", found, **options)


def test_shares_are_those_of_the_paper():
    shares = {base.info.name: share for base, share in MASK_PROBABILITIES.items()}
    text, vision = 0.15, 0.5
    assert shares == {
        **{"listops": 0.1, "text": text, "retrieval": text},
        **{"image": vision, "pathfinder": vision, "path_x": vision},
    }
    for name, share in shares.items():
        options = build(f"masked_{name}").options
        assert (options.mask_probability, options.replaced, options.random) == (share, 1.0, 0.0)


@pytest.mark.parametrize("base", [base.info.name for base in MASK_PROBABILITIES])
def test_symbols_are_those_of_the_task_and_a_mask(base):
    task, other = build(f"masked_{base}"), build(base)
    assert task.head_name == "masked_lm"
    assert task.vocab_size == task.num_classes == other.vocab_size + 1
    assert task.masking.mask_id == other.vocab_size
    assert task.length == other.length
    assert task.data_options() == other.data_options()
    assert task.info.version == other.info.version
    assert task.rules == ()
    assert [x.name for x in task.metrics] == ["perplexity", "accuracy"]


def test_masked_symbols_are_the_mask_and_their_targets_the_symbols(tiny_cache):
    options = {**tiny.TASK, "mask_probability": 0.3}
    task, other = open_task("masked_listops", tiny_cache, **options), tiny.listops(tiny_cache)
    assert task.dataset.folder == other.dataset.folder
    mask = task.masking.mask_id
    for split in SPLITS:
        rows = np.arange(task.size(split))
        shares = []
        for batch in task.batches(split, batch_size=9, rows=rows):
            hidden = batch.targets != IGNORE
            assert (batch.inputs["input_ids"][hidden] == mask).all()
            assert not (hidden & ~batch.inputs["attention_mask"]).any()
            symbols = torch.where(hidden, batch.targets, batch.inputs["input_ids"])
            for ids, real, row in zip(
                symbols, batch.inputs["attention_mask"], batch.rows, strict=True
            ):
                tokens = other.dataset.splits[split].tokens[int(row)]
                assert ids[real].tolist() == tokens.tolist()
            shares.append(hidden.sum(1) / batch.inputs["attention_mask"].sum(1))
        assert torch.cat(shares).mean() == pytest.approx(0.3, abs=0.02)


def test_masks_follow_from_the_batch_in_training_and_from_the_example_elsewhere(tiny_cache):
    task = open_task("masked_listops", tiny_cache, **tiny.TASK)
    whole = list(itertools.islice(task.batches("train", batch_size=8, seed=3), 5))
    resumed = next(task.batches("train", batch_size=8, seed=3, start=4))
    assert resumed.inputs["input_ids"].equal(whole[4].inputs["input_ids"])
    other = next(task.batches("train", batch_size=8, seed=4, start=4))
    assert not other.inputs["input_ids"].equal(whole[4].inputs["input_ids"])
    (one,) = task.batches("test", batch_size=1, rows=np.array([5]))
    for batch in task.batches("test", batch_size=7):
        for row, targets in zip(batch.rows.tolist(), batch.targets, strict=True):
            if row == 5:
                assert targets[targets != IGNORE].tolist() == one.targets[one.targets >= 0].tolist()


def test_pixels_are_masked_black_ones_too(nowhere):
    task, other = images(nowhere), images(nowhere, "image")
    assert task.dataset.folder == other.dataset.folder
    assert not task.masking.special[:256].any()
    (batch,) = task.batches("validation", batch_size=99)
    (plain,) = other.batches("validation", batch_size=99)
    hidden = batch.targets != IGNORE
    assert set(hidden.sum(1).tolist()) == {512}
    assert (batch.inputs["input_ids"][hidden] == 256).all()
    assert batch.targets[hidden].equal(plain.inputs["input_ids"][hidden])
    assert batch.inputs["input_ids"][~hidden].equal(plain.inputs["input_ids"][~hidden])


def test_continuous_masked_pixels_are_zero_and_have_their_gray_level_as_class(nowhere):
    task, other = (images(nowhere, name, pixels="continuous") for name in ("masked_image", "image"))
    levels = images(nowhere, "image")
    assert (task.num_classes, task.input_features) == (256, 1)
    assert task.head_name == "token_classification"
    (batch,) = task.batches("validation", batch_size=99)
    (plain,) = other.batches("validation", batch_size=99)
    (whole,) = levels.batches("validation", batch_size=99)
    hidden = batch.targets != IGNORE
    assert (batch.inputs["input_values"][hidden] == 0).all()
    assert (plain.inputs["input_values"] != 0).all()
    assert batch.inputs["input_values"][~hidden].equal(plain.inputs["input_values"][~hidden])
    assert batch.targets[hidden].equal(whole.inputs["input_ids"][hidden])


def test_both_texts_of_a_pair_are_examples(nowhere):
    task = pairs(nowhere, length=30)
    sizes = {split: 2 * len(rows) for split, rows in PAIRS.items()}
    assert {split: task.size(split) for split in SPLITS} == sizes
    assert task.sizes["train"] == 2 * build("retrieval").sizes["train"]
    for split, rows in PAIRS.items():
        order = [*(paper for _, paper, _ in rows), *(paper for *_, paper in rows)]
        expected = [[byte + 1 for byte in PAPERS[paper].encode()[:30]] for paper in order]
        found = {}
        for batch in task.batches(split, batch_size=3, rows=np.arange(len(order))):
            ids = torch.where(batch.targets == IGNORE, batch.inputs["input_ids"], batch.targets)
            for row, line, real in zip(
                batch.rows.tolist(), ids, batch.inputs["attention_mask"], strict=True
            ):
                found[row] = line[real].tolist()
        assert [found[row] for row in range(len(order))] == expected
        assert task.units(split).tolist() == [*range(len(rows)), *range(len(rows))]
        assert task.labels(split).tolist() == list(itertools.chain(*expected))
    assert task.unit == "pair"


def test_a_changed_pair_is_refused(nowhere):
    task = pairs(nowhere)
    stored = task.dataset.splits["test"]
    values = stored.second.values.copy()
    values[3] += 1
    object.__setattr__(stored.second, "values", values)
    with pytest.raises(DataError, match="row 0 has changed since it was written"):
        list(task.batches("test", batch_size=1))


def test_tokens_are_named_as_in_the_task(tiny_cache):
    task, other = open_task("masked_listops", tiny_cache, **tiny.TASK), tiny.listops(tiny_cache)
    ids = np.arange(1, other.vocab_size)
    assert task.ids_to_tokens(ids) == other.ids_to_tokens(ids)
    assert task.class_name(task.masking.mask_id) == MASKED


def hidden_in_evaluation(task, split, row):
    (batch,) = task.batches(split, batch_size=1, rows=np.array([row]))
    return batch.targets[batch.inputs["attention_mask"]] != IGNORE


def test_shown_texts_hide_what_is_masked(nowhere, tiny_cache):
    text, listops = pairs(nowhere), open_task("masked_listops", tiny_cache, **tiny.TASK)
    for task in (text, listops):
        for row in range(3):
            hidden, shown = hidden_in_evaluation(task, "test", row), task.show("test", row)
            assert shown.count(MASKED) == hidden.sum()
            assert task.svg("test", row) is None
            if task is listops:
                tokens = task.ids_to_tokens(task._examples("test").tokens[row])
                expected = [MASKED if x else y for x, y in zip(hidden, tokens, strict=True)]
                assert shown == " ".join(expected)
        with pytest.raises(OptionError, match="row 10000"):
            task.show("test", 10_000)
    assert text.show("test", 3).startswith("pair 1: Paper [masked]: n[masked]ïve")


@pytest.mark.parametrize("pixels", ["tokens", "continuous"])
def test_pictures_hide_what_is_masked(nowhere, pixels):
    task = images(nowhere, pixels=pixels)
    for row in range(2):
        colors = task.picture("test", row).reshape(-1, 3)
        hidden = hidden_in_evaluation(task, "test", row).numpy()
        plain = task.image("test", row).reshape(-1)
        assert ((colors == colors[:, :1]).all(1) == ~hidden).all()
        assert (colors[~hidden, 0] == plain[~hidden]).all()
        assert len(np.unique(colors[hidden], axis=0)) == 1
        assert "<image" in task.svg("test", row)
        assert task.class_names[0] not in task.show("test", row)


def test_pictures_of_masked_contours_do_not_mark_them(tmp_path):
    sizes = {"train": 2, "validation": 2, "test": 2}
    masked, plain = (open_task(x, tmp_path, **sizes) for x in ("masked_pathfinder", "pathfinder"))
    assert "<path" in plain.svg("test", 0)
    assert "<path" not in masked.svg("test", 0)
    assert "positive" not in masked.show("test", 0)


def test_global_tokens_of_masked_texts_are_marked(nowhere):
    task = pairs(nowhere, global_tokens=8)
    for batch in (next(task.batches(x, batch_size=3)) for x in ("train", "test")):
        places = torch.arange(batch.targets.shape[1])
        expected = batch.inputs["attention_mask"] & (places % 8 == 0)
        assert batch.inputs["global_attention_mask"].equal(expected)


def test_names_are_registered():
    bases = {base.info.name for base in MASK_PROBABILITIES}
    assert {f"masked_{name}" for name in bases} <= set(TASKS)
    for name in bases:
        given, own = (dataclasses.fields(TASKS[x].Options) for x in (name, f"masked_{name}"))
        added = {x.name for x in own} - {x.name for x in given}
        assert added == {"mask_probability", "replaced", "random"}
