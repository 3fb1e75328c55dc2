"""Recipes: the Python on their pages runs, in the order of the page."""

import re
from pathlib import Path

import pytest

from own_files import forgotten_imports

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "index.md", DOCS / "api" / "report.md", *sorted((DOCS / "recipes").glob("*.md"))]
# `test_practitioner.py` runs the page that needs a file and trains.
OTHERS = {"long-documents"}
WITH_CODE = [
    path
    for path in PAGES
    if "```python" in path.read_text(encoding="utf-8") and path.stem not in OTHERS
]


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: path.stem)
def test_code_of_page_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(DOCS.parent)
    names: dict = {}
    with forgotten_imports(tmp_path):
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.DOTALL):
            exec(compile(block, path.name, "exec"), names)


def test_recipes_have_code():
    assert {"replace-torch-attention", "decode-with-a-bounded-cache"} <= {x.stem for x in WITH_CODE}
