"""What the first operator of an expression alone gives on ListOps.

    python benchmarks/first_operator.py --out benchmarks/results/first-operator.json

The first symbol is the operator whose value is asked for. Who reads no more than it can, but for
luck, do no better than answer with the most frequent label that the training split has under it. A
mechanism has begun to use the rest of an expression where its score is above this one. Needs no
model.
"""

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

from longspan.arena import get
from longspan.files import cache_folder
from longspan.tasks import build

PROTOCOLS = ("quick", "lra-scaled", "lra-small")


def rule(heads: list[int], labels: list[int]) -> dict[int, int]:
    """The most frequent label under each first symbol."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for head, label in zip(heads, labels, strict=True):
        counts[head][label] += 1
    return {head: count.most_common(1)[0][0] for head, count in counts.items()}


def measure(protocol: str) -> dict:
    """Accuracy of the rule, made from the training split, on the others."""
    spec = get(protocol).experiment("listops", "full", 0).task
    task = build("listops", dict(spec.options))
    task.open(cache_folder())
    splits = task.dataset.splits
    heads = {
        name: [int(split.tokens[row][0]) for row in range(len(split))]
        for name, split in splits.items()
    }
    labels = {name: [int(label) for label in split.labels] for name, split in splits.items()}
    answers = rule(heads["train"], labels["train"])
    row = {"protocol": protocol, "examples": len(labels["test"])}
    for split in ("validation", "test"):
        right = [answers[h] == y for h, y in zip(heads[split], labels[split], strict=True)]
        row[split] = sum(right) / len(right)
    row["majority"] = Counter(labels["test"]).most_common(1)[0][1] / len(labels["test"])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    record = {"rows": [measure(protocol) for protocol in PROTOCOLS]}
    print(json.dumps(record, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
