"""Gallery of mechanisms: pictures show the pattern; years, costs and recall are those on record."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.catalog import sample_tokens, sample_weights

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "mechanisms" / "README.md").read_text()
TOKENS = 48


def column(heading):
    """Return the cells of a column of the table by year, by mechanism."""
    table = PAGE.partition("## By year")[2].partition("\n\nCost")[0]
    head, _, *rows = (line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:])
    at = head.index(heading)
    return {re.search(r"`(\w+)`", row[1]).group(1): row[at] for row in rows}


def rows_of(text, first):
    """Return the cells of each row of the table whose heading begins with `first`."""
    lines = text[text.index(f"| {first} |") :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


@pytest.fixture(scope="module")
def gallery(import_script):
    return import_script("gallery")


def test_topics_of_the_sample_return_once_elsewhere():
    q, k = sample_tokens(TOKENS)
    scores = q @ k.T
    runs = torch.arange(TOKENS) // 6
    same = scores > scores.max() / 2
    assert torch.equal(same, same.T)
    for run in range(8):
        seen = same[runs == run].any(0)
        assert set(runs[seen].tolist()) > {run}
        assert seen.sum() == 12


@pytest.mark.parametrize("name", ["full", "linformer", "nystrom", "performer", "reformer"])
def test_pictures_of_mechanisms_that_match_content_show_the_topics(name):
    """Buried under random tokens, these pictures showed nothing."""
    q, k = sample_tokens(TOKENS)
    similar = q @ k.T > (q @ k.T).max() / 2
    runs = torch.arange(TOKENS) // 6
    elsewhere = similar & (runs[:, None] != runs)
    weights = sample_weights(name, TOKENS)[0]
    assert weights[elsewhere].mean() > 1.5 * weights[~similar].mean()


def test_picture_of_longformer_shows_its_global_tokens():
    for causal in (False, True):
        seen = sample_weights("longformer", TOKENS, causal=causal)[0] != 0
        distance = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs()
        seen &= distance > 5  # beyond the window
        first = torch.zeros_like(seen)
        first[:, :3] = True
        first[:3] = not causal
        assert torch.equal(seen, first & (distance > 5))


def test_timeline_has_every_mechanism_in_the_column_of_its_year():
    root = ET.fromstring((DOCS / "mechanisms" / "timeline.svg").read_text())
    years = [text.text for text in root.findall("{*}text")][:-1]
    assert years == sorted(years)
    assert {"2019", "2026"} <= set(years)
    width = float(root.attrib["width"]) / len(years)
    found = {}
    for group in root.findall("{*}g"):
        x = float(re.search(r"translate\(([\d.]+)", group.attrib["transform"]).group(1))
        found[group.find("{*}text").text] = years[round(x / width)]
        assert group.findall(".//{*}path")
    assert found == {
        name: re.search(r"20\d\d", x.traits.paper)[0] for name, x in MECHANISMS.items()
    }
    assert found == {name: year for name, year in column("year").items()}


def test_steps_are_those_of_the_page_of_results():
    """Those of `quick`, and of mechanisms that it lacks those of `mixers`."""
    page = (DOCS.parent / "results" / "README.md").read_text()
    sections = [page.partition(f"\n## {x}\n")[2] for x in ("quick", "mixers")]
    tables = [rows_of(text, "row") for text in sections]
    for task in ("needle", "recall"):
        shown, at, seen = column(task), tables[0][0].index(f"{task}, %"), set()
        assert all(head[at] == f"{task}, %" for head, *_ in tables)
        for row in (row for _, _, *rows in tables for row in rows):
            name = row[0].replace("\\", "")
            if name in shown and name not in seen and row[at] != "–":
                steps = re.search(r", ([\d,]+ steps)$", row[at])
                part = re.search(r", (\d+ of \d+ seeds)$", row[at])
                score = f"no: {float(re.match('[0-9.]+', row[at])[0]):.0f} %"
                found = steps or part
                expected = found.group(1) if found else score
                # Halves of a percent round either way from the rounded score.
                assert shown[name] == expected or not found, (task, name)
                assert shown[name].startswith("no") == (found is None), (task, name)
                seen.add(name)
        assert seen == set(shown) == {name for name, cell in shown.items() if cell != "–"}


def test_pairs_are_those_of_the_page_of_findings():
    head, _, *rows = rows_of((DOCS / "findings.md").read_text(), "best rate")
    counts = [cell.removesuffix(" pairs") for cell in head[1:]]
    shown = column("most pairs")
    for name, *cells in rows:
        solved = [
            count
            for count, cell in zip(counts, cells, strict=True)
            if " steps at" in cell and "(" not in cell
        ]
        expected = solved[-1] if solved else f"below {counts[0]}"
        assert shown.pop(name.strip("`")) == expected, name
    assert set(shown.values()) == {"–"}


def test_gallery_says_what_records_of_one_seed_do_not(gallery):
    assert gallery.solved_text(None) == "–"
    assert gallery.pairs_text([]) == "–"
    assert gallery.costs("full", 1) == "– | –"
