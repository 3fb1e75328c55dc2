"""Accuracy on Long Range Arena without a network: linear models, rules, truncated expressions.

    python benchmarks/without_network.py --out benchmarks/results/without-network.json

Text and Retrieval: logistic regression on the presence of byte n-grams. Image and Pathfinder:
linear models on pixels and on a dictionary of patches. ListOps: subtrees below a level replaced by
the mean value of their operator. Penalties are selected on validation, and the test split is scored
once. Nothing is drawn but the patches. The same command resumes from the rows in the file.
"""

import argparse
import datetime
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from byte_ngrams import (
    LogisticRegression,
    byte_frequencies,
    join,
    ngram_presence,
    scale_rows,
    stack,
    unit_rows,
)
from patch_features import PatchFeatures, Ridge
from scipy.sparse import csr_matrix
from scipy.stats import binomtest
from timing import environment, write_record
from truncated_listops import operator_means, truncated_values

from longspan.data.store import Examples, Ragged
from longspan.files import cache_folder
from longspan.tasks import SPLITS, build
from longspan.tasks.rules import most_frequent_labels

LENGTHS, NGRAMS = (512, 1_000, 4_000), range(1, 8)
STRENGTHS = [4.0**power for power in range(-3, 8)]  # of the losses against the penalty on weights
SURE = 4.0  # strengths up to here are always tried, more while validation improves
PENALTIES = (10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)  # of ridge regression
LEVELS = range(10)
DICTIONARIES = {
    "image": {"k-means patches": (100, 400, 1_600), "random patches": (1_600,)},
    "pathfinder": {"k-means patches": (100,)},
}
OPTIONS: dict[str, dict[str, int]] = {
    "text": {"length": max(LENGTHS)},
    "retrieval": {"length": max(LENGTHS)},
    "listops": {"test": 20_000},
}
Outcome = tuple[dict[str, np.ndarray], dict]  # correct predictions of two splits, details


