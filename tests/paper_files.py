"""Papers with abstracts in the official layout, small ones and those of the test data."""

import json
import random

from real_data import real

WORDS = [f"word{number}" for number in range(30)]
SIZES = {"train": 16, "val": 5, "test": 4}


def paper(number, part="train"):
    """Return a paper whose abstract is its first two sentences."""
    draws = random.Random(f"{part} {number}")
    sentences = [f"{' '.join(draws.choices(WORDS, k=5))} ." for _ in range(6)]
    return {
        "article_id": f"{part}-{number}",
        "article_text": sentences,
        "abstract_text": [f"<S> {sentence} </S>" for sentence in sentences[:2]],
        "labels": None,
    }


def write_papers(folder, sizes=None, changes=None):
    """Write the files of all splits; `changes` are lines by (part, number)."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (sizes or SIZES).items():
        lines = [json.dumps(paper(number, part)) for number in range(count)]
        for (name, number), line in (changes or {}).items():
            if name == part:
                lines[number] = line
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def real_papers():
    """Return the folder of real papers, or skip the test."""
    return real("pubmed_sum")
