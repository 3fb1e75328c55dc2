"""Tables of signatures on the pages of the API: current, complete, and those of the code."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "api"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
ROW = re.compile(r"^\| `(\.?)(\w+)(\(.*?\))?` \| (.*) \|$")


@pytest.fixture(scope="module")
def tables(import_script):
    return import_script("api_tables")


@pytest.fixture(scope="module")
def pages(tables):
    return tables.written()


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_current(name, pages):
    assert (FOLDER / name).read_text() == pages[name], "run python docs/pages.py"


def described(tables):
    """Yield module path, table lines of each directive."""
    for name in PAGES:
        text = (FOLDER / name).read_text()
        for found in tables.DIRECTIVE.finditer(text):
            rest = text[found.end() :]
            assert rest.startswith(f"\n{tables.OPEN}\n"), f"{name}: {found['path']}"
            yield found["path"], rest.partition(tables.CLOSE)[0].strip().splitlines()[4:]


def resolve(path, name):
    """Return an object by import, from a module or next to the object that a path names."""
    for place in (path, path.rpartition(".")[0]):
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        if name in vars(module):
            return vars(module)[name]
    raise AssertionError(f"{path} has no {name}")


def names_of(signature):
    """Return the names of parameters in a signature as the tables write it."""
    bare = re.sub(r"'[^']*'|\([^()]*\)|\[[^]]*\]|lambda [^:]*: \w+", "", signature[1:-1])
    names = [part.partition("=")[0].strip() for part in bare.split(", ") if part.strip() != "*"]
    return [name.lstrip("*").strip("/ ") for name in names if name]


def test_signatures_are_those_of_the_code(tables):
    """`inspect` reads the imported objects; the tables read the source."""
    compared = 0
    for path, rows in described(tables):
        assert rows, f"{path} has an empty table"
        owner = None
        for line in rows:
            method, name, signature, sentence = ROW.match(line).groups()
            one = getattr(owner, name) if method else resolve(path, name)
            owner = owner if method else one
            assert sentence or not callable(one), line
            if signature and inspect.isroutine(one):
                receiver = {"self"} if method else set()
                expected = [x for x in inspect.signature(one).parameters if x not in receiver]
                assert names_of(signature.replace("\\|", "|")) == expected, line
                compared += 1
    assert compared > 150
