"""Report sections as tables, and their output formats."""

import csv
import dataclasses
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from report_records import (
    analysis,
    build_leaderboard,
    context_use,
    cross_evaluation,
    curve,
    document_scores,
    failure,
    lines,
    print_terminal,
    published,
    record,
    record_of_answers,
    record_of_statistics,
    with_second_seed,
    with_train,
)
from test_efficiency_tables import RECORD as EFFICIENCY

from longspan.config import TaskConfig
from longspan.errors import OptionError, UnknownNameError
from longspan.metrics import get_metric
from longspan.report.context import Context
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.output.page import render_page
from longspan.report.output.text import latex, markdown, to_csv, to_json
from longspan.report.sections import WITH_TABLES, section_tables
from longspan.report.tables.leaderboard import LEGEND, leaderboard
from longspan.report.tables.published import compare_figures, read_published
from longspan.report.tables.steps_to_accuracy import goals
from longspan.report.tables.table import REQUIRED, Column, Entry, make_table, slug
from longspan.results import Alarm, Slice, TrialRecord, Tuning


def rich_records():
    points = [dataclasses.replace(x, train_metrics={"accuracy": 0.5}) for x in record().curve]
    parts = [("2", 0.4, 10), ("3", 0.2, 90)]
    slices = {"depth": [Slice(label=x, value=y, num_targets=n) for x, y, n in parts]}
    alarm = Alarm(kind="chance", step=100, message="still at chance")
    rate = "training.learning_rate"
    same = {"seed": 0, "loss": 1.0, "failure": None}
    trials = [
        TrialRecord(changes={rate: x}, config_hash=f"{i:010x}", metrics={"accuracy": x}, **same)
        for i, x in enumerate((0.1, 0.2))
    ]
    tuning = Tuning(
        rule="mean: of all seeds", grid={rate: [0.1, 0.2]}, chosen={rate: 0.2}, trials=trials
    )
    runs = [
        with_train(
            record_of_answers("full", s, np.arange(100) < 40, slices=slices, curve=points), train
        )
        for s, train in ((0, 0.42), (1, 0.48))
    ]
    fields = {"alarms": [alarm], "tuning": tuning, "tokens_per_second": 104_691.3578}
    other = record_of_answers("linear", 0, np.arange(100) < 60, **fields)
    local = [record_of_answers("local", s, np.arange(100) < 20 + s) for s in (0, 1)]
    return [*runs, other, *local]


def tables_of(only):
    boards = build_leaderboards(rich_records(), [failure("linear", seed=1)])
    first = rich_records()[0]
    # One publication with both a task of Long Range Arena and a downstream one.
    both = [published(protocol="lra-small", source=f"A, table {i}") for i in (1, 2)]
    both[1] = dataclasses.replace(both[1], task="reading")
    longer = dataclasses.replace(first.config.task, options={"max_length": 2000, "length": 4000})
    evaluations = (
        cross_evaluation(first, 0.52),
        cross_evaluation(first, 0.32, evaluated_on=longer, length=4000),
    )
    context = Context(
        published=(published(), *both),
        analyses=(analysis(first),),
        evaluations=evaluations,
        sweep="training.learning_rate",
        context_uses=(context_use(first),),
        documents=(document_scores(first),),
        efficiency=(EFFICIENCY, EFFICIENCY),
    )
    return section_tables(boards, context, only)


def section_of(runs, name):
    """Return the tables of a section about some runs alone."""
    return section_tables([build_leaderboard(runs)], Context(), name)


def values(table, i):
    return [entry.value for entry in table.rows[i]]


def test_names_of_figures_keep_underscores_and_minus_signs():
    """Figures of one leaderboard were written over those of another one."""
    names = ("lra-small curves", "lra_small curves", "quick (scale = 1)", "quick (scale = -1)")
    assert len(set(map(slug, names))) == len(names)


