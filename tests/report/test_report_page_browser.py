"""Page in a real browser, opened from a file without a network."""

import csv
import dataclasses
import io
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_records import analysis, curve, failure, published, record, record_of_answers, rollout

from longspan.report.context import Context
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.output.page import write_page
from longspan.report.output.text import to_csv
from longspan.report.sections import section_tables
from longspan.results import (
    Alarm,
    Similarity,
    Slice,
    TrialRecord,
    Tuning,
    load_results,
    pack_levels,
    quantize,
)

COMMITTED = Path(__file__).parents[2] / "results"
BOARD = "#lra-small-leaderboard"
SCORES = {"linear": 0.31, "bigbird": 0.36, "performer": 0.33, "full": 0.35, "local": 0.36}


def runs():
    found = [
        record_of_answers(
            name,
            seed,
            [j < 100 * score + seed for j in range(100)],
            task,
            peak_memory=2**20 * (i + 1) if i else None,
            tokens_per_second=1e4 * (i + 1) / 3,
            slices={"depth": [Slice(label=str(d), value=score, num_targets=9) for d in (2, 3)]},
            curve=curve(score, points=30),
        )
        for i, (name, score) in enumerate(SCORES.items())
        for task in ("listops", "text")
        for seed in (0, 1)
        if (name, task) != ("local", "text")
    ]
    alarm = Alarm(kind="chance", step=100, message='at chance, "still", & <stuck>')
    same = {"changes": {}, "seed": 0, "loss": 1.0, "failure": None}
    trial = TrialRecord(config_hash="0123456789", metrics={"accuracy": 0.4}, **same)
    tuning = Tuning(rule="", grid={}, chosen={"seed": 0}, trials=[trial])
    smoke = {"protocol": "smoke", "tuning": tuning, "data_source": ""}
    found += [record("linear", alarms=[alarm], **smoke), record("linear", seed=1, **smoke)]
    novels = {"metric": "perplexity", "protocol": "novels"}
    return found + [record(x, "novels", score=9 - 10 * y, **novels) for x, y in SCORES.items()]


def analyses():
    # Rows of a matrix whose products are e^(-|i - j| / 4).
    near = [[math.exp(-abs(i - j) / 4) for j in range(16)] for i in range(16)]
    line = np.linalg.cholesky(near)
    tiles = np.random.default_rng(0).normal(size=(64, 8))
    shares, pixels = [i / 2016 for i in range(64)], pack_levels(range(0, 256, 4))
    rollouts = [rollout(shares, row=row, side=8, levels=pixels) for row in (0, 5)]
    return [
        analysis(
            next(run for run in runs() if run.mechanism == name),
            (20.0, 40.0 + 2 * i),
            positions=Similarity(count=256, grid=None, dimensions=16, vectors=quantize(line, 16)),
            tokens=Similarity(count=64, grid=[8, 8], dimensions=8, vectors=quantize(tiles, 8)),
            rollouts=rollouts,
        )
        for i, name in enumerate(("linear", "full"))
    ]


def context():
    score = published(task="text", value=0.6427, protocol="p")
    return Context(published=(score,), analyses=tuple(analyses()))


def boards():
    lost = failure("local", "text", 0, reason="out of memory; a smaller batch needs less")
    return build_leaderboards(runs(), [lost])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_page(boards(), tmp_path_factory.mktemp("browser") / "report.html", context())


