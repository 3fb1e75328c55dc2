"""The retrieval task: both papers as ids, balanced subsets, and a run from end to end."""

import dataclasses
from collections import Counter
from functools import partial

import pytest
from task_calls import open_beside

import tiny
from aan_files import PAIRS, PAPERS, write_by_id
from longspan.arena import make_model, run
from longspan.data.tokenizers import END, UNKNOWN
from longspan.errors import OptionError
from longspan.models import LongspanForPairClassification, encoder_flops
from longspan.tasks import SPLITS, build, configure
from longspan.training import fit
from real_data import real

opened = partial(open_beside, "retrieval")

CHARACTERS = {"vocabulary": "characters"}


@pytest.fixture
def data(nowhere):
    return write_by_id(nowhere / "data")


def examples(task, split):
    """Return (first ids, second ids, label) of every row, from batches, without padding."""
    found = {}
    batch_size = task.size(split) if split == "train" else 3
    for part in task.batches(split, batch_size=batch_size):
        for n, row in enumerate(part.rows.tolist()):
            first = part.inputs["input_ids"][n][part.inputs["attention_mask"][n]].tolist()
            second = part.inputs["input_ids_b"][n][part.inputs["attention_mask_b"][n]].tolist()
            found[row] = (first, second, int(part.targets[n]))
        if split == "train":
            break
    return [found[row] for row in range(task.size(split))]


def with_task(experiment, options):
    config = dataclasses.replace(experiment.config, task=configure("retrieval", options))
    return dataclasses.replace(experiment, config=config)


def byte_ids(paper, length):
    return [byte + 1 for byte in PAPERS[paper].encode()[:length]]


@pytest.mark.parametrize("length", [12, 4_000])
def test_tokens_are_bytes_of_both_papers(data, length):
    task = opened(data, length=length)
    for split in SPLITS:
        assert examples(task, split) == [
            (byte_ids(a, length), byte_ids(b, length), label) for label, a, b in PAIRS[split]
        ]
        assert task.labels(split).tolist() == [label for label, _, _ in PAIRS[split]]


def test_characters_are_counted_over_training_pairs(tmp_path):
    papers = {**PAPERS, "P00": "zzzzzzzz" * 9, "P11": "猫 of no training pair"}
    task = opened(write_by_id(tmp_path / "data", papers=papers), **CHARACTERS, length=50)
    counts = Counter(c for _, *pair in PAIRS["train"] for paper in pair for c in papers[paper][:50])
    characters = "".join(sorted(counts, key=lambda c: (-counts[c], ord(c))))
    assert task.facts["characters"] == characters
    assert "猫" not in characters
    for split in SPLITS:
        for (first, second, _), (_, a, b) in zip(examples(task, split), PAIRS[split], strict=True):
            for ids, paper in ((first, a), (second, b)):
                text = papers[paper][:50]
                truth = [3 + characters.index(c) if c in characters else UNKNOWN for c in text]
                assert ids == truth


def test_characters_of_a_subset_come_from_the_subset(data):
    task = opened(data, **CHARACTERS, end=True, train=2)
    whole = opened(data, **CHARACTERS, end=True)
    assert set(task.facts["characters"]) < set(whole.facts["characters"])
    for first, second, _ in examples(task, "test"):
        assert first[-1] == second[-1] == END


def test_subsets_are_balanced_and_nested(data):
    small, large = opened(data, train=4, validation=2), opened(data, train=6)
    assert small.labels("train").bincount().tolist() == [2, 2]
    assert small.labels("validation").bincount().tolist() == [1, 1]
    kept, more, every = (
        [str(x) for x in examples(task, "train")] for task in (small, large, opened(data))
    )
    assert set(kept) < set(more) < set(every)
    assert examples(small, "test") == examples(large, "test")
    chosen = [examples(opened(data, train=4, seed=seed), "train") for seed in range(4)]
    assert len({str(one) for one in chosen}) > 1