def test_every_section_has_uniquely_named_tables():
    found = tables_of(None)
    assert len({table.name for table in found}) == len(found)
    for name in WITH_TABLES:
        assert tables_of(name), name
    for table in found:
        assert re.fullmatch(r"[a-z0-9_-]+", table.name)
        assert all(len(line) == len(table.columns) for line in (*table.rows, *table.footer))
    with pytest.raises(UnknownNameError, match="did you mean slices"):
        tables_of("slice")


def test_every_section_and_mark_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "arena" / "report.md").read_text(encoding="utf-8")
    assert [name for name in WITH_TABLES if f"`{name}`" not in text] == []
    assert all(mark in text and mark in LEGEND for mark in "↑↓")
    assert "**beats** another if its score is better and the difference is significant" in text


def test_sections_have_recorded_values():
    (gap,) = tables_of("generalization-gap")
    shown = dict(zip((row[0].value for row in gap.rows), gap.rows, strict=True))
    # The learning curve has a running mean of 0.5.
    assert [entry.value for entry in shown["full"]][1:] == [
        *("listops", pytest.approx(0.45), pytest.approx(0.41), 0.4, pytest.approx(0.05), 1000, 2)
    ]
    assert shown["full"][5].text == "+5.0"
    assert [shown["local"][i].text for i in (2, 5, 6)] == ["–", "–", "–"]
    (depth,) = tables_of("slices")
    assert values(depth, 0) == ["full", 0.4, 0.2]
    assert [entry.value for entry in depth.footer[0]] == ["targets", 10, 90]
    required, span = tables_of("attention-span")
    assert values(required, 0) == ["listops", "full", 12.5, 30.0, 750, 90.0, 16, 1]
    assert values(span, 0) == ["full", 12.5, 10.0, 15.0, 30.0, 16, 1]
    (tuning,) = tables_of("tuning")
    assert [line[3].emphasis for line in tuning.rows] == [None, "chosen"]
    assert [line[4].value for line in tuning.rows] == [0.1, 0.2]
    (alarms,) = tables_of("alarms")
    assert values(alarms, 0)[2:] == [0, "chance", 100, "still at chance"]
    (failures,) = tables_of("failures")
    remedy = "set training.gradient_accumulation_steps=4"
    assert values(failures, 0)[2:] == [1, "memory", 7, remedy]
    (matrix,) = tables_of("significance")
    # `full` has 40 of 100 right answers with both seeds, `local` 20 and 21.
    assert values(matrix, 0)[2] == pytest.approx(0.195)
    assert matrix.rows[0][2].detail == "p 0.001"
    cost = {line[0].value: line[6].value for line in tables_of("cost")[0].rows}
    assert cost == {"full": 1.0, "linear": pytest.approx(2.0), "local": 1.0}
    (other,) = tables_of("other-tasks")
    assert values(other, 1) == [
        *("full", "listops", "path_x", "resolution = 128", 2000, 16_384, "test"),
        *(0.52, 0.51, 0.4, 400, 20_000, 1),
    ]
    (table,) = tables_of("published")
    assert values(table, 0)[3] == 0.3637
    assert values(table, 0)[4] == pytest.approx(0.4)


def test_sections_without_content_have_no_tables():
    names = [name for name in WITH_TABLES if section_of([record()], name)]
    assert names == ["leaderboard", "cost", "steps-to-accuracy", "scores", "settings"]


def test_steps_are_of_first_evaluation_that_reaches_goal():
    runs = [record(score=0.5), record("slow", score=0.2)]
    low, best = 0.1745, runs[0].curve[-1].validation_metrics["accuracy"]
    found = goals("listops", runs)
    assert found == pytest.approx([low + share * (best - low) for share in (0.5, 0.75, 0.9)])
    (table,) = section_of(runs, "steps-to-accuracy")
    first = next(p for p in runs[0].curve if p.validation_metrics["accuracy"] >= found[0])
    assert values(table, 0)[1:3] == [first.step, first.seconds]
    assert values(table, 1)[1:] == [None] * 6
    assert 0.30 in goals("image", [record(task="image", score=0.42)])


