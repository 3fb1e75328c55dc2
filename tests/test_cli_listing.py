"""Printed tables of `longspan list` and `longspan show`."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from longspan import catalog
from longspan.attention import MECHANISMS
from longspan.cli import common, listing
from longspan.data.imports.stored import DESCRIPTION
from longspan.files import cache_folder
from longspan.stored_catalog import is_complete, published_rows
from longspan.tasks import TASKS


@pytest.fixture
def print_at_width(monkeypatch, capsys):
    """Function that prints to a console of a given width and returns the text."""

    def printed(width, function, *arguments):
        for module in (common, listing):
            monkeypatch.setattr(module, "out", Console(width=width))
        function(*arguments, False)
        return capsys.readouterr().out

    return printed


def test_numbers_are_rounded(print_at_width):
    text = print_at_width(200, listing.print_list, "tasks")
    assert re.search(r"copying .* 0\.0714 ", text)
    assert not re.search(r"\d\.\d{7}", text)


@pytest.mark.parametrize("width", [80, 100])
def test_mechanisms_take_a_line_each(print_at_width, width):
    lines = print_at_width(width, listing.print_list, "mechanisms").splitlines()
    assert len(lines) == len(MECHANISMS) + 2 < 50
    shown = {line.split()[0]: line for line in lines[2:]}
    for name, cls in MECHANISMS.items():
        family, year, causal, *_ = re.split(r"\s{2,}", shown[name].strip())[1:]
        assert (family, causal) == (cls.traits.family, "yes" if cls.traits.causal else "no")
        assert year in cls.traits.paper


def test_mechanism_without_paper_is_listed_as_unpublished(print_at_width, monkeypatch):
    unpublished = dataclasses.replace(MECHANISMS["local"].traits, paper=None)
    monkeypatch.setattr(MECHANISMS["local"], "traits", unpublished)
    (row,) = (row for row in catalog.list_mechanisms() if row["name"] == "local")
    assert row["paper"] == "unpublished"
    assert re.search(
        r" local +fixed pattern +– ", print_at_width(80, listing.print_list, "mechanisms")
    )
    assert "unpublished" in print_at_width(200, listing.print_described, "local")


@pytest.mark.parametrize("what", ["mechanisms", "tasks", "protocols"])
def test_narrow_tables_wrap_words_without_truncation(print_at_width, what):
    text = print_at_width(60, listing.print_list, what)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize("task", sorted(TASKS))
def test_show_prints_table_of_published_scores(print_at_width, task):
    text = print_at_width(200, listing.print_described, task)
    scores = published_rows(catalog.describe(task)["published"])
    if not scores:
        assert "mechanism   " not in text
        return
    header = next(line for line in text.splitlines() if line.split()[:2] == ["mechanism", "score"])
    assert header.split() == ["mechanism", "score", "protocol", "source"]
    for row in scores:
        cells = (row["mechanism"], row["score"], row["protocol"], row["source"])
        assert re.search(r"\s+".join(map(re.escape, cells)), text)


@pytest.mark.parametrize(("columns", "widest"), [("72", 72), (None, 200)])
def test_piped_output_is_plain_and_follows_columns_variable(columns, widest):
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    if columns is not None:
        environment["COLUMNS"] = columns
    command = [sys.executable, "-m", "longspan", "list", "protocols"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert "\x1b" not in done.stdout
    assert max(map(len, lines)) <= widest
    assert (max(map(len, lines)) > 72) == (columns is None)


COMMANDS = (
    "list",
    "list tasks",
    "list protocols --json",
    "show listops",
    "show lra-small",
    "--help",
)
ONE_AFTER_ANOTHER = """
import sys
from longspan.cli import main
for words in sys.argv[1:]:
    sys.argv = ["longspan", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    assert not {"torch", "transformers"} & set(sys.modules), words
"""


def test_lists_and_help_import_no_torch():
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, *COMMANDS]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("words", [
    "list --json", "list tasks", "list protocols --json", "show listops", "show lra-small",
    "show xiong --json", "show quick",
])  # fmt: skip
def test_stored_catalog_prints_what_the_registries_do(cli, monkeypatch, words):
    printed = []
    for stored in (True, False):
        monkeypatch.setattr(listing, "is_complete", lambda stored=stored: stored)
        printed.append(cli(*words.split()))
    assert printed[0] == printed[1]


def test_catalog_is_incomplete_with_registries_or_imports(monkeypatch, tmp_path):
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not is_complete()
    folder = cache_folder() / "own" / "reviews"
    folder.mkdir(parents=True)
    code = "from longspan.stored_catalog import is_complete; from pathlib import Path\n"
    code += f"print(is_complete(), Path({str(folder / DESCRIPTION)!r}).write_text('{{}}'))\n"
    code += "print(is_complete())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "2", "False"], done.stderr
