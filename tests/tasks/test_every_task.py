"""Contract of every registered task, over miniatures of its published files or generated data."""

import copy
import dataclasses
import itertools
import shutil

import numpy as np
import pytest
import torch

from longspan.errors import DataError
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.data_cards import GENERATED, compute_statistics, write_card
from published_folders import SOURCES, make_source

SIZES = {"train": 5, "validation": 3, "test": 4}
MAD = ("in_context_recall", "noisy_recall", "fuzzy_recall", "compression", "memorization")
GENERATED_OPTIONS = {
    "copying": {**SIZES, "length": 40, "count": 4},
    "needle": {**SIZES, "length": 40},
    **{name: {**SIZES, "length": 40} for name in (*MAD, "duplication")},
    "recall": {**SIZES, "length": 40, "pairs": 4, "vocabulary": 64},
    "pathfinder": SIZES,
    "path_x": SIZES,
}
# Options that decide no data, by the task or its base; others make a data set of their own.
ENCODING = {"global_tokens"}
QUESTION = {"answer_length", "global_tokens", "boundaries"}
STREAM = {"length", "keep_state", "evaluation", "evaluation_length", "stride", "held_out_tokens"}
SUMMARY = ENCODING | {"beams", "length_penalty", "no_repeat_ngram_size", "min_tokens"}
NOT_IN_DATA = {
    **dict.fromkeys(("text", "retrieval", "newsgroups", "hyperpartisan"), ENCODING),
    **{name: {"pixels"} for name in ("image", "pathfinder", "path_x")},
    **dict.fromkeys(("squad", "xquad", "triviaqa"), QUESTION),
    "hotpotqa": QUESTION | {"support_weight", "support_paragraphs"},
    "wikihop": {"length", "windows", "candidates", "global_tokens", "shuffle"},
    "coreference": {
        *("length", "windows", "span_width", "spans_per_token", "antecedents", "depth"),
        *("global_tokens", "boundaries"),
    },
    "aan_retrieval": ENCODING | {"negatives", "towers", "similarity", "temperature", "metric"},
    **dict.fromkeys(("arxiv_summarization", "pubmed_summarization"), SUMMARY),
    **dict.fromkeys(("text8", "enwik8", "wikitext_2", "wikitext_103", "pg19"), STREAM),
}
MASKS = {"mask_probability", "replaced", "random"}
every_task = pytest.mark.parametrize("name", sorted(TASKS))


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Return a function that opens a task, once: task, data, cache, sizes before the build."""
    opened = {}

    def open_task(name):
        if name not in opened:
            base, root = name.removeprefix("masked_"), tmp_path_factory.mktemp(name)
            task, data = build(base, GENERATED_OPTIONS.get(base)), None
            if base in SOURCES:
                task, data = make_source(base, root / "data", patch)
            task = build(name, dataclasses.asdict(task.options))
            sizes = task.sizes
            task.open(root / "cache", data)
            opened[name] = task, data, root / "cache", sizes
        return opened[name]

    with pytest.MonkeyPatch.context() as patch:
        yield open_task


def fresh(task):
    return type(task)(task.options)


def same(one, other):
    assert one.rows.equal(other.rows)
    assert one.targets.equal(other.targets)
    assert one.inputs.keys() == other.inputs.keys()
    assert all(x.equal(other.inputs[key]) for key, x in one.inputs.items())


@every_task
def test_evaluation_yields_every_example_once_and_training_resumes(make, name):
    task, *_ = make(name)
    for split in ("validation", "test"):
        rows = torch.cat([x.rows for x in task.batches(split, batch_size=3)])
        assert sorted(rows.tolist()) == list(range(task.size(split)))
    whole = list(itertools.islice(task.batches("train", batch_size=2, seed=1), 4))
    resumed = itertools.islice(task.batches("train", batch_size=2, seed=1, start=2), 2)
    for one, other in zip(whole[2:], resumed, strict=True):
        same(one, other)


@every_task
def test_ids_and_global_tokens_are_within_what_the_task_says(make, name):
    task, data, _, sizes = make(name)
    assert fresh(task).vocab_size == task.vocab_size
    if data is None:  # published files have other sizes than their miniatures
        assert sizes == {split: task.size(split) for split in SPLITS}
    for batch in itertools.islice(task.batches("train", batch_size=2), 2):
        for key, x in batch.inputs.items():
            if key.endswith("input_ids") or key == "input_ids_b":
                assert x.min() >= 0
                assert x.max() < task.vocab_size
            if key.endswith("global_attention_mask"):
                assert x.sum(-1).max() <= task.num_global_tokens
                assert not (x & ~batch.inputs[key.replace("global_", "")]).any()


@every_task
def test_options_decide_the_data_as_they_declare(name):
    task = TASKS[name]()
    base = name.removeprefix("masked_")
    expected = NOT_IN_DATA.get(base, set()) | (MASKS if name != base else set())
    for field in dataclasses.fields(task.Options):
        other = fresh(task)
        other.options = copy.copy(task.options)
        object.__setattr__(other.options, field.name, "other")
        # Without a selection the number of its paragraphs has no effect; a selection is a file.
        if base == "hotpotqa" and field.name in ("selection", "paragraphs"):
            continue
        assert (other.data_options() == task.data_options()) == (field.name in expected)


@every_task
def test_a_built_set_opens_without_its_files(make, nowhere, name):
    task, data, cache, _ = make(name)
    again = fresh(task)
    assert again.describe_missing_data(None, cache) is None
    again.open(cache)
    assert (again.checksum, again.facts) == (task.checksum, task.facts)
    assert again.show("test", 0) == task.show("test", 0)
    assert again.ids_to_tokens(np.array([1])) == task.ids_to_tokens(np.array([1]))
    shared = fresh(task)
    shared.share_data(task)
    assert shared.dataset is task.dataset
    if data is None:
        return
    (nowhere / "empty").mkdir()
    missing = rf"not here.*`longspan data build {task.data_name} --data F"
    for place in (None, nowhere / "empty"):
        with pytest.raises(DataError, match="not here"):
            fresh(task).open(nowhere / "cache", place)
    if "release" not in task.describe_missing_data(nowhere / "empty"):
        with pytest.raises(DataError, match=missing):
            fresh(task).open(nowhere / "cache")


@every_task
def test_card_of_a_built_set_has_its_checksum(make, name):
    task, data, cache, _ = make(name)
    card = write_card(fresh(task), cache)
    assert card.startswith(f"# Data card: {task.info.title}\n")
    assert task.checksum in card
    assert "is not built" not in card
    assert (GENERATED in card) == (data is None)


@every_task
def test_statistics_are_those_of_the_examples(make, name):
    """Rows that are stored may be others, and details are no sequence that a model reads."""
    task, *_ = make(name)
    for split in SPLITS:
        found = compute_statistics(task, split)
        assert found["examples"] == task.size(split)
        assert set(found["sequences"]) <= {"tokens", "second"}
        if "evaluation" in vars(task.options):  # of a stream
            tokens = sum(
                x.num_tokens
                for x in task.batches(split, batch_size=3, rows=np.arange(task.size(split)))
            )
            assert found["sequences"]["tokens"]["sum"] == tokens


@every_task
def test_groupings_put_each_example_in_one_group(make, name):
    task, *_ = make(name)
    for split in SPLITS:
        for grouping in task.groupings(split):
            assert grouping.group.shape == (task.size(split),)
            assert set(grouping.group) <= {-1, *range(len(grouping.labels))}


def test_a_changed_source_is_another_data_set(make, tmp_path):
    """Names and sizes of the files are part of the identity of a copy."""
    task, data, *_ = make("triviaqa")
    shutil.copytree(data, tmp_path / "data")
    path = tmp_path / "data" / "qa" / "wikipedia-train.json"
    path.write_text(path.read_text().replace("Which is 5?", "Which color is 5?"))
    assert fresh(task).identify_source(tmp_path / "data") != task.identify_source(data)