def test_steps_are_shown_of_the_seeds_that_reach_a_goal():
    """A seed that never arrives removes no other one, and is counted."""
    runs = [record(seed=seed, score=score) for seed, score in enumerate((0.5, 0.5, 0.2))]
    runs += [record("slow", seed=seed, score=0.2) for seed in range(3)]
    (table,) = section_of(runs, "steps-to-accuracy")
    names = [column.name.split(" to ")[0] for column in table.columns]
    assert names == ["Mechanism", *(3 * ("Steps", "Seconds", "Seeds"))]
    goal = goals("listops", runs)[0]
    first = next(p for p in runs[0].curve if p.validation_metrics["accuracy"] >= goal)
    assert values(table, 0)[1:4] == [first.step, first.seconds, "2 of 3 seeds"]
    assert [entry.detail for entry in table.rows[0][1:3]] == ["2 of 3 seeds"] * 2
    assert values(table, 1)[1:] == 3 * [None, None, "0 of 3 seeds"]
    assert [entry.text for entry in table.rows[1][1:3]] == ["–", "–"]


def test_settings_are_listed_once_at_widest_scope():
    runs = [
        record(
            name,
            task,
            seed,
            git_commit=None if seed else "5a" * 20,
            data_source=f"from {task}",
            training={"warmup_steps": 8 + (name == "linear")},
        )
        for name in ("linear", "bigbird")
        for task in ("listops", "text")
        for seed in (0, 1)
    ]
    common, tasks, configurations, single = section_of(runs, "settings")
    shared = dict([entry.value for entry in row] for row in common.rows)
    assert shared["training.steps"] == "500"
    assert shared["version of torch"] == "2.13.0"
    assert shared["data sha256"] == "5f" * 32
    assert [line["data_source"] for line in lines(tasks)] == ["from listops", "from text"]
    warm = {
        (line["mechanism"], line["task"]): line["training_warmup_steps"]
        for line in lines(configurations)
    }
    assert warm == {(m, t): 9 if m == "linear" else 8 for m, t in warm}
    assert len(warm) == 4
    assert [line["commit"] for line in lines(single)] == ["5a" * 20, None] * 4
    assert {line["seed"] for line in lines(single)} == {0, 1}


def test_settings_of_some_runs_are_not_common():
    runs = [record(seed=0), record(seed=1, versions={"longspan": "0.1.0", "numpy": "2"})]
    *_, single = section_of(runs, "settings")
    assert [line["version_of_numpy"] for line in lines(single)] == [None, "2"]


def test_data_wait_is_shown_if_recorded():
    runs = [record(seed=0, seconds=800.0, data_wait_seconds=10.0)]
    runs.append(record(seed=1, data_wait_seconds=None))
    *_, single = section_of(runs, "settings")
    at = single.keys.index("data_wait")
    assert [row[at].text for row in single.rows] == ["1.2 %", "–"]


def test_published_scores_are_paired_with_own_rows():
    runs = [record("performer", seed=seed, score=0.38) for seed in (0, 1)]
    listed = [
        published(task=task, mechanism=name)
        for task, name in [("listops", "performer"), ("listops", "s4"), ("pathx", "performer")]
    ]
    first, second = compare_figures(build_leaderboard(runs), listed)
    assert (first.protocol, first.label) == ("lra-small", "performer")
    assert first.ours == pytest.approx(0.38)
    assert (second.published.mechanism, second.ours) == ("s4", None)


def test_published_scores_of_different_metric_are_not_paired_and_percentages_refused():
    (pair,) = compare_figures(build_leaderboard([record("full")]), [published(quantity="f1")])
    assert (pair.ours, pair.interval) == (None, "")
    with pytest.raises(OptionError, match=r"from 0 to 1, got 36.4 .*divide percentages by 100"):
        published(value=36.4)


