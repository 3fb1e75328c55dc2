"""Documentation site: strict build, no requests to other machines, every page linked."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import urldefrag, urljoin

import pytest

from longspan.attention import MECHANISMS
from longspan.tasks import TASKS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+?)\)")


class Page(HTMLParser):
    """Addresses that a page loads, and links of its text."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.ids, self.links, self.depth = [], set(), [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.update(value for name, value in attributes if name in ("id", "name"))
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given["href"])
        self.depth += tag == "article"
        if tag == "a" and self.depth and given.get("href"):
            self.links.append(given["href"])

    def handle_endtag(self, tag):
        self.depth -= tag == "article"


def build_site(root, folder):
    # With --quiet, mkdocs does not count warnings, and a broken link would pass.
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder of the site, built strictly: a broken link fails."""
    folder = tmp_path_factory.mktemp("site")
    built = build_site(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Parsed pages by address."""
    return {
        path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }


def test_build_fails_on_broken_link_and_page_outside_navigation(tmp_path):
    (tmp_path / "docs").mkdir()
    configuration = (ROOT / "mkdocs.yml").read_text()
    start, _, rest = configuration.partition("nav:")
    nav = "nav:\n  - index.md\n\n"
    rest = "theme:" + rest.partition("\ntheme:")[2]
    rest = rest.replace("hooks:\n  - docs/site_pages.py\n", "")
    (tmp_path / "mkdocs.yml").write_text(start + nav + rest)
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[gone](gone.md)\n")
    (tmp_path / "docs" / "orphan.md").write_text("# Orphan\n")
    built = build_site(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert "'gone.md', but the target is not found" in built.stderr
    assert "orphan.md" in built.stderr


def test_site_loads_nothing_from_other_machines(site, pages):
    assert len(pages) > 50
    for name, page in pages.items():
        outside = [url for url in page.loaded if re.match(r"(https?:)?//", url)]
        assert not outside, f"{name}: {outside}"
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)


def test_site_has_a_page_of_every_mechanism_and_task(pages):
    expected = {f"mechanisms/{name}.html" for name in MECHANISMS}
    expected |= {f"tasks/{name}.html" for name in TASKS}
    expected |= {"results.html", "contributing.html", "changelog.html", "choosing.html"}
    assert expected <= set(pages)


def test_every_page_is_linked_from_the_text_of_another(pages):
    linked = {
        urljoin(name, urldefrag(link).url)
        for name, page in pages.items()
        for link in page.links
        if urldefrag(link).url and "://" not in link
    }
    assert not set(pages) - linked - {"index.html"}


def test_links_lead_to_existing_pages_and_sections(site, pages):
    for name, page in pages.items():
        for link in (link for link in page.links if "://" not in link):
            address, section = urldefrag(urljoin(name, link))
            assert (site / address).exists(), f"{name}: {link}"
            if section and address in pages:
                assert section in pages[address].ids, f"{name}: {link}"


def test_reference_has_every_public_name(pages):
    from longspan import arena, attention, interop, models, publishing, tasks, tokenizers

    ids = {one for name, page in pages.items() if name.startswith("api/") for one in page.ids}
    shown = {one.rpartition(".")[2] for one in ids}
    for path in (DOCS / "api").glob("*.md"):
        shown |= set(re.findall(r"`(\w+)`", path.read_text(encoding="utf-8")))  # constants
    for package in (arena, attention, interop, models, publishing, tasks, tokenizers):
        missing = set(package.__all__) - shown
        assert not missing, f"{package.__name__}: {sorted(missing)}"


def test_search_finds_mechanisms(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert {"mechanisms/reformer.html", "choosing.html"} <= {x["location"] for x in index["docs"]}


# The links of files as they are in the repository, which the site translates.
@pytest.mark.parametrize(
    "path",
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "results").glob("*.md")],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_links_between_files_of_the_repository(path):
    for link in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        target = urldefrag(link).url
        if target and "://" not in target:
            assert PurePosixPath(target).suffix, f"{link} is no file"
            assert (path.parent / target).exists(), link


HEIGHTS = {1280: 40_000, 390: 50_000}  # pixels; pages were up to 133,000 high
MEASURE = """() => ({
  height: document.documentElement.scrollHeight,
  width: document.documentElement.scrollWidth,
  outside: [...document.querySelectorAll('article table, article img, article pre')].filter(x => {
    for (let box = x; box && box.tagName !== 'ARTICLE'; box = box.parentElement)
      if (box.getBoundingClientRect().right <= innerWidth + 1) return false;
    return true;
  }).length,
})"""


def longest_and_widest(site):
    """Return the pages with most text and those with the widest tables."""
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    widths = {
        x: max(map(len, re.findall(r"<thead>.*?</thead>", texts[x], re.S)), default=0)
        for x in texts
    }
    by_length = sorted(texts, key=lambda x: -len(texts[x]))[:10]
    return {
        *by_length,
        *sorted(texts, key=lambda x: -widths[x])[:5],
        site / "mechanisms/index.html",
    }


def test_no_page_scrolls_sideways_or_is_of_excessive_height(site, browser):
    """At the width of a laptop and of a phone, without scripts, which tables must not need."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for path in longest_and_widest(site):
        page.goto(path.as_uri())
        for width, height in HEIGHTS.items():
            page.set_viewport_size({"width": width, "height": 900})
            one, name = page.evaluate(MEASURE), path.relative_to(site)
            assert one["width"] <= width, f"{name} scrolls sideways"
            assert not one["outside"], f"{name} has tables beyond its edge"
            assert one["height"] <= height, name
    context.close()


def test_headings_are_no_rows_of_tables(site):
    """A heading directly under a table became its last row."""
    for path in site.rglob("*.html"):
        cells = re.findall(r"<td[^>]*>(.*?)</td>", path.read_text(encoding="utf-8"), re.S)
        wrong = [cell for cell in cells if re.match(r"\s*(#{1,4} |&lt;!--|\|)", cell)]
        assert not wrong, f"{path.relative_to(site)}: {wrong}"
