"""Folders in the layout of BEIR, small enough to check by hand, and one that can be learned."""

import json
import random

DOCUMENTS = {
    "d1": ("Owls", "the owl hunts mice at night"),
    "d2": ("", "a mouse eats cheese"),
    "d3": ("Cheese", "cheese is made of milk"),
    "d4": ("Milk", "the cow gives milk at night"),
    "d5": ("Cows", "the cow eats grass"),
}
QUERIES = {
    "q1": "what hunts mice",
    "q2": "who eats cheese",
    "q3": "where does milk come from",
    "q4": "night animals",
    "q5": "made of milk",
    "q6": "what gives milk",
}
JUDGMENTS = {
    "train": [("q1", "d1", 1), ("q2", "d2", 2), ("q2", "d3", 0), ("q5", "d3", 1), ("q6", "d4", 1)],
    "dev": [("q3", "d4", 2), ("q3", "d5", 1)],
    "test": [("q4", "d1", 1)],
}


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def write_judgments(path, rows, header=True):
    lines = ["\t".join(map(str, row)) for row in rows]
    return write_lines(path, ["query-id\tcorpus-id\tscore", *lines] if header else lines)


def write_beir(folder, documents=None, queries=None, judgments=None):
    documents = DOCUMENTS if documents is None else documents
    queries = QUERIES if queries is None else queries
    write_lines(
        folder / "corpus.jsonl",
        [json.dumps({"_id": x, "title": a, "text": b}) for x, (a, b) in documents.items()],
    )
    write_lines(
        folder / "queries.jsonl", [json.dumps({"_id": x, "text": y}) for x, y in queries.items()]
    )
    for split, rows in (JUDGMENTS if judgments is None else judgments).items():
        write_judgments(folder / "qrels" / f"{split}.tsv", rows)
    return folder


def topics(seed=0, count=12, documents=5, queries=8):
    """Return a collection whose queries share a rare word with the documents of their topic."""
    draws = random.Random(seed)
    plain = [f"w{n}" for n in range(40)]
    texts = {
        f"d{topic}-{n}": ("", " ".join([*draws.sample(plain, 6), f"topic{topic}"]))
        for topic in range(count)
        for n in range(documents)
    }
    asked = {
        f"q{topic}-{n}": " ".join([f"topic{topic}", *draws.sample(plain, 3)])
        for topic in range(count)
        for n in range(queries)
    }
    rows = {"train": [], "dev": [], "test": []}
    for query in asked:
        topic, number = query[1:].split("-")
        split = {"0": "dev", "1": "test"}.get(number, "train")
        rows[split] += [(query, f"d{topic}-{n}", 1) for n in range(documents)]
    return texts, asked, rows