def test_published_scores_include_lra_accuracies():
    metrics = {score.quantity for score in read_published() if score.metric}
    language = {"bits_per_byte", "bits_per_character", "perplexity", "word_perplexity"}
    questions = {"exact_match", "token_f1", "mrr"}
    assert metrics <= {"accuracy", "rouge1", "rouge2", "rougeL", *language, *questions}
    assert published() in [
        dataclasses.replace(score, source="table 1")
        for score in read_published()
        if (score.task, score.mechanism) == ("listops", "full")
    ]


def test_every_number_of_page_is_finite():
    boards = build_leaderboards(rich_records())
    numbers = [text for text in re.findall(r'data-n="(.*?)"', render_page(boards)) if text]
    assert len(numbers) > 50
    assert all(map(math.isfinite, map(float, numbers)))


@pytest.mark.parametrize(
    ("section", "words"),
    [("leaderboard", {"best"}), ("tuning", {"chosen"}), ("significance", {""})],
)
def test_bold_entries_have_text_for_screen_readers(section, words):
    entries = [entry for table in tables_of(section) for row in table.rows for entry in row]
    assert {entry.emphasis for entry in entries} - {None} == words


def test_second_best_is_underlined_in_every_format():
    row = [Entry(value=2, text="2.0", detail="±1", underline="second best")]
    table = make_table("t", "T", [Column("A", "higher", value=lambda x: x)], row)
    assert "| <ins>2.0</ins> ±1 |" in markdown([table])
    assert r"\underline{2.0} {\scriptsize $\pm$1}" in latex([table])
    styled = print_terminal([table], 40, is_wide=True, force_terminal=True)
    assert "\x1b[4m2.0\x1b[0m" in styled
    assert not re.search(r"\x1b\[4m[^\x1b]*±1", styled)
    page = render_page([build_leaderboard(rich_records())])
    assert re.search(r"<u>40\.0</u><span class=\"unseen\"> \(second best\)</span>", page)


def test_family_is_a_column():
    for section, at in (("leaderboard", -1), ("scores", 3)):
        (table,) = tables_of(section)
        assert table.columns[at].name == "Family"
        found = [row[at].value for row in table.rows]
        assert sorted(found) == ["dense", "fixed pattern", "kernel"]


def test_empty_text_is_missing_value():
    column = Column("A", "text", value=lambda x: x)
    assert column.entry("") == column.entry(None) == Entry(value=None)
    assert column.entry(0) == Entry(value=0, text="0")


TABLE = make_table(
    "s",
    "50 % of {all} & more_of_it",
    [
        Column("Mechanism", "text", value=lambda row: row[0]),
        Column("A_b, %", "higher", value=lambda row: row[1]),
    ],
    [("a|b", Entry(value=1 / 3, text="33.33 ↑", detail="±1", emphasis="best")), ("c\\d", None)],
    about="x < y",
    footer=[(Entry(value="chance", text="chance"), Entry(value=0.1, text="10.00"))],
    notes=["note ≈"],
)


def test_latex_is_escaped_and_best_is_bold():
    text = latex([TABLE])
    assert r"\caption{50 \% of \{all\} \& more\_of\_it}" in text
    assert r"  Mechanism & A\_b, \% \\" in text
    assert r"  a\textbar{}b & \textbf{33.33 $\uparrow$} {\scriptsize $\pm$1} \\" in text
    assert r"  c\textbackslash{}d & -- \\" in text
    assert r"note $\approx$" in text
    assert r"x \textless{} y" in text
    assert text.count(r"\midrule") == 2
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_csv_and_json_have_unrounded_values():
    rows = list(csv.reader(io.StringIO(to_csv([TABLE, TABLE]))))
    assert rows[0] == ["mechanism", "a_b"]
    assert rows.count(["a|b", str(1 / 3)]) == 2
    assert ["c\\d", ""] in rows
    (data,) = json.loads(to_json([TABLE]))
    assert data["rows"] == [{"mechanism": "a|b", "a_b": 1 / 3}, {"mechanism": "c\\d", "a_b": None}]
    assert data["footer"] == [{"mechanism": "chance", "a_b": 0.1}]


