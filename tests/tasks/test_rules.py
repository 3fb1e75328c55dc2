"""Rules without a model, compared with counts over the examples as text."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from aan_files import PAIRS, PAPERS, write_by_id
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.data_cards import write_card
from longspan.tasks.rules import accuracy_with_error, most_frequent_labels

EXPRESSIONS = {"min_length": 5, "max_length": 40, "max_depth": 4, "max_args": 4}


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch):
    for variable in ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA"):
        monkeypatch.delenv(variable, raising=False)


def by_counting(train, others):
    """Return the most frequent label of each key, of a tie the lowest; of unknown ones, of all."""
    counts = defaultdict(Counter)
    for key, label in train:
        counts[key][label] += 1
    counts = {
        key: sorted(found.items(), key=lambda x: (-x[1], x[0])) for key, found in counts.items()
    }
    overall = sorted(Counter(y for _, y in train).items(), key=lambda x: (-x[1], x[0]))
    return [counts.get(key, overall)[0][0] for key in others]


def test_most_frequent_labels_are_counted():
    dice = np.random.default_rng(0)
    keys, others = dice.integers(0, 40, 300) * 5, dice.integers(-20, 230, 200)
    labels = ((keys % 3 + dice.integers(0, 2, 300)) % 4).astype(np.uint8)
    pairs = list(zip(keys.tolist(), labels.tolist(), strict=True))
    expected = by_counting(pairs, others.tolist())
    assert most_frequent_labels(keys, labels, others).tolist() == expected


def rows(task, split):
    """Return (first operator, label) of every expression, from its tree as text."""
    found = []
    for row in range(task.size(split)):
        text = task.show(split, row)
        found.append((text.split()[0], int(text.rpartition("(label ")[2].split(",")[0])))
    return found


def write_listops(task, folder):
    """Write the expressions of a task as files of the release."""
    names = dict(zip(SPLITS, ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"), strict=True))
    folder.mkdir()
    for split, name in names.items():
        examples = task.dataset.splits[split]
        lines = ["Source\tTarget"]
        for row, label in enumerate(examples.labels.tolist()):
            symbols = task.ids_to_tokens(examples.tokens[row])
            lines.append(f"{' '.join(']' if s == 'X' else s for s in symbols)}\t{label}")
        (folder / name).write_text("".join(f"{line}\r\n" for line in lines))
    return folder


@pytest.mark.parametrize("source", ["generated", "release"])
def test_rule_of_listops_reads_the_first_operator(tmp_path, source):
    sizes = {"train": 300, "validation": 60, "test": 80}
    task = build("listops", {**EXPRESSIONS, **sizes})
    task.open(tmp_path / "cache")
    if source == "release":
        folder = write_listops(task, tmp_path / "listops-1000")
        task = build("listops", {"source": "release", **sizes})
        task.open(tmp_path / "cache", folder)
    splits, (rule,) = task.dataset.splits, TASKS["listops"].rules
    shares = []
    for split in ("validation", "test"):
        operators, labels = zip(*rows(task, split), strict=True)
        assert len(set(operators)) >= 4
        expected = np.array(by_counting(rows(task, "train"), operators)) == labels
        assert rule.correct(splits["train"], splits[split]).tolist() == expected.tolist()
        shares.append((expected.mean(), np.sqrt(expected.var() / len(expected))))
    assert 0.1 < shares[1][0] < 0.8
    cells = " | ".join(f"{100 * share:.2f} ± {100 * error:.2f} %" for share, error in shares)
    answer = "the most frequent training label of the first operator"
    assert f"| first operator | {answer} | {cells} |" in write_card(task, tmp_path / "cache")


@pytest.mark.parametrize("options", [{}, {"vocabulary": "characters", "end": True}])
def test_rule_of_retrieval_reads_the_second_paper(tmp_path, options):
    dice = np.random.default_rng(0)
    popular = list(PAPERS)[:4]
    pairs = {
        split: [
            (int(dice.random() < (0.8 if second in popular else 0.2)), first, second)
            for first, second in dice.choice(list(PAPERS)[:11], (count, 2)).tolist()
        ]
        for split, count in (("train", 60), ("validation", 20), ("test", 30))
    }
    pairs["test"].append((1, "P00", "P11"))  # no paper of the training pairs
    task = build("retrieval", options)
    task.open(tmp_path / "cache", write_by_id(tmp_path / "aan", pairs))
    splits, (rule,) = task.dataset.splits, TASKS["retrieval"].rules
    train = [(second, label) for label, _, second in pairs["train"]]
    for split in ("validation", "test"):
        labels = np.array([label for label, _, _ in pairs[split]])
        expected = by_counting(train, [second for _, _, second in pairs[split]]) == labels
        assert rule.correct(splits["train"], splits[split]).tolist() == expected.tolist()
        assert 0.4 < expected.mean() < 1
    assert "\n| second paper | the most frequent" in write_card(task, tmp_path / "cache")


def test_card_of_retrieval_counts_papers_in_two_splits(tmp_path):
    task = build("retrieval")
    task.open(tmp_path / "cache", write_by_id(tmp_path / "aan"))
    papers = {split: {p for _, *pair in found for p in pair} for split, found in PAIRS.items()}
    both = len(papers["train"] & papers["test"])
    text = write_card(task, tmp_path / "cache")
    assert both == 1
    assert f"\n| train and test | {both} | 0 |\n" in text


def test_card_of_a_task_without_rules_has_no_table_of_them(tmp_path):
    task = build("copying", {"train": 4, "validation": 2, "test": 2, "length": 20, "count": 4})
    task.open(tmp_path)
    assert task.rules == ()
    text = write_card(task, tmp_path)
    assert "Rules without a model" not in text
    assert "Papers in two splits" not in text


def test_error_of_a_share_is_that_of_a_binomial():
    draws = np.random.default_rng(0).random((4_000, 400)) < 0.36
    share, error = accuracy_with_error(draws[0])
    assert share == draws[0].mean()
    assert abs(error - draws.mean(1).std()) < 0.1 * error
