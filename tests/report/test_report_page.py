"""HTML page: well-formed, self-contained, escaped and deterministic."""

import base64
import itertools
import json
import re
import zlib
from html.parser import HTMLParser

import pytest
from report_records import failure, published, record

import synthetic
from longspan.config import Budget
from longspan.report.context import Context
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.output.page import render_page, write_page
from longspan.report.output.vega import pack
from longspan.results import Alarm

HOSTILE = "</script><img src=http://evil onerror=alert(1)>'\"&"
VOID = {"meta", "link", "img", "br", "input"}


class Document(HTMLParser):
    """Elements of a page, texts by element, unclosed tags and wrong end tags."""

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
    ] + [record("linear", protocol="smoke", options={"feature": HOSTILE})]


def write_report(runs, path, published=(), failures=()):
    boards = build_leaderboards(runs, failures)
    return write_page(boards, path, Context(published=tuple(published)))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    figures = [
        published(task="text", mechanism=mechanism, value=value, source=source)
        for mechanism, value, source in ((HOSTILE, 0.64, HOSTILE), ("bigbird", 0.6402, "table 1"))
    ]
    hostile = record(
        HOSTILE,
        "text",
        data_source=HOSTILE,
        backend_used=HOSTILE,
        overrides={HOSTILE: HOSTILE},
        options={},
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    return write_report([*runs(), hostile], path, published=figures).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(text):
    return Document(text)


def test_page_is_well_formed(document):
    assert document.wrong == []
    assert document.open == []
    names = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_page_loads_nothing_from_network(document):
    for tag, attributes in document.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            if (tag, name) == ("a", "href"):  # loaded when the reader follows it
                continue
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (tag, target)
    styles = [text for tag, text in document.texts if tag == "style"]
    assert styles
    assert not any("url(" in text or "@import" in text for text in styles)


def test_text_of_records_is_escaped(document):
    assert document.all("img") == []
    assert not any("onerror" in attributes for _, attributes in document.elements)
    cells = [data for tag, data in document.texts if tag in ("th", "td", "dd", "button", "span")]
    assert any(HOSTILE in data for data in cells)


def unpack_block(text, name):
    block = re.search(rf'<script type="text/plain" id="{name}">([A-Za-z0-9+/=]*)</script>', text)
    return zlib.decompress(base64.b64decode(block.group(1))).decode()


def test_every_chart_of_page_has_specification(text, document):
    specs = json.loads(unpack_block(text, "charts"))
    places = [
        attributes["data-chart"] for attributes in document.all("div") if "data-chart" in attributes
    ]
    assert sorted(specs) == sorted(places)
    scales = re.findall(r'"domain": (\[.*?\])', json.dumps(specs))
    assert any(HOSTILE in str(name) for domain in map(json.loads, scales) for name in domain)


def test_page_contains_libraries_once(text):
    assert "window.vegaEmbed" not in text
    assert unpack_block(text, "libraries").count("window.vegaEmbed") == 1
    # Scripts: theme, charts, libraries and the page's own.
    assert len(Document(text).all("script")) == 4


def test_page_is_accessible_to_screen_readers(document):
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
    assert "Leaderboard of smoke: test accuracy, %" in captions


def test_page_states_selection_and_scored_examples(text):
    assert "<dt>Checkpoint tested</dt><dd>best validation</dd>" in text
    assert "listops 2000 of 2000" in text
    assert "Scores of different protocols must not be compared" in text


def test_published_scores_have_protocol(document):
    shown = [data for tag, data in document.texts if tag == "td"]
    assert "64.0" in shown
    assert shown.count("lra-paper") == 2


def test_cells_have_unrounded_values(document):
    numbers = [a["data-n"] for a in document.all("td") if "data-n" in a]
    assert "52345.6789" in numbers
    missing = [a for a in document.all("td") if "data-none" in a]
    assert missing
    assert not any("data-n" in a for a in missing)


def test_scores_have_interval_margin_and_seeds(document):
    below = [data for tag, data in document.texts if tag in ("small", "span")]
    details = [one + two for one, two in itertools.pairwise(below)]
    # Seeds of 30 and 31 %, whose spread is the largest of the table.
    assert any(re.fullmatch(r"2\d\.\d–3\d\.\d · \+13\.1 · 2 seeds", x) for x in details)


def test_failures_and_alarms_are_listed(tmp_path):
    alarm = Alarm(kind="diverging", step=70, message="the loss doubled")
    lost = failure(seed=1, reason="too little memory", step=None)
    elsewhere = failure(protocol="other", reason="of its own")
    path = write_report([record(alarms=[alarm])], tmp_path / "r.html", failures=[lost, elsewhere])
    document = Document(path.read_text(encoding="utf-8"))
    shown = [data for tag, data in document.texts if tag == "td"]
    assert "the loss doubled" in shown
    assert "too little memory" in shown
    # Cells without a mean show the failure; each protocol lists its own failures.
    assert shown.count("memory") == 6
    assert "1 of 2 seeds" in [data for tag, data in document.texts if tag == "small"]
    assert "Failures, other" in [data for tag, data in document.texts if tag == "strong"]


def test_page_is_independent_of_record_order(tmp_path):
    few = [record("bigbird"), record("linear", "text"), record("linear", seed=1)]
    one = write_report(few, tmp_path / "a.html").read_bytes()
    assert write_report(few[::-1], tmp_path / "b.html").read_bytes() == one


def test_page_of_many_runs_is_small():
    # The libraries take 0.4 MB; 20 mechanisms with 10 seeds take 1.9 MB.
    runs = synthetic.records("lra-small", 2, ["bigbird", "full", "linear", "local", "nystrom"])
    assert len(render_page(build_leaderboards(runs)).encode()) < 800_000


def test_charts_are_before_tables(text):
    chapter = text[text.index("<main") :]
    caption = chapter.index("Test score against")
    assert caption < chapter.index("<figure") < chapter.index("<table")
    for section in chapter.split("<h3 ")[1:]:
        section = section.partition("</section>")[0]
        assert section.rfind("<figure") < (section.find("<table") % (len(section) + 1))


def test_protocol_under_two_budgets_is_counted_once():
    runs = [record(), record(budget=Budget(kind="flops", limit=1e15))]
    boards = build_leaderboards(runs)
    assert len(boards) == 2
    assert "2 runs under 1 protocol." in render_page(boards)


def test_packed_text_is_base64_and_can_be_unpacked():
    text = "</script><!--\u2028&'\" – " * 50
    assert re.fullmatch(r"[A-Za-z0-9+/=]{,200}", pack(text))
    assert zlib.decompress(base64.b64decode(pack(text))).decode() == text
