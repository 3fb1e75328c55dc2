"""Files of questions in the official layouts, small ones and those of the test data."""

import json
import os
import tarfile
from pathlib import Path

import pytest

PARAGRAPHS = ("Ada Lovelace met Charles Babbage in 1833.", "She wrote about his Analytical Engine.")


def squad_question(name, text, answer, start, **more):
    return {
        "id": name,
        "question": text,
        "answers": [{"text": answer, "answer_start": start}],
        **more,
    }


def squad_article(title="Lovelace", shift=0):
    """Return an article of two paragraphs; the ids end in the title."""
    first, second = PARAGRAPHS
    questions = (
        [squad_question(f"who-{title}", "Who met Babbage?", "Ada Lovelace", 0 + shift)],
        [squad_question(f"what-{title}", "What was it?", "Analytical Engine", 20 + shift)],
    )
    paragraphs = [
        {"context": context, "qas": qas}
        for context, qas in zip((first, second), questions, strict=True)
    ]
    return {"title": title, "paragraphs": paragraphs}


def write_squad(path, articles):
    path.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    return path


def published(name):
    """Return a file of the test data, or skip the test."""
    path = Path(os.environ.get("LONGSPAN_TEST_DATA", "")) / name
    if not path.is_file():
        pytest.skip(f"$LONGSPAN_TEST_DATA has no {name}")
    return path


def xquad_file():
    """Return XQuAD in English."""
    return published("qa/xquad.en.json.gz")


def extract_triviaqa(target):
    """Unpack the sample of TriviaQA in the official layout; return its root."""
    with tarfile.open(published("format_samples/hf_datasets_2.4.0_dummy.tar.gz")) as tar:
        tar.extractall(target, filter="data")
    return Path(target) / "trivia_qa" / "triviaqa-rc.tar.gz"
