"""Reports on sources of questions: lines of records, and the table of cases."""

import csv
import gzip
import json

import pytest

from longspan.data.json_files import find_lines
from longspan.data.source_files import SourceFiles
from longspan.tasks.questions.squad import read_squad
from longspan.tasks.source_report import Report, count_cases, format_cases
from question_files import squad_article, write_squad


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("indent", [None, 1])
def test_lines_are_those_of_the_ids(tmp_path, indent, compress):
    names = ["a", 'quoted "b"', "caf\u00e9", "c\\d"]
    records = [{"id": name, "text": 'not an "id": "x"'} for name in names]
    text = json.dumps({"data": records}, indent=indent)
    path = tmp_path / "file.json"
    path.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
    found = find_lines(SourceFiles(form="x", path=path), "id")
    lines = text.split("\n")
    expected = {
        name: next(n for n, line in enumerate(lines, 1) if f'"id": {json.dumps(name)}' in line)
        for name in names
    }
    assert {name: found[name] for name in names} == expected


def test_cases_are_a_table(tmp_path):
    article = squad_article("Tab\there", shift=1)
    article["paragraphs"][1]["qas"][0]["answers"] = []
    report = Report()
    read_squad(write_squad(tmp_path / "a.json", [article]), report)
    assert count_cases({"train": report}) == {"answers_misplaced": 1, "without_answer": 1}
    text = format_cases({"train": report, "test": Report()}, {"who-Tab\there": 7}.get)
    rows = list(csv.DictReader(text.splitlines(), delimiter="\t"))
    where = f"{tmp_path / 'a.json'}: article 0, paragraph"
    shared = {"split": "train"}
    assert rows == [
        shared
        | {"reason": "answers_misplaced", "line": "7", "id": "who-Tab\there"}
        | {"place": f"{where} 0, question 0"},
        shared
        | {"reason": "without_answer", "line": "", "id": "what-Tab\there"}
        | {"place": f"{where} 1, question 0"},
    ]
