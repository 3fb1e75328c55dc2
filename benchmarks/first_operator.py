"""Accuracy on ListOps from the first operator of an expression alone.

    python benchmarks/first_operator.py --out benchmarks/results/first-operator.json

The first symbol of an expression is its outermost operator. The rule answers with the most frequent
training label of that operator, without a model. A mechanism uses the rest of the expression only
if its score exceeds that of the rule.
"""

import argparse
from collections import Counter, defaultdict
from pathlib import Path

from timing import write_record

from longspan.arena import get
from longspan.files import cache_folder
from longspan.tasks import build

PROTOCOLS = ("quick", "lra-scaled", "lra-small")


def fit_rule(symbols: list[int], labels: list[int]) -> dict[int, int]:
    """Return the most frequent label of each first symbol."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for symbol, label in zip(symbols, labels, strict=True):
        counts[symbol][label] += 1
    return {symbol: count.most_common(1)[0][0] for symbol, count in counts.items()}


def measure(protocol: str) -> dict:
    """Fit the rule on the training split and score it on validation and test."""
    config = get(protocol).experiment("listops", "full", 0).config.task
    task = build("listops", dict(config.options))
    task.open(cache_folder())
    splits = task.dataset.splits
    symbols = {
        name: [int(split.tokens[row][0]) for row in range(len(split))]
        for name, split in splits.items()
    }
    labels = {name: [int(label) for label in split.labels] for name, split in splits.items()}
    rule = fit_rule(symbols["train"], labels["train"])
    row = {"protocol": protocol, "examples": len(labels["test"])}
    for split in ("validation", "test"):
        correct = [rule[s] == y for s, y in zip(symbols[split], labels[split], strict=True)]
        row[split] = sum(correct) / len(correct)
    row["majority"] = Counter(labels["test"]).most_common(1)[0][1] / len(labels["test"])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    write_record({"rows": [measure(protocol) for protocol in PROTOCOLS]}, args.out)


if __name__ == "__main__":
    main()