def test_splits_are_sampled_independently(tmp_path):
    """Of the same pairs in train and test, different ones are chosen."""
    same = [(n % 2, f"P{n // 2:02d}", f"P{11 - n % 2:02d}") for n in range(20)]
    place = write_by_id(tmp_path / "data", dict.fromkeys(PAIRS, same))
    task = opened(place, train=6, test=6)
    assert examples(task, "train") != examples(task, "test")


def test_facts_count_labels_and_shared_papers(data):
    facts = opened(data).facts
    assert facts["labels"] == {"train": [4, 4], "validation": [2, 2], "test": [1, 1]}
    assert facts["shared"]["train and validation"] == {"papers": 3, "pairs": 0}
    assert facts["shared"]["validation and test"] == {"papers": 1, "pairs": 0}
    assert set(facts["source_sha256"]) > {"papers.parquet"}


@pytest.mark.parametrize("options", [{}, CHARACTERS, {**CHARACTERS, "end": True}])
def test_show_gives_both_texts_and_the_label(data, options):
    task = opened(data, **options)
    label, a, b = PAIRS["train"][3]
    words = ("no citation", "citation")[label]
    assert task.show("train", 3) == f"{PAPERS[a]}\n\n{PAPERS[b]}\n\n= {words}"
    with pytest.raises(OptionError, match="row 8 of 'train'"):
        task.show("train", 8)


def test_show_truncates_long_papers(tmp_path):
    papers = {**PAPERS, "P10": "é" * 5_000}
    shown = opened(write_by_id(tmp_path / "data", papers=papers)).show("test", 0)
    assert shown.startswith("é" * 100)
    assert len(shown) < 1_000


def test_too_many_pairs_are_rejected(data):
    with pytest.raises(OptionError, match="train=10 needs 5 pairs without a citation, there are 4"):
        opened(data, train=10)


@pytest.mark.parametrize("head", ["interaction", "concatenate"])
def test_run_end_to_end(data, tmp_path, head):
    """The record counts every pair, and the cost of encoding both sequences."""
    task = opened(data, length=40)
    made = tiny.experiment(changes={"model.pair_head": head, "training.steps": 2})
    made = with_task(made, {"length": 40})
    record = run(made, task, tiny.paths(tmp_path / "runs", data.parent / "cache"))
    assert {split: score.num_examples for split, score in record.scores.items()} == {
        "train": 4,
        "validation": 4,
        "test": 2,
    }
    config = make_model(made, task).config
    assert record.flops == LongspanForPairClassification.flops(config, task.input_shapes)
    assert record.flops > 2 * encoder_flops(config, 40)
    assert record.data_source == task.source
    tokens = sum(
        int(batch.inputs["attention_mask"].sum() + batch.inputs["attention_mask_b"].sum())
        for _, batch in zip(range(2), task.batches("train", batch_size=4), strict=False)
    )
    assert record.tokens_per_second == pytest.approx(tokens / record.seconds)


def test_training_on_real_pairs(tmp_path):
    """Every pair of validation and test is scored after a few steps."""
    sizes = {"train": 400, "validation": 100, "test": 200}
    options = {"length": 100, **CHARACTERS, "minimum": 15, "end": True, **sizes}
    task = build("retrieval", options)
    task.open(tmp_path / "cache", real("aan", "papers.parquet"))
    assert {split: task.size(split) for split in SPLITS} == sizes
    made = tiny.experiment(changes={"training.steps": 4, "training.eval_batch_size": 64})
    made = with_task(made, options)
    model = make_model(made, task)
    outcome = fit(model, task, made.config.training, seed=0, folder=tmp_path / "run", device="cpu")
    for split in ("validation", "test"):
        assert outcome.scores[split].num_examples == sizes[split]
    assert outcome.scores["test"].majority_baseline == 0.5
    assert outcome.scores["test"].loss < 2
    assert outcome.tokens == 4 * 4 * 2 * 100
