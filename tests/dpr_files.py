"""Folders in the layout of DPR, small enough to check by hand."""

import csv
import gzip
import json

# Passages of three articles; those of "Milk" are apart, and one title has quotes.
PASSAGES = (
    (1, "The owl hunts", "Owls"),
    (2, 'mice at "night".', "Owls"),
    (3, "Cows give milk.", "Milk"),
    (4, "A song\tof a cow.", '"Cow" song'),
    (5, "Cheese is made of it.", "Milk"),
)
DOCUMENTS = {
    "Owls": 'Owls The owl hunts mice at "night".',
    "Cow song": '"Cow" song A song\tof a cow.',
    "Milk": "Milk Cows give milk. Cheese is made of it.",
}


def question(text, answers=(), negatives=(), **changes):
    """Return a question whose passages are in articles of these titles."""
    contexts = {
        "positive_ctxs": [{"title": x, "text": "x", "passage_id": "7"} for x in answers],
        "hard_negative_ctxs": [{"title": x, "text": "y", "psg_id": "8"} for x in negatives],
        "negative_ctxs": [{"title": "Never read", "text": "z"}],
    }
    return {"dataset": "nq", "question": text, "answers": ["an answer"], **contexts, **changes}


QUESTIONS = {
    "train": [
        question("what hunts mice", ["Owls"], ["Milk", "Owls"]),
        question("where does milk come from", ["Milk", "Milk"], ["Cow song"]),
        question("cheese is made of what", ["Milk"]),
        question("which songs have cows", ['"Cow" song'], ["Milk"]),
    ],
    "dev": [question("who hunts at night", ["Owls"])],
}


def write_dpr(folder, passages=PASSAGES, questions=QUESTIONS, stem="nq-", packed=False):
    """Write a folder as DPR's script downloads it: two folders below it, or packed in one."""
    places = ("", "") if packed else ("wikipedia_split", "retriever")
    for place in places:
        (folder / place).mkdir(parents=True, exist_ok=True)
    open_new, end = (gzip.open, ".gz") if packed else (open, "")
    with open_new(folder / places[0] / f"psgs_w100.tsv{end}", "wt", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("id", "text", "title"), *passages])
    for split, rows in questions.items():
        with open_new(folder / places[1] / f"{stem}{split}.json{end}", "wt") as file:
            json.dump(rows, file, indent=4)
    return folder