def test_markdown_and_terminal_show_everything():
    assert "| a\\|b | **33.33 ↑** ±1 |" in markdown([TABLE])
    words = ("33.33 ↑", "±1", "c\\d", "chance", "x < y", "note ≈")
    text = print_terminal([TABLE], is_wide=True, has_legend=True)
    assert all(word in text for word in words)


def test_markdown_rows_have_equal_number_of_columns():
    runs = [record("performer", "listops", s, x) for s, x in enumerate((0.36, 0.38, 0.40))]
    runs += [record("performer", "text", 0, 0.65), record("a|b_<i>", "text")]
    text = markdown([leaderboard(build_leaderboard(runs))])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {len("||||||||||||")}
    assert "a\\|b\\_\\<i>" in text
    assert "| performer | 38.0 33.0–43.0 · +20.6 · 3 seeds | 65.0 62.9–67.1" in text
    assert "| majority class | 17.4 | 50.0 | 33.7 | – |" in text
    assert "| chance | 10.0 | 50.0 | 30.0 | – |" in text


@pytest.mark.parametrize("tasks", [("listops", "text"), ("listops", "text", *"abcd")])
@pytest.mark.parametrize("width", [80, 100, 140, 300])
def test_terminal_shows_a_line_a_row_and_what_fits_by_priority(tasks, width):
    names = ("sparse_transformer", "position_infused")
    runs = [record(name, task) for name in names for task in tasks]
    table = leaderboard(build_leaderboard(with_second_seed(runs)))
    text = print_terminal([table], width)
    assert max(map(len, text.splitlines())) <= width
    lines = text.splitlines()
    head = text.partition("──")[0]
    match = re.search(r"Left out for want of width: (.*?)\.", " ".join(text.split()))
    left_out = match[1].split(", ") if match else []
    shown = [x for x in table.columns if x.name not in left_out]
    assert all(word in head for x in shown for word in x.name.split())
    assert not {x.name for x in table.columns if x.priority == REQUIRED} & set(left_out)
    # Columns of lower priority never stand in the place of one of a higher.
    lost = [x.priority for x in table.columns if x.name in left_out]
    assert not lost or max(lost) <= min(x.priority for x in shown)
    assert all(sum(name in line for line in lines) == 1 for name in names)
    assert width in (100, 140) or ("35.9–36.1" in text) == (width == 300)
    assert "+18.6" not in text
    wide = print_terminal([table], width, is_wide=True)
    assert "Left out" not in wide
    assert all(word in wide for x in table.columns for word in x.name.split())
    assert re.search(r"^ +35.9–36.1 .*\n .*\+18.6 · 2 seeds", wide, re.M)


def test_alarms_of_a_row_are_counted_by_kind_and_task():
    alarms = [Alarm(kind="chance", step=step, message="at chance") for step in (100, 150)]
    runs = [record(seed=seed, alarms=alarms[seed : seed + 1]) for seed in range(3)]
    table = leaderboard(build_leaderboard(runs))
    assert "[1] Alarms: chance on listops (2 of 3 seeds)." in table.notes


def rules_of(**scores):
    """Return rules with some accuracies on test; on validation they are better."""
    names = {name.replace("_", " "): x for name, x in scores.items()}
    return {"test": names, "validation": {name: x + 0.05 for name, x in names.items()}}


