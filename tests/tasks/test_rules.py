"""Rules without a model, compared with counts over the examples as text, and with loops."""

import dataclasses
from collections import Counter, defaultdict

import numpy as np
import pytest

from aan_files import PAIRS, PAPERS, write_by_id
from longspan.data.store import Examples, Ragged
from longspan.errors import DataError
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.data_cards import write_card
from longspan.tasks.rules import (
    accuracy_with_error,
    most_frequent_labels,
    predict_by_nearest_centroid,
    predict_by_token_counts,
)

EXPRESSIONS = {"min_length": 5, "max_length": 40, "max_depth": 4, "max_args": 4}


pytestmark = pytest.mark.usefixtures("nowhere")


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
    splits, (rule,) = task.dataset.splits, task.rules
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
    splits, (rule,) = task.dataset.splits, task.rules
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
    task = build("copying", {"train": 4, "validation": 2, "test": 2, "length": 20, "count": 1})
    task.open(tmp_path)
    assert task.rules == ()
    assert task.rule_scores("test") == {}
    text = write_card(task, tmp_path)
    assert "Rules without a model" not in text
    assert "Papers in two splits" not in text


def test_error_of_a_share_is_that_of_a_binomial():
    draws = np.random.default_rng(0).random((4_000, 400)) < 0.36
    share, error = accuracy_with_error(draws[0])
    assert share == draws[0].mean()
    assert abs(error - draws.mean(1).std()) < 0.1 * error


def examples_of(rows, labels):
    return Examples(tokens=Ragged.pack([np.array(row) for row in rows], np.uint8), labels=labels)


def random_texts(dice, count, classes):
    labels = dice.integers(0, classes, count).astype(np.uint8)
    rows = [
        dice.choice(9, dice.integers(1, 12), p=np.roll(np.arange(1, 10), 2 * y) / 45) + 1
        for y in labels
    ]
    return examples_of(rows, labels)


@pytest.mark.parametrize("piece", [1, 7, 1 << 22])
def test_token_counts_are_naive_bayes(monkeypatch, piece):
    """Compare with products of probabilities, one text and one token at a time."""
    monkeypatch.setattr("longspan.tasks.rules._PIECE", piece)
    dice = np.random.default_rng(0)
    train, others = random_texts(dice, 60, 3), random_texts(dice, 40, 3)
    tokens = {y: np.concatenate([train.tokens[i] for i in np.flatnonzero(train.labels == y)])
              for y in range(3)}  # fmt: skip
    expected = []
    for text in others.tokens:
        likelihoods = [
            (train.labels == y).mean()
            * np.prod([((own == token).sum() + 1) / (len(own) + 10) for token in text])
            for y, own in tokens.items()
        ]
        expected.append(int(np.argmax(likelihoods)))
    found = predict_by_token_counts(train, others)
    assert found.tolist() == expected
    assert (found == others.labels).mean() > 0.5


def test_token_counts_ignore_their_order_and_allow_absent_classes():
    dice = np.random.default_rng(1)
    train, others = random_texts(dice, 60, 3), random_texts(dice, 40, 3)
    train.labels[train.labels == 1] = 2
    shuffled = examples_of([dice.permutation(row) for row in others.tokens], others.labels)
    found = predict_by_token_counts(train, others)
    assert found.tolist() == predict_by_token_counts(train, shuffled).tolist()
    assert set(found.tolist()) == {0, 2}


def test_nearest_centroid_is_the_nearest_mean():
    dice = np.random.default_rng(0)
    labels = dice.integers(0, 2, 50).astype(np.uint8) * 3  # of four classes, two occur
    images = (dice.integers(0, 120, (50, 16)) + 30 * labels[:, None]).astype(np.uint8)
    train, others = (examples_of(images[rows], labels[rows]) for rows in (range(30), range(30, 50)))
    means = {y: images[:30][labels[:30] == y].astype(float).mean(0) for y in (0, 3)}
    expected = [min(means, key=lambda y: ((x - means[y]) ** 2).sum()) for x in images[30:]]
    assert predict_by_nearest_centroid(train, others).tolist() == expected


