"""The pages of mechanisms and tasks are rendered from their files: they say what is now true."""

import dataclasses
import importlib
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from longspan.attention import MECHANISMS, options_of
from longspan.report.tables.published import read_published
from longspan.tasks import TASKS

DOCS = Path(__file__).parents[1] / "docs"
REMEDY = "run python docs/pages.py"


@pytest.fixture(scope="module")
def scripts():
    """Import a script of the folder, as it sees its neighbours when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module


@pytest.fixture(scope="module")
def written(scripts):
    return scripts("pages").written()


@pytest.fixture(scope="module")
def task_pages(scripts, tmp_path_factory):
    """Rendered where no data is."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA", "HF_HUB_CACHE", "HF_HOME"):
            patch.delenv(variable, raising=False)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        return scripts("task_pages").written()


def test_every_mechanism_has_its_page_and_no_other_is_there(written):
    assert {x.name for x in (DOCS / "mechanisms").iterdir()} == set(written), REMEDY
    assert len(written) == 2 * len(MECHANISMS) + 1


def test_the_pages_are_current(written):
    for name, text in written.items():
        # Pictures depend on the last digits of the machine that drew them.
        if name.endswith(".md"):
            assert (DOCS / "mechanisms" / name).read_text() == text, f"{name}: {REMEDY}"


def test_the_published_scores_of_reports_are_those_of_the_tasks(scripts):
    pages = scripts("pages")
    assert pages.PUBLISHED.read_text() == pages.published(), REMEDY
    found = [dataclasses.asdict(score) for score in read_published()]
    for name, task in TASKS.items():
        for score in task.info.published:
            assert {"task": name, **dataclasses.asdict(score)} in found
    # Tay et al. 2021, table 1
    table = {(x["task"], x["mechanism"]): x for x in found if x["protocol"] == "lra-paper"}
    assert table["text", "performer"]["value"] == 0.654


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_picture_is_drawn_of_weights_that_differ(name, written):
    for text in (written[f"{name}.svg"], (DOCS / "mechanisms" / f"{name}.svg").read_text()):
        root = ET.fromstring(text)
        assert name in root.find("{*}title").text
        assert len(root.findall(".//{*}path")) >= 1


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_option_of_a_mechanism_is_described(name, written):
    page = written[f"{name}.md"]
    for option in options_of(name):
        (meaning,) = re.findall(rf"^\| `{option}` \| (.*?) \| ", page, re.MULTILINE)
        assert len(meaning) > 5, option


def test_every_task_has_its_page_and_no_other_is_there(task_pages):
    assert {x.name for x in (DOCS / "tasks").iterdir()} == set(task_pages), REMEDY
    pages = {name for name in task_pages if name.endswith(".md")}
    assert pages == {"README.md", *(f"{name}.md" for name in TASKS)}


def test_the_pages_of_tasks_are_current(task_pages):
    for name, text in task_pages.items():
        # An image inside a picture depends on the library that compressed it.
        if name.endswith(".md"):
            assert (DOCS / "tasks" / name).read_text() == text, f"{name}: {REMEDY}"


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_option_of_a_task_is_explained(name, task_pages):
    page = task_pages[f"{name}.md"]
    for field in dataclasses.fields(TASKS[name].Options):
        (row,) = re.findall(
            rf"^\| `{field.name}` \| (.+) \| (.+) \| `(.+)` \|$", page, re.MULTILINE
        )
        assert row[0] == field.metadata["help"]
        assert "typing" not in row[1]
        assert "<" not in row[1]
        assert row[2] == repr(field.default)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_page_of_a_task_says_where_its_data_comes_from(name, task_pages):
    page, info = task_pages[f"{name}.md"], TASKS[name].info
    assert info.source in page
    assert info.license in page
    assert all(f"{size:,}" in page for size in info.sizes.values())
    assert re.search(rf"^longspan data (build|import) {name}", page, re.MULTILINE)
    assert ("not the published files" in page) == ("## An example" in page)
    # a page has no path of the machine that rendered it
    assert "/tmp" not in page
    assert str(Path.home()) not in page


def test_pictures_of_tasks_are_pictures(task_pages):
    drawn = [name for name in task_pages if name.endswith(".svg")]
    assert drawn
    for name in drawn:
        for text in (task_pages[name], (DOCS / "tasks" / name).read_text()):
            assert len(ET.fromstring(text).findall(".//")) > 1
        assert f"({name})" in task_pages[f"{name.removesuffix('.svg')}.md"]
