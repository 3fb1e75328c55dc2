"""Files of WikiHop in the official layout, with questions about made-up cities."""

import json

COUNTRIES = ("france", "italy", "spain", "peru")


def question(number, part="train", documents=3):
    """Return a question whose answer needs two documents, among two to four candidates."""
    answer = COUNTRIES[number % 4]
    candidates = sorted({answer, *COUNTRIES[: 1 + number % 4], "france"} | {"spain"})
    texts = [
        f"Person{number} was born in City{number} .",
        f"City{number} ( a town ) is in {answer} , by the sea .",
        *(f"Nothing is known of Town{n} ." for n in range(documents - 2)),
    ]
    return {
        "id": f"WH_{part}_{number}",
        "query": f"country person{number}",
        "candidates": candidates,
        "supports": texts,
        "answer": answer,
    }


def write_wikihop(root, count=20, dev=4, documents=3):
    """Write the files of both parts; return their folder."""
    folder = root / "qangaroo_v1.1" / "wikihop"
    folder.mkdir(parents=True)
    for part, numbers in (("train", range(count)), ("dev", range(count, count + dev))):
        records = [question(number, part, documents) for number in numbers]
        if part == "dev":
            records = [{**record, "annotations": [["follows", "single"]]} for record in records]
        (folder / f"{part}.json").write_text(json.dumps(records))
    return folder