def test_best_rule_is_a_row_below_the_mechanisms_and_the_margin_is_over_it():
    runs = [record("performer", "listops", 0, 0.38, rules=rules_of(first_operator=0.362, last=0.2))]
    board = build_leaderboard([*runs, record("performer", "text", 0, 0.65)])
    table = leaderboard(board)
    assert [row[0].text for row in table.rows] == ["performer"]
    labels = ["rule: first operator", "majority class", "chance"]
    assert [row[0].text for row in table.footer] == labels
    text = markdown([table])
    assert "| rule: first operator | 36.2 | – | – | – |" in text
    assert "+1.8 · 1 seed" in text  # over the rule
    assert "+15.0 · 1 seed" in text  # over the majority class
    assert len({len(row) for row in (*table.rows, *table.footer)}) == 1
    # The majority class is the bar where it is better than every rule.
    board = build_leaderboard([record(score=0.38, rules=rules_of(last=0.1))])
    assert "+20.6 · 1 seed" in markdown([leaderboard(board)])
    assert board.columns[0].floor.name == "majority class"


def test_rules_of_several_tasks_are_named_in_their_cells():
    runs = [
        record("performer", "listops", rules=rules_of(first_operator=0.362)),
        record("performer", "text", score=0.7, rules=rules_of(token_counts=0.613)),
        record("local", "text", score=0.6),  # of an earlier version
    ]
    text = markdown([leaderboard(build_leaderboard(runs))])
    assert "| best rule | 36.2 first operator | 61.3 token counts | 48.8 | – |" in text
    assert "+8.7 · 1 seed" in text


def test_leaderboard_of_records_without_rules_has_no_row_of_them():
    for rules in (None, {"test": {}, "validation": {}}):
        assert "rule:" not in markdown([leaderboard(build_leaderboard([record(rules=rules)]))])


def test_scores_have_the_best_rule():
    board = build_leaderboard([record(rules=rules_of(first_operator=0.362, last=0.2))])
    (table,) = section_tables([board], Context(), "scores")
    (line,) = csv.DictReader(io.StringIO(to_csv([table])))
    assert (line["best_rule"], line["best_rule_score"]) == ("first operator", "0.362")
    assert float(line["margin"]) == pytest.approx(float(line["score"]) - 0.362)


def print_wide(tables):
    return print_terminal(tables, has_legend=True)


@pytest.mark.parametrize("write", [markdown, latex, print_wide, render_page])
def test_legend_is_printed_once(write):
    boards = build_leaderboards([record(), record(protocol="smoke")])
    shown = boards if write is render_page else [leaderboard(board) for board in boards]
    assert write(shown).count("One row beats another") == 1


def test_terminal_ignores_markup_in_records():
    text = print_terminal([leaderboard(build_leaderboard([record("[red]x[/nothing]")]))], 160)
    assert "[red]x[/nothing]" in text
    assert "majority class" in text


def test_csv_of_scores_has_unrounded_and_empty_values():
    runs = [record("performer"), record('a,"b"', "text", score=1 / 3)]
    board = build_leaderboard(runs)
    (table,) = section_tables([board], Context(), "scores")
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert len(rows) == len(board.rows) * len(board.columns)
    missing, present = (line for line in rows if line["mechanism"] == 'a,"b"')
    assert (missing["score"], missing["seeds"], missing["hardware"]) == ("", "", "")
    assert float(present["score"]) == 1 / 3
    assert [present[x] for x in ("metric", "unit", "hardware")] == ["accuracy", "%", "cpu, float32"]
    assert float(present["tokens_per_second"]) == 52_345.6789


def language_models():
    """Return records of bits per byte in which `good` beats `full` on every document."""
    rng = np.random.default_rng(0)
    nats, sizes = rng.gamma(9.0, 100.0, size=200), np.full(200, 1000.0)
    runs = []
    for name, factor in (("full", 1.0), ("good", 0.9), ("bad", 1.2)):
        for seed in (0, 1):
            statistics = np.stack([factor * (1 + 0.002 * seed) * nats, sizes], axis=1)
            runs.append(record_of_statistics(name, seed, statistics, "pg19", "bits_per_byte"))
    return runs