@pytest.fixture
def open_page(browser, path):
    """Open the page with a width and options; check console and requests when the test ends."""
    contexts, wrong = [], []

    def open_with(width=1280, **options):
        view = {"width": width, "height": 900}
        context = browser.new_context(
            viewport=view, offline=True, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda said: wrong.append((said.type, said.text)))
        page.on("pageerror", lambda error: wrong.append(("error", str(error))))
        page.on("request", lambda request: _local(request.url) or wrong.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_with
    for context in contexts:
        context.close()
    assert wrong == []


def _local(url):
    return url.startswith(("file:", "data:", "blob:"))


@pytest.fixture
def page(open_page):
    return open_page()


def names(page, table=BOARD):
    cells = page.locator(f"{table} tbody").first.locator("tr:not([hidden]) > th")
    return [text.split(" ")[0] for text in cells.all_text_contents()]


def status(page):
    return page.locator("#status").text_content()


def read_script(name):
    return (Path(__file__).parent / f"{name}.js").read_text(encoding="utf-8")


def draw_charts(page):
    """Scroll through the page until every chart is drawn; return the number of charts."""
    page.evaluate("document.querySelectorAll('.chart').forEach((node) => node.scrollIntoView())")
    page.wait_for_function(
        "[...document.querySelectorAll('.chart')].every((node) => node.querySelector('svg'))"
        " || (document.querySelector('.chart:not(:has(svg))').scrollIntoView(), false)"
    )
    return page.locator(".chart").count()


def heights_of_charts(page):
    return page.locator(".chart").evaluate_all("all => all.map((chart) => chart.clientHeight)")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_drawn_in_their_places_and_page_fits_width(open_page, tmp_path, width, scheme):
    """Nothing is loaded and no console output made; see `open_page`."""
    page = open_page(width, color_scheme=scheme)
    before = heights_of_charts(page)
    # Cost, scores, curves, slices, span and spectrum of lra-small; cost, scores, curves of novels,
    # whose five mechanisms are too few for a correlation; cost and curves of smoke.
    assert draw_charts(page) == (6 + 2 + 4 + 2 + 3 + 1) + (2 + 1 + 2) + (2 + 2)
    assert heights_of_charts(page) == before
    heights = page.locator(".chart svg").evaluate_all("(all) => all.map((x) => x.clientHeight)")
    assert min(heights) > 80
    assert page.evaluate("document.documentElement.scrollWidth") == width
    screenshot = tmp_path / f"page-{width}-{scheme}.png"
    page.screenshot(path=screenshot)
    with Image.open(screenshot) as image:
        colors = image.convert("L").getcolors()
    background = max(colors)[1]
    assert (background > 200) == (scheme == "light")
    assert len(colors) > 20
    if width == 1280:
        assert page.evaluate(read_script("contrast")) == {}
        assert page.evaluate(read_script("accessible")) == []


def test_page_has_every_table_of_report_and_main_ones_need_no_horizontal_scrolling(page):
    found = page.locator(".table").evaluate_all("(all) => all.map((x) => x.id)")
    assert found == [table.name for table in in_page_order(boards())]
    for table in (BOARD, "#lra-small-cost", "#lra-small-settings-runs"):
        frame = page.locator(f"{table} .scroll")
        assert frame.evaluate("(frame) => frame.scrollWidth - frame.clientWidth") == 0, table


@pytest.mark.parametrize("protocol", ["lra-scaled", "lra-small"])
def test_costs_of_committed_records_need_no_horizontal_scrolling(browser, tmp_path, protocol):
    boards = build_leaderboards(load_results([COMMITTED / protocol]))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(write_page(boards, tmp_path / "report.html").as_uri())
    frame = page.locator(f"#{protocol}-cost .scroll")
    assert frame.evaluate("(frame) => frame.scrollWidth - frame.clientWidth") == 0
    page.close()


@pytest.mark.parametrize("press", ["click", "Enter"])
def test_heading_cycles_through_sort_orders(page, press):
    first = names(page)
    heading = page.locator(f"{BOARD} thead th").nth(1)
    button = heading.locator("button")

    def pressed():
        button.click() if press == "click" else button.press(press)
        return heading.get_attribute("aria-sort"), names(page)

    best = sorted(SCORES, key=lambda name: -SCORES[name])
    way, order = pressed()
    assert way == "descending"
    assert [SCORES[name] for name in order] == [SCORES[name] for name in best]
    assert "sorted by listops, descending" in status(page)
    way, order = pressed()
    assert way == "ascending"
    assert [SCORES[name] for name in order] == [SCORES[name] for name in best[::-1]]
    assert pressed() == (None, first)
    assert "original order" in status(page)


def test_values_are_sorted_as_numbers_with_missing_ones_and_baselines_last(page):
    heading = page.locator(f"{BOARD} thead th").get_by_role("button", name="Memory", exact=True)
    for _ in range(2):
        heading.click()
        # `linear` has no measured memory and `local` lacks a task.
        assert set(names(page)[-2:]) == {"linear", "local"}
        bodies = page.locator(f"{BOARD} tbody")
        assert "majority class" in bodies.nth(1).text_content()
    page.locator(f"{BOARD} thead th", has_text="Tokens/s").locator("button").click()
    # 13.3k, 10.0k, 6.67k and 3.33k: sorted as text, 3.33k would not be last.
    assert names(page) == ["full", "performer", "bigbird", "linear", "local"]
    table = "#lra-small-settings-runs"
    page.locator(f"{table} thead th", has_text="Seed").locator("button").click()
    seeds = page.locator(f"{table} tbody tr > td:nth-child(3)").all_text_contents()
    assert seeds == ["0"] * 9 + ["1"] * 9


def test_filter_keeps_rows_with_every_word_and_exports_them_alone(page):
    table = "#lra-small-settings-runs"
    box = page.locator(f"{table}-filter")
    box.fill("TEXT form")
    assert names(page, table) == ["performer", "performer"]
    assert page.locator(f"{table} .count").text_content() == "2 of 18 rows"
    assert "2 of 18 rows" in status(page)
    box.fill("")
    assert len(names(page, table)) == 18
    page.locator(f"{BOARD}-filter").fill("bird")
    _, text = export_csv(page)
    found = [line["mechanism"] for line in csv.DictReader(io.StringIO(text))]
    assert found == ["bigbird", "majority class", "chance"]


def test_rows_are_filtered_by_trait(page):
    page.locator(f"{BOARD} select[data-trait=family]").select_option("kernel")
    assert names(page) == ["performer", "linear"]
    assert "2 of 5 rows" in status(page)
    page.locator(f"{BOARD} select[data-trait=family]").select_option("any")
    page.locator(f"{BOARD} select[data-trait=cost]").select_option("T^2")
    assert names(page) == ["full"]
    page.locator(f"{BOARD} select[data-trait=cross]").select_option("no")
    assert names(page) == []
    # Every mechanism of this table has a causal form: there is nothing to choose.
    assert page.locator(f"{BOARD} select[data-trait=causal]").count() == 0


def test_mean_is_of_the_chosen_tasks_and_has_no_rank(page):
    box = page.locator(f"{BOARD} fieldset")
    heading = page.locator(f"{BOARD} th[data-role=mean]")
    html = "(rows) => rows.map((row) => row.outerHTML)"
    before = page.locator(f"{BOARD} tr").evaluate_all(html)
    box.get_by_label("text").uncheck()
    assert heading.text_content() == "Mean of listops"
    assert "without rank and interval" in status(page)
    _, text = export_csv(page)
    head, *lines = csv.reader(io.StringIO(text))
    assert head[:5] == ["mechanism", "listops", "text", "mean_of_listops", "rank"]
    assert len(lines) == len(SCORES) + 2
    assert all(line[3:5] == [line[1], ""] for line in lines)
    scores = [float(line[3]) for line in lines[: len(SCORES)]]
    assert scores == sorted(scores, reverse=True)
    # The baselines have a mean of the same tasks.
    floor = page.locator(f"{BOARD} tbody.floor td[data-label='Mean of listops']")
    assert floor.first.text_content() == "10.0"
    box.get_by_label("listops").uncheck()
    cells = page.locator(f"{BOARD} td[data-label='Mean of no task']").all_text_contents()
    assert cells == ["–"] * (len(SCORES) + 2)
    for name in ("listops", "text"):
        box.get_by_label(name).check()
    assert page.locator(f"{BOARD} tr").evaluate_all(html) == before


def test_recomputed_mean_is_sorted_and_counts_scores_at_chance(browser, tmp_path):
    shares = {"full": (0.9, 0.11, 0.5), "linear": (0.5, 0.6, 0.5), "local": (0.7, 0.1, 0.5)}
    runs = [
        record_of_answers(name, 0, [j < 1000 * share for j in range(1000)], task)
        for name, row in shares.items()
        for task, share in zip("abc", row, strict=True)
    ]
    page = browser.new_page(offline=True)
    page.goto(write_page(build_leaderboards(runs), tmp_path / "report.html").as_uri())
    page.locator(f"{BOARD} fieldset").get_by_label("c").uncheck()
    assert names(page) == ["linear", "full", "local"]
    means = page.locator(f"{BOARD} tbody").first.locator("td[data-label='Mean of a, b']")
    assert means.all_text_contents() == ["55.0", "50.51 at chance", "40.01 at chance"]
    page.locator(f"{BOARD} fieldset").get_by_label("b").uncheck()
    assert names(page) == ["full", "local", "linear"]
    heading = page.locator(f"{BOARD} th[data-role=mean] button")
    heading.click()
    heading.click()
    assert names(page) == ["linear", "local", "full"]
    page.close()


def test_rows_have_links_and_a_command_to_copy(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    row = page.locator(f"{BOARD} tr[data-mechanism=performer]")
    assert row.get_by_role("link", name="paper").get_attribute("href").startswith("https://arxiv")
    assert "0123456" in row.locator(".links").text_content()
    row.get_by_role("button", name="Copy the command of performer").click()
    page.wait_for_function("document.getElementById('status').textContent === 'Command copied.'")
    assert page.evaluate("navigator.clipboard.readText()") == (
        "longspan arena --protocol lra-small --tasks listops --mechanisms performer --seeds 0,1\n"
        "longspan arena --protocol lra-small --tasks text --mechanisms performer --seeds 0,1"
    )


def test_command_is_selected_without_a_clipboard(open_page):
    page = open_page()
    page.evaluate("navigator.clipboard.writeText = () => Promise.reject(); null")
    page.locator(f"{BOARD} tr[data-mechanism=full] .copy").click()
    page.wait_for_function("document.getElementById('status').textContent === 'Command selected.'")
    assert "--mechanisms full" in page.evaluate("getSelection().toString()")
    assert page.locator(f"{BOARD} .commands code").first.is_visible()


def test_rows_are_blocks_of_named_values_on_a_phone(open_page):
    page = open_page(390)
    frame = page.locator(f"{BOARD} .scroll")
    assert frame.evaluate("(frame) => frame.scrollWidth - frame.clientWidth") == 0
    row = page.locator(f"{BOARD} tr[data-mechanism=performer]")
    shown = "(cell) => [getComputedStyle(cell, '::before').content, cell.firstChild.textContent]"
    pairs = dict(row.locator("td").evaluate_all(f"(cells) => cells.map({shown})"))
    assert {'"listops"', '"Mean"', '"Tokens/s"', '"Memory"'} <= set(pairs)
    assert pairs['"Memory"'] == "3.00 MiB"
    boxes = row.locator("td, th").evaluate_all(
        "(cells) => cells.map((cell) => [cell.scrollWidth - cell.clientWidth,"
        " parseFloat(getComputedStyle(cell).fontSize)])"
    )
    assert all(over <= 0 and size >= 12 for over, size in boxes)
    # The headings still sort, and filtered rows are gone.
    page.locator(f"{BOARD} thead").get_by_role("button", name="listops").click()
    assert names(page)[0] in ("bigbird", "local")
    page.locator(f"{BOARD}-filter").fill("performer")
    assert page.locator(f"{BOARD} tr[data-mechanism=full]").is_hidden()


def test_selected_mechanisms_are_highlighted_in_tables_and_charts(page):
    count = draw_charts(page)
    page.locator("#mechanisms summary").press("Enter")
    button = page.get_by_label("Mechanisms").get_by_role("button", name="full")
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert status(page) == "Selected: full."
    kept = page.locator(f"{BOARD} tbody tr:not(.faded)").all_text_contents()
    assert [text.split()[0][:4] for text in kept] == ["full", "majo", "chan"]
    faint = ".chart path[opacity='0.08']"
    page.wait_for_function(f"document.querySelectorAll({faint!r}).length > {count}")
    page.get_by_label("Hide the others in tables").check()
    assert names(page) == ["full"]
    page.get_by_role("button", name="Show all").press("Enter")
    assert len(names(page)) == 5
    page.wait_for_function(f"document.querySelectorAll({faint!r}).length === 0")
    page.keyboard.press("Escape")
    assert page.locator("#mechanisms").get_attribute("open") is None


def test_theme_changes_and_is_remembered(open_page, path):
    page = open_page(color_scheme="light")

    def paper():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    button = page.get_by_role("button", name="Theme")
    seen = [(paper(), button.text_content())]
    for _ in range(3):
        button.click()
        seen.append((paper(), button.text_content()))
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 26)"
    assert seen == [
        (light, "Theme: system"),
        (light, "Theme: light"),
        (dark, "Theme: dark"),
        (light, "Theme: system"),
    ]
    button.click()
    button.click()
    # Chromium hands what a page has stored to the next one a moment later.
    for _ in range(20):
        page.goto(path.as_uri())
        if paper() == dark:
            break
        page.wait_for_timeout(250)
    assert paper() == dark


def test_theme_changes_without_storage(open_page, path):
    page = open_page(color_scheme="light")
    deny_storage = (
        "Object.defineProperty(window, 'localStorage', {get() { throw new Error('none'); }})"
    )
    page.add_init_script(deny_storage)
    page.goto(path.as_uri())
    button = page.get_by_role("button", name="Theme")
    button.click()
    button.click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


def export_csv(page, table=BOARD):
    with page.expect_download() as waiting:
        page.locator(f"{table} .export").click()
    return waiting.value.suggested_filename, waiting.value.path().read_text(encoding="utf-8")


def test_csv_has_bold_and_underlined_numbers(browser, tmp_path):
    """Use scores that are shown unrounded, so that the page holds them as text alone."""
    scores = {"linear": 1.125, "local": 1.375, "bigbird": 1.625}
    runs = [
        record(name, "listops", seed, x + spread, metric="bits_per_byte")
        for name, x in scores.items()
        for seed, spread in enumerate((-(2**-7), 2**-7))
    ]
    page = browser.new_page(offline=True)
    page.goto(write_page(build_leaderboards(runs), tmp_path / "report.html").as_uri())
    texts = [page.locator(f"{BOARD} td {tag}").first.text_content() for tag in ("b", "u")]
    assert texts == ["1.125", "1.375"]
    _, text = export_csv(page)
    page.close()
    found = {
        line["mechanism"]: float(line["listops"]) for line in csv.DictReader(io.StringIO(text))
    }
    assert found == scores


def test_csv_of_every_table_equals_csv_of_command_line(page):
    # Capture files at their creation: a browser blocks downloads after a few.
    page.evaluate(
        "window.made = []; HTMLAnchorElement.prototype.click = () => {};"
        "URL.createObjectURL = (blob) => { made.push(blob.text()); return '#'; }; null"
    )
    tables = in_page_order(boards())
    for table in tables:
        page.locator(f"#{table.name} .export").click()
    found = page.evaluate("Promise.all(made)")
    assert len(found) == len(tables) > 15
    for text, table in zip(found, tables, strict=True):
        expected = list(csv.reader(io.StringIO(to_csv([table]))))
        assert [list(map(parse_number, row)) for row in csv.reader(io.StringIO(text))] == [
            list(map(parse_number, row)) for row in expected
        ]


def parse_number(text):
    """Parse a number; Python and JavaScript format some differently, such as 1e-05."""
    try:
        return float(text)
    except ValueError:
        return text


def test_csv_keeps_quotes_signs_and_cells_without_text(page):
    file, text = export_csv(page, "#smoke-alarms")
    assert file == "smoke-alarms.csv"
    (line,) = list(csv.reader(io.StringIO(text)))[1:]
    assert line[-1] == 'at chance, "still", & <stuck>'
    _, text = export_csv(page, "#smoke-tuning")
    (line,) = csv.DictReader(io.StringIO(text))
    assert (line["trial"], line["rule"]) == ("unchanged", "")
    page.evaluate(
        "document.querySelector('#smoke-settings-runs tbody').rows[0].cells[1].replaceChildren()"
    )
    page.locator("#smoke-settings-runs thead th", has_text="Task").locator("button").click()
    _, text = export_csv(page, "#smoke-settings-runs")
    assert [line["task"] for line in csv.DictReader(io.StringIO(text))] == ["", "listops"]


def test_tables_are_readable_without_charts(browser, path):
    plain = browser.new_context(java_script_enabled=False)
    page = plain.new_page()
    page.goto(path.as_uri())
    assert page.locator("noscript p").is_visible()
    assert page.locator(f"{BOARD} tbody tr").first.is_visible()
    assert page.locator(".chart").first.bounding_box()["height"] < 100
    plain.close()
    # Without DecompressionStream the libraries cannot be unpacked.
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(path.as_uri())
    page.locator(f"{BOARD} thead th button").nth(1).click()
    assert "sorted by listops" in status(page)
    page.locator(".chart").first.scroll_into_view_if_needed()
    page.get_by_text("This chart cannot be drawn: DecompressionStream").first.wait_for()
    page.close()


def in_page_order(boards):
    every = dataclasses.replace(context(), boards=tuple(boards))
    return [table for board in boards for table in section_tables([board], every)]


def test_values_are_shown_on_hover_and_by_arrow_keys(page):
    chart = page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    chart.locator("svg").wait_for()
    chart.focus()
    chart.press("ArrowRight")
    hint = page.locator("#hint")
    assert hint.is_visible()
    assert status(page).startswith("Mechanism: ")
    first = status(page)
    chart.press("ArrowRight")
    assert status(page) != first
    chart.press("Escape")
    assert not hint.is_visible()
    chart.locator("path[opacity]").first.hover(force=True)
    page.wait_for_function("!document.getElementById('hint').hidden")
    assert "Pareto front" in hint.text_content()


def test_pictures_keep_their_proportions_at_every_width(open_page):
    for width in (1280, 400):
        page = open_page(width)
        pictures = page.locator(".picture svg")
        assert pictures.count() == 3
        for picture in pictures.all():
            box = picture.bounding_box()
            _, _, *size = map(float, picture.get_attribute("viewBox").split())
            assert box["width"] / box["height"] == pytest.approx(size[0] / size[1], rel=0.01)
            # Text of 12 pixels stays readable; a narrow page scrolls the picture, not itself.
            assert box["width"] >= 0.99 * min(size[0], 400)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_heatmap_values_are_read_by_arrow_keys_and_escape_hides_them(page):
    hint = page.locator("#hint")
    place = page.locator(".cells").first
    place.scroll_into_view_if_needed()
    place.press("ArrowRight")
    assert status(page) == f"Row 1, Column 2, Cosine {math.exp(-1 / 4):.2g}"
    assert hint.is_visible()
    place.press("Escape")
    assert not hint.is_visible()
    # Hover without keyboard focus.
    place.evaluate("(node) => node.blur()")
    place.hover()
    assert hint.is_visible()
    page.keyboard.press("Escape")
    assert not hint.is_visible()


def test_every_chart_is_drawn_before_printing(page):
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(
        "[...document.querySelectorAll('.chart')].every((node) => node.querySelector('svg'))"
    )
    assert not page.locator(".bar").is_visible()
    assert not page.locator(".tools").first.is_visible()


def test_keyboard_reaches_results_first_and_screen_readers_get_applications(page):
    places = page.locator(".chart, .cells")
    assert places.count() > 10
    roles = places.evaluate_all("(all) => all.map((node) => [node.role, node.tabIndex])")
    assert {tuple(role) for role in roles} == {("application", 0)}
    assert page.locator("[role=img][tabindex], img[tabindex]").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