SMALL = {"train": 6, "validation": 30, "test": 40}


def test_rule_of_recall_gives_the_last_value(tmp_path):
    task = build("recall", {**SMALL, "length": 40, "pairs": 4, "queries": 3, "vocabulary": 24})
    task.open(tmp_path)
    right = []
    for row in range(task.size("test")):
        pairs, queries = task.show("test", row).splitlines()[:2]
        last = pairs.rpartition("=")[2]
        right += [query.rpartition("=")[2] == last for query in queries.split(": ")[1].split(", ")]
    assert task.rule_scores("test") == {"last value": np.mean(right)}
    assert len(right) == 120
    assert 0.1 < np.mean(right) < 0.4


def test_rule_of_copying_counts_the_symbols(tmp_path):
    task = build("copying", {**SMALL, "length": 40, "count": 5, "symbols": 4, "noise": 3})
    task.open(tmp_path)
    right = []
    for row in range(task.size("test")):
        answer = task.show("test", row).rpartition("= ")[2].split()
        best = max(sorted(set(answer)), key=answer.count)
        right += [symbol == best for symbol in answer]
    assert task.rule_scores("test") == {"most frequent symbol": np.mean(right)}


@pytest.mark.parametrize("name", ["pathfinder", "path_x"])
def test_rule_of_contours_reads_the_distance_of_the_markers(name, tmp_path, monkeypatch):
    task = build(name, {"train": 300, "validation": 40, "test": 60})
    task.open(tmp_path)

    def rows_of(split, count):
        found = []
        for row in range(count):
            (a, b), (c, d) = task.annotated_image(split, row).markers
            label = int(task.dataset.splits[split].labels[row])
            found.append((round(float(np.hypot(a - c, b - d))), label))
        return found

    test = rows_of("test", 60)
    expected = np.array(by_counting(rows_of("train", 300), [d for d, _ in test]))
    (rule,), splits = task.rules, task.dataset.splits
    found = rule.predict(splits["train"], splits["test"])
    # markers are found to a pixel in 98 of 100 images
    assert (found == expected).mean() > 0.85
    monkeypatch.setattr("longspan.tasks.lra.pathfinder._NUM_FITTED", 1)
    assert len(set(rule.predict(splits["train"], splits["test"]).tolist())) == 1


def test_rules_do_not_read_the_labels_that_they_predict(tmp_path):
    task = build("listops", {**EXPRESSIONS, "train": 300, "validation": 60, "test": 80})
    task.open(tmp_path)
    (rule,), splits = task.rules, task.dataset.splits
    other = examples_of(splits["test"].tokens, splits["test"].labels[::-1].copy())
    expected = rule.predict(splits["train"], splits["test"])
    assert rule.predict(splits["train"], other).tolist() == expected.tolist()


def test_rule_scores_are_computed_once_for_a_data_set(tmp_path, monkeypatch):
    task = build("listops", {**EXPRESSIONS, "train": 300, "validation": 60, "test": 80})
    task.open(tmp_path)
    found = task.rule_scores("test")
    assert found == task.rule_scores("test")
    monkeypatch.setattr(TASKS["listops"], "rules", property(lambda self: ()))
    assert task.rule_scores("test") == found
    task.open(tmp_path)
    assert task.rule_scores("test") == {}


def test_rule_scores_refuse_changed_examples(tmp_path):
    task = build("listops", {**EXPRESSIONS, "train": 300, "validation": 60, "test": 80})
    task.open(tmp_path)
    damaged = task.dataset.splits["train"].checks.copy()
    damaged[7] += 1
    splits = task.dataset.splits
    splits["train"] = dataclasses.replace(splits["train"], checks=damaged)
    with pytest.raises(DataError, match="row 7 has changed"):
        task.rule_scores("test")
