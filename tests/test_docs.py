"""Rendered documentation pages of mechanisms and tasks."""

import dataclasses
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from corpus_files import CORPUS, make_task, write_folder
from longspan.arena import PROTOCOLS, order_runs
from longspan.attention import MECHANISMS
from longspan.cli import running
from longspan.report.mechanisms import OTHER, family_of
from longspan.tasks import TASKS, register_imported

# The attribute `longspan.arena.plan` is a function, and so are its neighbors.
CountFlops = sys.modules[order_runs.__module__].CountFlops
DOCS = Path(__file__).parents[1] / "docs"
REMEDY = "run python docs/pages.py"


@pytest.fixture(scope="module")
def mechanism_pages(import_script):
    return import_script("pages").written()


@pytest.fixture(scope="module")
def task_pages(import_script, tmp_path_factory):
    """Task pages rendered without data sets."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA", "HF_HUB_CACHE", "HF_HOME"):
            patch.delenv(variable, raising=False)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        return import_script("task_pages").written()


def test_mechanism_pages_match_registry(mechanism_pages):
    assert {x.name for x in (DOCS / "mechanisms").iterdir()} == set(mechanism_pages), REMEDY
    assert len(mechanism_pages) == 2 * len(MECHANISMS) + 2


SECTIONS = (
    "When to use it",
    "When not to use it",
    "Picture",
    "Definition",
    "Options",
    "Traits",
    "Cost",
    "Relatives",
)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_mechanism_page_begins_with_the_idea(name, mechanism_pages, import_script):
    page, notes = mechanism_pages[f"{name}.md"], import_script("mechanism_notes").NOTES[name]
    assert tuple(re.findall(r"^## (.*)$", page, re.MULTILINE)) == SECTIONS
    idea = page.partition("## ")[0].partition("\n\n")[2].strip()
    assert idea == notes.idea
    assert len(idea.split()) >= 30
    assert notes.use
    assert notes.avoid
    for reason in (*notes.use, *notes.avoid):
        assert f"\n- {reason}\n" in page
        assert reason.endswith(".")
    assert name not in notes.relatives
    for other, difference in notes.relatives.items():
        assert f"- [`{other}`]({other}.md): {difference}" in page
        assert other in MECHANISMS


def test_new_mechanism_without_notes_and_paper_has_a_page(import_script, monkeypatch):
    pages = import_script("pages")
    monkeypatch.delitem(pages.NOTES, "local")
    unpublished = dataclasses.replace(MECHANISMS["local"].traits, paper="")
    monkeypatch.setattr(MECHANISMS["local"], "traits", unpublished)
    page = pages.page("local")
    assert page.startswith(f"# `local`\n\n{MECHANISMS['local'].__doc__}\n\n## Picture")
    assert "| paper | unpublished |" in page
    assert "[`blockwise`](blockwise.md)" in page.partition("## Relatives")[2]


def test_choosing_page_is_current(import_script):
    choosing = import_script("choosing_page")
    assert choosing.CHOOSING.read_text() == choosing.page(), REMEDY


def test_table_of_protocols_is_current(import_script):
    pages = import_script("pages")
    assert pages.PROTOCOLS.read_text() == pages.protocols_page(), REMEDY
    assert set(re.findall(r"^\| `(.*?)`", pages.PROTOCOLS.read_text(), re.M)) >= set(PROTOCOLS)


def test_list_of_recipes_is_current(import_script):
    pages = import_script("pages")
    listed = pages.recipe_index()
    assert (pages.RECIPES / "README.md").read_text() == listed, REMEDY
    for path in pages.RECIPES.glob("*.md"):
        assert path.name == "README.md" or f"({path.name})" in listed


def test_count_of_figures_is_that_of_their_lines(import_script, monkeypatch, tmp_path):
    pages = import_script("pages")
    assert pages.FIGURES.read_text() == pages.figures_page(), REMEDY
    rows = ["made", "small; made", "scaled: two; needs a GPU", "can be run; needs a GPU", "needs x"]
    text = "Of 0 lines none.\n\n| | shows | command | state |\n|---|---|---|---|\n"
    monkeypatch.setattr(pages, "FIGURES", tmp_path / "figures.md")
    pages.FIGURES.write_text(text + "".join(f"| a | b | `c` | {x} |\n" for x in rows))
    count = pages.figures_page().partition("\n")[0]
    assert re.findall(r"\d+ \w+", count) == ["5 lines", "2 are", "1 scaled", "1 can", "1 need"]
    pages.FIGURES.write_text(f"{text}| a | b | `c` | can be run |\n")
    with pytest.raises(ValueError, match="needs THING"):
        pages.figures_page()


def test_questions_end_in_names_that_meet_them(import_script):
    choosing = import_script("choosing_page")
    assert choosing.bounded_cache("local")
    assert choosing.bounded_cache("linear")
    assert not choosing.bounded_cache("full")
    assert not choosing.bounded_cache("linformer")  # no causal form
    assert len(choosing.QUESTIONS) == 6  # five, and none of them
    for question, (meets, names) in choosing.QUESTIONS.items():
        assert 1 <= len(names) <= 2, question
        assert all(map(meets, names)), question


def test_scores_of_choosing_page_are_means_of_records(import_script):
    choosing = import_script("choosing_page")

    def record(mechanism, task, score, **changes):
        test = SimpleNamespace(majority_baseline=0.25)
        rules = {"test": {"last value": 0.4}} if task == "recall" else {}
        fields = {"protocol": "quick", "overrides": {}, "scores": {"test": test}, "rules": rules}
        fields |= {"mechanism": mechanism, "task": task, "score": lambda: score, **changes}
        return SimpleNamespace(**fields)

    records = [
        record("full", "needle", 0.5),
        record("full", "needle", 0.7),
        record("full", "recall", 0.9),
        record("full", "recall", 0.1, protocol="diagnostic"),
        record("full", "recall", 0.1, overrides={"training.steps": 1}),
        record("local", "needle", 0.3),
        record("local", "listops", 0.3),
    ]
    table = choosing.abilities(records)
    assert "| [`full`](mechanisms/full.md) | 60.0 | 90.0 |" in table
    assert "| [`local`](mechanisms/local.md) | 30.0 | – |" in table
    assert "| without a model | 25.0 | 40.0 |" in table
    assert "[`linear`]" not in table
    assert "|" not in choosing.abilities([])


def test_mechanism_pages_are_current(mechanism_pages):
    for name, text in mechanism_pages.items():
        # Pictures depend on rounding of the machine that drew them.
        if name.endswith(".md"):
            assert (DOCS / "mechanisms" / name).read_text() == text, f"{name}: {REMEDY}"


def test_published_scores_are_of_metrics_of_tasks():
    scores = DOCS.parent / "src" / "longspan" / "published.json"
    for score in json.loads(scores.read_text()):
        assert score["metric"] in TASKS[score["task"]].info.metrics


def test_families_of_reports_equal_traits(import_script, mechanism_pages):
    pages = import_script("pages")
    assert pages.CATALOG.read_text() == pages.catalog_file(), REMEDY
    for name, cls in MECHANISMS.items():
        assert family_of(name) == cls.traits.family
        assert f"| family | {cls.traits.family} |" in mechanism_pages[f"{name}.md"]
        assert re.search(
            rf"\(`?{name}.md\) \| .* \| {cls.traits.family} \|", mechanism_pages["README.md"]
        )
    assert family_of("s4") == OTHER


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_mechanism_picture_has_title_and_paths(name, mechanism_pages):
    for text in (mechanism_pages[f"{name}.svg"], (DOCS / "mechanisms" / f"{name}.svg").read_text()):
        root = ET.fromstring(text)
        assert name in root.find("{*}title").text
        assert len(root.findall(".//{*}path")) >= 1
        texts = [text.text for text in root.findall(".//{*}text")]
        panels = [text for text in texts if text.startswith(("bidirectional", "causal"))]
        assert any(text.startswith("causal") for text in panels) == MECHANISMS[name].traits.causal
        assert len(set(panels)) == len(panels)
        assert texts.count("key position") == texts.count("query position") == len(panels)
        assert texts.count("47") == 2 * len(panels)  # last position of both axes


def test_no_two_mechanisms_have_one_picture(mechanism_pages):
    """Committed pictures and drawn ones: a picture shows what tells its mechanism from others."""
    for files in (
        mechanism_pages,
        {x.name: x.read_text() for x in (DOCS / "mechanisms").iterdir()},
    ):
        names_by_drawing = {}
        for name in sorted(MECHANISMS):
            drawing = re.sub(r"<title>.*?</title>", "", files[f"{name}.svg"])
            names_by_drawing.setdefault(drawing, []).append(name)
        assert max(map(len, names_by_drawing.values())) == 1, names_by_drawing.values()


def test_pictures_of_masked_tasks_differ_from_those_of_their_tasks(task_pages):
    for files in (task_pages, {x.name: x.read_text() for x in (DOCS / "tasks").iterdir()}):
        for name in [x for x in files if x.startswith("masked_") and x.endswith(".svg")]:
            assert files[name] != files[name.removeprefix("masked_")], name
        # An expression whose symbols are masked is text: a tree would show their values.
        assert "[masked]" in files["masked_listops.md"]
        assert "masked_listops.svg" not in files


def test_picture_draws_the_pattern(import_script):
    pictures = import_script("pictures")
    root = ET.fromstring(f"<svg>{pictures.cells(torch.eye(3)[[1, 2, 0]])}</svg>")
    (path,) = root.findall(".//path")
    assert path.attrib["d"] == "M1 0h1M2 1h1M0 2h1"


def test_task_pages_match_registry(task_pages):
    assert {x.name for x in (DOCS / "tasks").iterdir()} == set(task_pages), REMEDY
    pages = {name for name in task_pages if name.endswith(".md")}
    assert pages == {"README.md", *(f"{name}.md" for name in TASKS)}


def test_task_pages_are_current(task_pages):
    for name, text in task_pages.items():
        # Embedded images depend on the compression library.
        if name.endswith(".md"):
            assert (DOCS / "tasks" / name).read_text() == text, f"{name}: {REMEDY}"


@pytest.mark.parametrize("name", sorted(TASKS))
def test_task_page_states_source_license_and_sizes(name, task_pages):
    page, info = task_pages[f"{name}.md"], TASKS[name].info
    assert info.source in page
    assert info.license in page
    assert all(f"{size:,}" in page for size in TASKS[name]().sizes.values() if size)
    assert re.search(rf"^longspan data (build|import) {name}", page, re.MULTILINE)
    assert ("not the published files" in page) == ("## An example" in page)
    # A page has no path of the machine that rendered it.
    assert "/tmp" not in page
    assert str(Path.home()) not in page


def test_task_pictures_are_linked_svg_files(task_pages):
    drawn = [name for name in task_pages if name.endswith(".svg")]
    assert drawn
    for name in drawn:
        for text in (task_pages[name], (DOCS / "tasks" / name).read_text()):
            assert len(ET.fromstring(text).findall(".//")) >= 1
        assert f"({name})" in task_pages[f"{name.removesuffix('.svg')}.md"]


COMMANDS = re.findall(
    r"`longspan ((?:arena|train)[^`]*)`", (DOCS / "figures.md").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def cache_of_corpus(tmp_path_factory):
    """Cache with the corpora of the protocols with pretraining."""
    folder = tmp_path_factory.mktemp("documents")
    files = write_folder(folder / "files")
    make_task(folder, files, name=CORPUS)
    make_task(folder, files, name="novels", objective="next")
    yield folder
    register_imported(folder / "none")


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_commands_of_figures_make_runs(command, cli, monkeypatch, cache_of_corpus):
    made = []
    monkeypatch.setattr(
        running, "print_plan", lambda groups, **__: [made.extend(x) for x, _ in groups]
    )
    monkeypatch.setattr(running, "_run", lambda found, *_: (made.extend(found) or [], []))
    monkeypatch.setattr(running, "print_results", lambda *_: None)
    # Models are neither built nor counted.
    monkeypatch.setattr(CountFlops, "__call__", lambda *_: 0)
    for module in ("grid", "search"):
        loaded = sys.modules[f"longspan.arena.{module}"]
        monkeypatch.setattr(loaded, "find_cell_refusal", lambda *_: None)
    dry = ["--dry-run"] if command.startswith("arena") else []
    cli.done(*command.split(), *dry, "--cache", cache_of_corpus)
    assert made
