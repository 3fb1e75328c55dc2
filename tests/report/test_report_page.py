import base64
import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from longspan.report.markup import Markup, element, packed
from longspan.report.page import write
from longspan.report.parts import ORDER
from longspan.report.published import Published
from longspan.report.settings import settings
from report_records import failure, record

import synthetic
from longspan.errors import DataError, RunError
from longspan.report import page
from longspan.report.sections import DRAWN, Beside
from longspan.report.tables import leaderboard, leaderboards
from longspan.results import Alarm

EVIL = "</script><img src=http://evil onerror=alert(1)>'\"&"
VOID = {"meta", "link", "img", "br", "input"}


class Document(HTMLParser):
    """The elements of a page, its texts by element, and every tag left open or closed twice."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.wrong, self.texts = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else None, data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def runs():
    return [
        record(name, task, seed, 0.3 + 0.01 * seed)
        for name in ("performer", "bigbird")
        for task in ("listops", "text")
        for seed in (0, 1)
    ] + [record("linear", protocol="quick", options={"feature": EVIL})]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    published = [
        Published(task="text", mechanism=EVIL, accuracy=0.64, protocol="lra-paper", source=EVIL),
        Published(
            task="text",
            mechanism="bigbird",
            accuracy=0.6402,
            protocol="lra-paper",
            source="table 1",
        ),
    ]
    hostile = record(EVIL, "text", data_source=EVIL, backend=EVIL, overrides={EVIL: EVIL})
    path = tmp_path_factory.mktemp("page") / "report.html"
    return write([*runs(), hostile], path, Beside(published=tuple(published))).read_text(
        encoding="utf-8"
    )


@pytest.fixture(scope="module")
def document(text):
    return Document(text)


def test_page_is_well_formed(document):
    assert document.wrong == []
    assert document.open == []
    names = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_page_loads_nothing_from_a_network(document):
    for tag, attributes in document.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (tag, target)
    styles = [text for tag, text in document.texts if tag == "style"]
    assert styles
    assert not any("url(" in text or "@import" in text for text in styles)


def test_text_of_records_stays_text(document):
    assert document.all("img") == []
    assert not any("onerror" in attributes for _, attributes in document.elements)
    cells = [data for tag, data in document.texts if tag in ("th", "td", "dd", "button", "span")]
    assert any(EVIL in data for data in cells)


def unpacked(text, name):
    block = re.search(rf'<script type="text/plain" id="{name}">([A-Za-z0-9+/=]*)</script>', text)
    return zlib.decompress(base64.b64decode(block.group(1))).decode()


def test_every_chart_of_the_page_has_its_specification(text, document):
    specs = json.loads(unpacked(text, "charts"))
    places = [
        attributes["data-chart"] for attributes in document.all("div") if "data-chart" in attributes
    ]
    assert sorted(specs) == sorted(places)
    scales = re.findall(r'"domain": (\[.*?\])', json.dumps(specs))
    assert any(EVIL in domain for domain in map(json.loads, scales))


def test_libraries_are_there_once(text):
    assert "window.vegaEmbed" not in text
    assert unpacked(text, "libraries").count("window.vegaEmbed") == 1
    # The theme, the charts, the libraries, and the page's own.
    assert len(Document(text).all("script")) == 4


def test_page_can_be_read_by_a_screen_reader(document):
    assert len(document.all("h1")) == 1
    assert len(document.all("main")) == 1
    assert document.all("html") == [{"lang": "en"}]
    assert all("scope" in attributes for attributes in document.all("th"))
    ids = {attributes.get("id") for _, attributes in document.elements}
    labels = [a["aria-labelledby"] for _, a in document.elements if "aria-labelledby" in a]
    assert labels
    assert {name for label in labels for name in label.split()} <= ids
    scrolling = [a for a in document.all("div") if "scroll" in a.get("class", "").split()]
    assert len(scrolling) == len(document.all("table"))
    assert all(a["tabindex"] == "0" and a["role"] == "region" for a in scrolling)


def test_each_protocol_has_its_own_table(document):
    captions = [data for tag, data in document.texts if tag == "strong"]
    assert sum("Leaderboard of" in caption for caption in captions) == 2
    assert "Leaderboard of quick: test accuracy, %" in captions


def test_page_says_what_was_selected_and_counted(text):
    assert "<dt>Checkpoint tested</dt><dd>best validation</dd>" in text
    assert "listops 2000 of 2000" in text
    assert "Scores of different protocols must not be compared" in text


def cells(sheet):
    """A sheet by heading: the shown texts of its rows."""
    names = [heading.name for heading in sheet.headings]
    return [dict(zip(names, (e.shown for e in row), strict=True)) for row in sheet.rows]


def test_a_setting_is_said_at_the_widest_place_where_it_holds():
    runs = [
        record(name, task, seed, git_commit=None if seed else "5a" * 20, data_source=f"from {task}")
        for name in ("linear", "bigbird")
        for task in ("listops", "text")
        for seed in (0, 1)
    ]
    runs = [
        dataclasses.replace(run, training={"steps": 500, "warmup": 8 + (run.mechanism == "linear")})
        for run in runs
    ]
    found = settings(leaderboard(runs), "here")
    common = dict(found.common)
    assert common["Training"] == "steps = 500"
    assert common["Versions"] == "longspan = 0.1.0, torch = 2.13.0"
    assert common["Data sha256"] == "5f" * 32
    tasks, configurations, single = found.sheets
    assert cells(tasks) == [
        {"Task": "listops", "Data": "from listops"},
        {"Task": "text", "Data": "from text"},
    ]
    warm = {
        (row["Mechanism"], row["Task"]): row["Training: warmup"] for row in cells(configurations)
    }
    assert warm == {(m, t): "9" if m == "linear" else "8" for m, t in warm}
    assert len(warm) == 4
    assert [row["Commit"] for row in cells(single)] == ["5a" * 20, "–"] * 4
    assert {row["Seed"] for row in cells(single)} == {"0", "1"}


def test_a_setting_of_some_runs_only_is_no_common_one():
    runs = [record(seed=0), record(seed=1, versions={"longspan": "0.1.0", "numpy": "2"})]
    found = settings(leaderboard(runs), "here")
    assert dict(found.common)["Versions"] == "longspan = 0.1.0"
    (single,) = found.sheets
    assert [row["Versions: numpy"] for row in cells(single)] == ["–", "2"]


def test_the_share_of_waiting_is_shown_where_it_was_counted():
    assert "Training time" in page.render([leaderboard([record(seconds=0.0, waiting=0.0)])])
    pair = [record(seed=0, seconds=800.0, waiting=10.0), record(seed=1, waiting=None)]
    (single,) = settings(leaderboard(pair), "here").sheets
    assert [row["Waiting"] for row in cells(single)] == ["1.25", "–"]


def test_published_numbers_carry_their_protocol(document):
    shown = [data for tag, data in document.texts if tag == "td"]
    assert "64.02" in shown
    assert shown.count("lra-paper") == 2


def test_places_carry_the_unrounded_values(document):
    numbers = [a["data-n"] for a in document.all("td") if "data-n" in a]
    assert "52345.6789" in numbers
    missing = [a for a in document.all("td") if "data-none" in a]
    assert missing
    assert not any("data-n" in a for a in missing)


def test_scores_stand_with_interval_margin_and_seeds(document):
    below = [data for tag, data in document.texts if tag in ("small", "span")]
    details = [one + two for one, two in itertools.pairwise(below)]
    # Seeds of 30 and 31 %: 30.5 and t(1) * 0.707 / sqrt(2) = 6.35 to either side.
    assert "24.1–36.9 · +13.1 · 2 seeds" in details


def test_failures_and_alarms_are_listed(tmp_path):
    alarm = Alarm(kind="diverging", step=70, message="the loss doubled")
    lost = failure(seed=1, reason="too little memory", step=None)
    elsewhere = failure(protocol="other", reason="of its own")
    path = write([record(alarms=[alarm])], tmp_path / "r.html", failures=[lost, elsewhere])
    document = Document(path.read_text(encoding="utf-8"))
    shown = [data for tag, data in document.texts if tag == "td"]
    assert "the loss doubled" in shown
    assert "too little memory" in shown
    # A cell without a mean, and why; each protocol has what failed under it.
    assert shown.count("memory") == 6
    assert "1 of 2 seeds" in [data for tag, data in document.texts if tag == "small"]
    assert "Failures, other" in [data for tag, data in document.texts if tag == "strong"]


def test_the_same_results_give_the_same_page(tmp_path):
    few = [record("bigbird"), record("linear", "text"), record("linear", seed=1)]
    one = write(few, tmp_path / "a.html").read_bytes()
    assert write(few[::-1], tmp_path / "b.html").read_bytes() == one


def test_a_page_of_few_runs_is_small(text):
    assert len(text) < 600_000


def test_a_page_of_many_runs_is_small():
    # 0.4 MB are the libraries; 20 mechanisms with 10 seeds give 1.9 MB.
    runs = synthetic.records("lra-small", 2, ["bigbird", "full", "linear", "local", "nystrom"])
    assert len(page.render(leaderboards(runs)).encode()) < 800_000


def test_no_section_is_missing_from_the_page():
    assert set(DRAWN) <= {name for name, *_ in ORDER}


def test_what_a_chart_shows_is_said_above_the_chart(text):
    cost = text[text.index('id="lra-small-cost"') :]
    assert 0 < cost.index("</table>") < cost.index("Up and to the right") < cost.index("<figure")


def test_a_protocol_under_two_budgets_is_one_protocol():
    runs = [record(), record(budget={"kind": "compute", "limit": 1e15})]
    tables = leaderboards(runs)
    assert len(tables) == 2
    assert "2 runs under 1 protocol." in page.render(tables)


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(self, *args, **options):
        self.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fail)
        with pytest.raises(RunError, match="No space left on device"):
            write([record()], path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_page_of_nothing_is_refused(tmp_path):
    with pytest.raises(DataError, match="no results to report"):
        write([], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_reports_need_no_torch(tmp_path):
    modules = sorted(path.stem for path in Path(page.__file__).parent.glob("[!_]*.py"))
    # The package's own `__init__` may import what it likes; reports must not depend on it.
    code = (
        "import sys, types; sys.modules['torch'] = None\n"
        "sys.modules['longspan'] = package = types.ModuleType('longspan')\n"
        f"package.__version__, package.__path__ = '0', [{str(Path(page.__file__).parents[1])!r}]\n"
        f"import {', '.join(f'longspan.report.{name}' for name in modules)}\n"
        "from report_records import record\n"
        "from pathlib import Path\n"
        "longspan.report.page.write([record()], Path(sys.argv[1]))\n"
    )
    where = {"PYTHONPATH": str(Path(__file__).parent)}
    where["LONGSPAN_CACHE"] = os.environ["LONGSPAN_CACHE"]
    target = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-c", code, target], env=where, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert target.stat().st_size > 400_000


def test_markup_escapes_all_but_markup():
    assert element("p", "a<b", Markup("<i>"), ["&", ["x"]]) == "<p>a&lt;b<i>&amp;x</p>"
    shown = element("a", attributes={"title": '"<', "hidden": True, "id": None, "open": False})
    assert shown == '<a title="&quot;&lt;" hidden></a>'


def test_a_packed_text_survives_and_is_letters_alone():
    text = "</script><!--\u2028&'\" – " * 50
    assert re.fullmatch(r"[A-Za-z0-9+/=]{,200}", packed(text))
    assert zlib.decompress(base64.b64decode(packed(text))).decode() == text