def test_lower_is_better_in_ranks_bold_and_order():
    board = build_leaderboard(language_models())
    assert [row.label for row in board.rows] == ["good", "full", "bad"]
    assert [row.overall.placement.ranks for row in board.rows] == [(1, 1), (2, 2), (3, 3)]
    table = leaderboard(board)
    entries = {line[0].value: line[1] for line in table.rows}
    marks = {name: entry.text.split()[1:] for name, entry in entries.items()}
    assert marks == {"good": ["↑"], "full": [], "bad": ["↓"]}
    assert [name for name, entry in entries.items() if entry.emphasis] == ["good"]
    assert table.columns[1].kind == "lower"
    assert table.title == "Leaderboard of lra-small: test bits per byte"
    assert re.fullmatch(r"\d\.\d{3} ↑", entries["good"].text)
    assert table.footer == ()
    (matrix,) = section_tables([board], Context(), "significance")
    assert values(matrix, 0)[2] < 0


@pytest.mark.parametrize(("spread", "failures"), [(0.001, [failure("local", seed=1)]), (0.0, [])])
def test_rows_without_a_test_are_not_called_equal(spread, failures):
    """A row with a failed seed, and one with a seed alone where the seeds of the others tie."""
    runs = [
        record(name, seed=seed, score=score + spread * seed)
        for name, score in (("full", 0.5), ("linear", 0.3))
        for seed in range(3)
    ]
    board = build_leaderboard([*runs, record("local", score=0.9)], failures)
    (matrix,) = section_tables([board], Context(), "significance")
    assert [column.name for column in matrix.columns] == ["Mechanism", "full", "linear"]
    assert matrix.notes == ("Compared with no row: local.",)


def test_lower_is_better_in_steps_to_goal():
    scores = {"full": 1.0, "slow": 4.0}
    runs = [record(name, score=x, metric="bits_per_byte") for name, x in scores.items()]
    found = goals("pg19", runs)
    best = min(p.validation_metrics["bits_per_byte"] for p in runs[0].curve)
    assert found == pytest.approx([8.0 - share * (8.0 - best) for share in (0.5, 0.75, 0.9)])
    (table,) = section_of(runs, "steps-to-accuracy")
    first = next(p for p in runs[0].curve if p.validation_metrics["bits_per_byte"] <= found[0])
    assert values(table, 0)[1] == first.step
    assert table.columns[1].name == f"Steps to {found[0]:.3f} bits/byte"


def test_running_means_of_training_are_no_generalization_gap():
    better = with_train(record(score=1.2, metric="bits_per_byte"), 1.0)
    (table,) = section_of([better], "generalization-gap")
    assert values(table, 0)[5] == pytest.approx(0.2)
    points = [dataclasses.replace(one, train_metrics={"accuracy": 0.9}) for one in curve(0.4)]
    assert section_of([record(score=0.4, curve=points)], "generalization-gap") == []


def test_evaluations_on_other_tasks_are_grouped_by_data_and_in_no_leaderboard():
    runs = [record("local", "listops", seed) for seed in (0, 1)]
    board = build_leaderboard(runs)
    longer = TaskConfig(name="listops", version=1, options={"max_length": 4000})
    found = [
        *(cross_evaluation(run, score) for run, score in zip(runs, (0.5, 0.6), strict=True)),
        cross_evaluation(runs[0], 0.3, evaluated_on=longer),
        cross_evaluation(runs[0], 0.4, split="validation"),
        cross_evaluation(runs[0], 0.9, config_hash="0" * 10),
    ]
    (table,) = section_tables([board], Context(evaluations=tuple(found)), "other-tasks")
    columns = ("evaluated_on", "options", "split", "score", "seeds")
    assert [tuple(line[name] for name in columns) for line in lines(table)] == [
        ("listops", "max_length = 4000", "test", 0.3, 1),
        ("path_x", "resolution = 128", "test", pytest.approx(0.55), 2),
        ("path_x", "resolution = 128", "validation", 0.4, 1),
    ]
    shown, plain = (
        to_csv(section_tables([board], context, "leaderboard"))
        for context in (Context(evaluations=tuple(found)), Context())
    )
    assert shown == plain