class Ladder:
    """Open data set of a task, and the rows of the record."""

    def __init__(self, task: str, path: Path | None):
        """Open the data set; a row that the file has is not measured again."""
        opened = build(task, OPTIONS.get(task, {}))
        opened.open(cache_folder())
        self.task, self.rules, self._path = task, opened.rules, path
        self.splits: dict[str, Examples] = opened.dataset.splits
        self.labels = {split: x.labels.astype(np.int64) for split, x in self.splits.items()}
        is_resumed = path is not None and path.exists()
        self.rows: list[dict] = json.loads(path.read_text())["rows"] if is_resumed else []
        self._start = time.process_time()

    def lacks(self, features: str, **setting: int) -> bool:
        """Return whether a row is not measured yet; start its clock."""
        self._start = time.process_time()
        key = {"task": self.task, "features": features, **setting}
        return not any(key.items() <= row.items() for row in self.rows)

    def add(self, outcome: Outcome, features: str, **setting: int) -> None:
        """Append a row and write the file."""
        correct, details = outcome
        right, examples = int(correct["test"].sum()), len(correct["test"])
        interval = binomtest(right, examples).proportion_ci(method="wilson")
        row = {"task": self.task, "features": features, **setting}
        row |= {split: round(float(x.mean()), 6) for split, x in correct.items()}
        row |= {"low": round(interval.low, 6), "high": round(interval.high, 6), **details}
        row["examples"] = {split: len(self.splits[split]) for split in SPLITS}
        row["cpu_seconds"] = round(time.process_time() - self._start, 1)
        self.rows.append(row)
        today = datetime.date.today().isoformat()
        place = environment(torch.device("cpu"))
        write_record({"date": today, "environment": place, "rows": self.rows}, self._path)

    def compare(self, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return which predictions of each split are correct."""
        return {split: x == self.labels[split] for split, x in predictions.items()}

    def add_rules(self) -> None:
        """Score the rules of the task, which read a part of the input."""
        for rule in self.rules:
            if self.lacks(rule.name):
                train = self.splits["train"]
                predictions = {x: rule.predict(train, self.splits[x]) for x in SPLITS[1:]}
                self.add((self.compare(predictions), {}), rule.name)

    def classify(self, features: dict[str, csr_matrix], *, refit: bool = False) -> Outcome:
        """Fit logistic regression, select its strength on validation, and score test.

        Args:
            features: of each split.
            refit: fit the selected strength again on training and validation together.
        """
        labels = self.labels
        model = LogisticRegression(features["train"], labels["train"])
        held_out, trials = (features["validation"], labels["validation"]), []
        for strength in STRENGTHS:
            correct = model.fit(strength).correct(*held_out)
            trials.append((float(correct.mean()), strength, correct, model.weights.copy()))
            if strength > SURE and trials[-1][0] < trials[-2][0]:
                break
        _, best, correct, model.weights = max(trials, key=lambda trial: trial[0])
        if refit:
            both = stack([features["train"], features["validation"]])
            targets = np.concatenate([labels["train"], labels["validation"]])
            model = LogisticRegression(both, targets)
            for strength in STRENGTHS[: STRENGTHS.index(best) + 1]:
                model.fit(strength)
        test = model.correct(features["test"], labels["test"])
        details = {"strength": best, "columns": features["train"].shape[1], "refit": refit}
        return {"validation": correct, "test": test}, details

    def regress(self, features: dict[str, torch.Tensor]) -> Outcome:
        """Fit ridge regression, select its penalty on validation, and score test."""
        model = Ridge(features["train"], torch.from_numpy(self.labels["train"]))
        shares = {}
        for penalty in PENALTIES:
            predicted = model.fit(penalty).predict(features["validation"]).numpy()
            shares[penalty] = (predicted == self.labels["validation"]).mean()
        best = max(shares, key=shares.__getitem__)
        model.fit(best)
        predictions = {x: model.predict(features[x]).numpy() for x in SPLITS[1:]}
        details = {"penalty": best, "columns": features["train"].shape[1]}
        return self.compare(predictions), details


def measure_text(ladder: Ladder, lengths: Sequence[int]) -> None:
    """Climb from single bytes to n-grams of seven bytes."""
    ladder.add_rules()
    texts = Ragged.pack([x for split in SPLITS for x in ladder.splits[split].tokens], np.uint16)
    ends = np.cumsum([len(ladder.splits[split]) for split in SPLITS])
    rows = dict(zip(SPLITS, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))

    def measure(matrix: csr_matrix, name: str, **setting: int) -> None:
        if ladder.lacks(name, **setting):
            parts = {split: matrix[part] for split, part in rows.items()}
            ladder.add(ladder.classify(parts, refit=True), name, **setting)

    for length in lengths:
        frequencies = byte_frequencies(texts, length, rows["train"])
        measure(frequencies, "frequency", bytes=length, ngram=1)
        blocks: list[csr_matrix] = []
        for n in NGRAMS:
            blocks.append(ngram_presence(texts, length, n, rows["train"]))
            measure(unit_rows(join(blocks)), "presence", bytes=length, ngram=n)


def measure_retrieval(ladder: Ladder, lengths: Sequence[int]) -> None:
    """Climb as on Text, with the n-grams of the second paper, of both, and those they share."""
    ladder.add_rules()
    papers: dict[bytes, int] = {}
    pairs = {
        split: np.array(
            [
                [papers.setdefault(text.tobytes(), len(papers)) for text in pair]
                for pair in zip(examples.tokens, examples.second, strict=True)
            ]
        )
        for split, examples in ladder.splits.items()
    }
    texts = Ragged.pack([np.frombuffer(text, np.uint8) for text in papers], np.uint16)
    train = np.unique(pairs["train"])
    for length in lengths:
        blocks: list[csr_matrix] = []
        for n in NGRAMS:
            blocks.append(ngram_presence(texts, length, n, train))
            for name in ("second", "shared", "all") if length == max(LENGTHS) else ("all",):
                if ladder.lacks(name, bytes=length, ngram=n):
                    present = join(blocks)
                    parts = {x: pair_features(present, y, name) for x, y in pairs.items()}
                    ladder.add(ladder.classify(parts), name, bytes=length, ngram=n)


def pair_features(present: csr_matrix, pairs: np.ndarray, name: str) -> csr_matrix:
    """Return features of pairs: n-grams of the second paper, shared ones, or all of both and these.

    The absolute difference of two texts is a linear function of these. Rows of shared n-grams have
    the square root of the cosine of the two texts as their norm.
    """
    texts = unit_rows(present)
    first, second = pairs.T
    if name == "second":
        return texts[second]
    counts = np.maximum(np.diff(present.indptr), 1.0)
    shared = scale_rows(
        present[first].multiply(present[second]).tocsr(), (counts[first] * counts[second]) ** -0.25
    )
    return shared if name == "shared" else join([texts[first], texts[second], shared])


def measure_images(ladder: Ladder) -> None:
    """Score the rules, linear models on pixels, and ridge regression on patches."""
    ladder.add_rules()
    is_binary = ladder.task == "pathfinder"
    images = {
        split: torch.from_numpy(x.tokens.values.copy()).view(len(x), -1)
        for split, x in ladder.splits.items()
    }
    if is_binary and ladder.lacks("pixels, logistic"):
        pixels = {x: unit_rows(csr_matrix(y.numpy().astype(np.float32))) for x, y in images.items()}
        ladder.add(ladder.classify(pixels), "pixels, logistic")
    if ladder.lacks("pixels, ridge"):
        ladder.add(ladder.regress({x: y.float() for x, y in images.items()}), "pixels, ridge")
    square = {x: y.unflatten(1, (32, 32)) for x, y in images.items()}
    for name, sizes in DICTIONARIES[ladder.task].items():
        for size in sizes:
            if ladder.lacks(name, dictionary=size):
                encode = PatchFeatures(square["train"], size, kmeans=name.startswith("k-means"))
                outcome = ladder.regress({x: encode(y) for x, y in square.items()})
                ladder.add(outcome, name, dictionary=size)


def measure_listops(ladder: Ladder) -> None:
    """Compute the first levels; answer with the most frequent training label of the outcome."""
    ladder.add_rules()
    train = ladder.splits["train"]
    means = operator_means(train.tokens)

    def outcomes(tokens: Ragged, levels: int) -> np.ndarray:
        operators = tokens.values[tokens.offsets[:-1]].astype(np.int64)
        return 10 * operators + truncated_values(tokens, levels, means)

    for levels in LEVELS:
        if ladder.lacks("levels", levels=levels):
            keys = {x: outcomes(y.tokens, levels) for x, y in ladder.splits.items()}
            predictions = {
                split: most_frequent_labels(keys["train"], ladder.labels["train"], keys[split])
                for split in SPLITS[1:]
            }
            details = {"means": means.tolist()}
            ladder.add((ladder.compare(predictions), details), "levels", levels=levels)


MEASURES: dict[str, Callable[[Ladder], None]] = {
    "listops": measure_listops,
    "image": measure_images,
    "pathfinder": measure_images,
}


BY_LENGTH = {"text": measure_text, "retrieval": measure_retrieval}


def main() -> None:
    tasks = [*MEASURES, *BY_LENGTH]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write; its rows are not repeated")
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--lengths", nargs="+", type=int, choices=LENGTHS, default=LENGTHS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task in args.tasks:
        ladder = Ladder(task, args.out)
        if task in MEASURES:
            MEASURES[task](ladder)
        else:
            BY_LENGTH[task](ladder, args.lengths)


if __name__ == "__main__":
    main()
