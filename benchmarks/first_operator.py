"""Accuracy on ListOps from the first operator of an expression alone.

    python benchmarks/first_operator.py --out benchmarks/results/first-operator.json

The first symbol of an expression is its outermost operator. The rule answers with the most frequent
training label of that operator, without a model. A mechanism uses the rest of the expression only
if its score exceeds that of the rule. A test split has 2,000 expressions, so the rule is also
scored on many fresh expressions of the default options.
"""

import argparse
from pathlib import Path

from timing import write_record

from longspan.arena import get
from longspan.files import cache_folder
from longspan.tasks import Task, build
from longspan.tasks.lra.generators.listops import generate
from longspan.tasks.rules import accuracy_with_error

PROTOCOLS = ("smoke", "lra-scaled", "lra-small")
FRESH, SEED = 200_000, 1


def open_task(options: dict) -> Task:
    """Return ListOps with its data set built and open."""
    task = build("listops", options)
    task.open(cache_folder())
    return task


def measure(protocol: str) -> dict:
    """Fit the rule on the training split and score it on validation and test."""
    config = get(protocol).experiment("listops", "full", 0).config.task
    task = open_task(dict(config.options))
    (rule,), splits = task.rules, task.dataset.splits
    row = {"protocol": protocol, "examples": len(splits["test"])}
    for split in ("validation", "test"):
        share, error = accuracy_with_error(rule.correct(splits["train"], splits[split]))
        row |= {split: share, f"{split}_error": error}
    row["majority"] = task.majority_baseline("test")
    return row


def measure_fresh() -> dict:
    """Fit the rule on the default training split and score it on fresh expressions."""
    task = open_task({})
    fresh = generate(task.options.grammar, FRESH, seed=SEED, progress=lambda *done: None)
    correct = task.rules[0].correct(task.dataset.splits["train"], fresh)
    share, error = accuracy_with_error(correct)
    return {"examples": FRESH, "seed": SEED, "accuracy": share, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    rows = [measure(protocol) for protocol in PROTOCOLS]
    write_record({"rows": rows, "fresh": measure_fresh()}, args.out)


if __name__ == "__main__":
    main()
