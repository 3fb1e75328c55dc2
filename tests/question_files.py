"""Files of questions in the official layouts, small ones and those of the test data."""

import json
import tarfile
from pathlib import Path

from real_data import real as published

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


def xquad_file():
    """Return XQuAD in English."""
    return published("qa/xquad.en.json.gz")


def extract_triviaqa(target):
    """Unpack the sample of TriviaQA in the official layout; return its root."""
    with tarfile.open(published("format_samples/hf_datasets_2.4.0_dummy.tar.gz")) as tar:
        tar.extractall(target, filter="data")
    return Path(target) / "trivia_qa" / "triviaqa-rc.tar.gz"


def write_triviaqa(root, count=12):
    """Write questions about colors in the official layout; document n mentions color n twice.

    The document of question 1 does not mention it, that of question 2 does behind 60 words.
    """
    for part, names in (("train", range(count)), ("dev", range(count, count + 4))):
        records = []
        for n in names:
            text = f"Color{n} it is. Not color of others; color{n}!"
            text = {1: "It is none.", 2: f"{'long ' * 60}{text}"}.get(n, text)
            path = root / "evidence" / "wikipedia" / f"Doc_{n}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            answer = {"NormalizedAliases": [f"color{n}", "hue"], "Value": f"Color{n}"}
            pages = [{"Filename": path.name}]
            records.append(
                {
                    "QuestionId": f"q_{n}",
                    "Question": f"Which is {n}?",
                    "EntityPages": pages,
                    "Answer": answer,
                }
            )
        path = root / "qa" / f"wikipedia-{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"Domain": "Wikipedia", "VerifiedEval": False, "Data": records}
        path.write_text(json.dumps(content))
    return root


def hotpotqa_record(n, answer=None):
    """Return a question about city n, with two relevant paragraphs of four.

    The answer is in the second sentence of one of them, and in an irrelevant paragraph.
    """
    answer = answer or f"Color{n}"
    context = [
        [f"Other {n}", [f"Nobody likes Color{n}.", " It is far."]],
        [f"City {n}", [f"City {n} is old.", f" Its coat is Color{n}.", " "]],
        [f"Mayor {n}", [f"Mayor {n} runs City {n}.", " She sings."]],
        [f"Empty {n}", [""]],
        [f"River {n}", ["It flows."]],
    ]
    facts = [[f"Mayor {n}", 0], [f"City {n}", 1]]
    return {
        "_id": f"h_{n}",
        "question": f"Which color has the city of mayor {n}?",
        "answer": answer,
        "supporting_facts": facts,
        "context": context,
    }


def write_hotpotqa(root, train, dev):
    """Write questions in the official layout, an id a line."""
    root.mkdir(parents=True, exist_ok=True)
    names = ("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json")
    for name, records in zip(names, (train, dev), strict=True):
        (root / name).write_text(json.dumps(records, indent=1))
    return root