def test_inference_is_shown_where_all_runs_measured_it():
    (with_cost,) = section_of([record()], "leaderboard")
    (without,) = section_of([record(inference=None)], "leaderboard")
    assert set(with_cost.keys) - set(without.keys) == {"inference_examples_s", "inference_memory"}
    (line,) = lines(with_cost)
    assert (line["inference_examples_s"], line["inference_memory"]) == (321.0987, 268_435_456)
    runs = [record(seed=0), record(seed=1, inference=None)]
    for section in ("cost", "scores"):
        (table,) = section_of([*runs, record("linear")], section)
        line = next(x for x in lines(table) if "bigbird" in x.values())
        found = {name: x for name, x in line.items() if "infer" in name}
        assert len(found) == 2
        assert set(found.values()) == {None}
    (table,) = section_of([record(inference=None)], "cost")
    assert not [name for name in table.keys if "infer" in name]
    assert "hardware" in table.keys


def test_f1_and_mrr_are_in_percent_and_compared_by_bootstrap():
    rng = np.random.default_rng(0)
    wanted = rng.random(400) < 0.5
    runs = []
    for name, rate in (("full", 0.5), ("good", 0.9)):
        found = np.where(wanted, rng.random(400) < rate, rng.random(400) < 0.2)
        parts = (wanted & found, ~wanted & found, wanted & ~found)
        runs.append(record_of_statistics(name, 0, np.stack(parts, 1), "contracts", "f1"))
        ranks = np.stack([rng.choice([rate, 0.2], 400), np.ones(400)], 1)
        runs.append(record_of_statistics(name, 0, ranks, "search", "mrr"))
    board = build_leaderboard(with_second_seed(runs))
    good = next(row for row in board.rows if row.label == "good")
    assert [cell.placement.arrow for cell in good.cells] == ["↑", "↑"]
    assert good.cells[0].placement.p < 0.001
    assert good.cells[0].interval.over == "seeds and examples"
    table = leaderboard(board)
    names = ["Mechanism", "contracts (F1, %)", "search (mean reciprocal rank, %)"]
    assert [column.name for column in table.columns[:3]] == names
    assert "Rank" not in [column.name for column in table.columns]
    assert board.means == ()
    f1 = get_metric("f1").aggregate(np.stack(parts, 1))
    shown = next(row for row in table.rows if row[0].value == "good")[1].text
    assert shown.startswith(f"{100 * f1:.1f}")


REPORTS_WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(('torch', 'transformers', 'numba', 'pyarrow')))
from longspan.cli import main
places = sys.argv[1:]
for kind in ("terminal", "markdown", "csv", "json", "latex"):
    sys.argv = ["longspan", "report", *places, "--format", kind, "--section", "published"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, kind
    print("END", flush=True)
assert "scipy.stats" not in sys.modules
"""


def test_report_command_runs_without_torch_in_every_format(tmp_path):
    for run in rich_records():
        run.save(tmp_path / "runs")
    failure("linear", seed=1).save(tmp_path / "runs")
    page = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-c", REPORTS_WITHOUT_TORCH, tmp_path / "runs", "--output", page],
        capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *reports, rest = done.stdout.split("END\n")
    assert (len(reports), rest) == (5, "")
    for text in reports:
        assert "lra-paper" in text
        assert str(page) not in text
        # Tay et al. 2021 report 36.37 for the Transformer.
        assert "36.4" in text or "0.3637" in text
    assert "lra-paper" in page.read_text(encoding="utf-8")
