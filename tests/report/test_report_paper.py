"""LaTeX tables in the style of papers, read by a small parser."""

import dataclasses
import re
import shutil
import statistics
import subprocess
from pathlib import Path

import pytest
from report_records import build_leaderboard, failure, record, record_of_answers

from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.output.paper import SPREADS, paper_tables
from longspan.results import load_results

ENVIRONMENTS = re.compile(r"\\(begin|end)\{(\w+)\}")
RESULTS = Path(__file__).parents[2] / "results"
RULES = ("\\toprule", "\\midrule", "\\bottomrule")


def parse(text):
    """Return the rows of every table as cells, with the rules between them.

    Checks that environments and braces are balanced, that every line has the columns of its
    table, and that no character is left that LaTeX would interpret.
    """
    stack = []
    for kind, name in ENVIRONMENTS.findall(text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    plain = re.sub(r"\\[\\{}%&_$#]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    tables = []
    for columns, body in re.findall(
        r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end\{tabular\}", text, re.S
    ):
        lines = [line.strip() for line in body.strip().splitlines()]
        tables.append([cells_of(line, len(columns)) for line in lines])
    return tables


def cells_of(line, width):
    if line in RULES:
        return line
    assert line.endswith("\\\\")
    cells = re.split(r"(?<!\\)&", line.removesuffix("\\\\"))
    spans = [int(n) for cell in cells for n in re.findall(r"\\multicolumn\{(\d+)\}", cell)]
    assert len(cells) - len(spans) + sum(spans) == width
    # An underscore or a percent sign of text is escaped.
    assert not re.search(r"(?<!\\)[_%#]", line)
    return [cell.strip() for cell in cells]


def answers(score, flips=0):
    """Return 400 answers, the same for equal scores but for some."""
    return [(i < 400 * score) != (i < flips) for i in range(400)]


def board(seeds=(0, 1)):
    scores = {"full": 0.5, "sparse_transformer": 0.9, "local": 0.7, "linear": 0.3, "performer": 0.3}
    return build_leaderboard(
        record_of_answers(name, seed, answers(score + 0.02 * seed), task)
        for name, score in scores.items()
        for task in ("listops", "text")
        for seed in seeds
    )


@pytest.mark.parametrize("spread", SPREADS)
def test_tables_are_well_formed_with_tasks_as_columns(spread):
    leaderboard = board()
    (table,) = parse(paper_tables([leaderboard], spread))
    assert table[:2] == ["\\toprule", ["Mechanism", "listops", "text", "Mean"]]
    assert table[-1] == "\\bottomrule"
    names = [line[0] for line in table if isinstance(line, list)]
    assert "sparse\\_transformer" in names
    # Groups by family, each after a rule; then the scores without learning.
    families = [(i, line[0]) for i, line in enumerate(table) if "multicolumn" in line[0]]
    found = [re.search(r"emph\{(.*?)\}", name).group(1) for _, name in families]
    assert found == ["dense", "fixed pattern", "kernel"]
    assert all(table[i - 1] == "\\midrule" for i, _ in families)
    assert names.index("sparse\\_transformer") < names.index("local")
    assert "majority class" in names


def test_best_is_bold_and_second_best_underlined():
    leaderboard = board()
    (table,) = parse(paper_tables([leaderboard]))
    lines = {line[0]: line[1:] for line in table if isinstance(line, list)}
    for i, task in enumerate(leaderboard.columns):
        for row in leaderboard.rows:
            cell, placed = lines[row.label.replace("_", "\\_")][i], row.cells[i].placement
            assert ("\\textbf" in cell) == placed.is_best, (task.label, row.label)
            assert ("\\underline" in cell) == placed.is_second
    assert "\\textbf{91.0}" in lines["sparse\\_transformer"]
    assert any("\\underline" in cell for cell in lines["local"])


def test_mean_has_a_hole_where_a_score_is_missing():
    runs = [record("full", "listops"), record("local", "listops"), record("local", "text")]
    (table,) = parse(paper_tables([build_leaderboard(runs, [failure("full", "text", seed=0)])]))
    (full,) = (line for line in table if line[0].startswith("full"))
    assert full[1:] == ["36.0", "memory", "--"]


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_runs_without_a_test_split_have_a_hole(spread, seeds):
    """As runs on imported texts of which none are held out for a test."""
    runs = [record("full", "text", seed) for seed in range(2)]
    runs = [
        dataclasses.replace(x, scores={"validation": x.scores["validation"]})
        if x.seed in seeds
        else x
        for x in runs
    ]
    board = build_leaderboard([*runs, record("full", "listops"), record("linear", "text")])
    (rows,) = parse(paper_tables([board], spread))
    (full,) = (row for row in rows if row[0] == "full")
    assert full[2] == "--"


def test_spread_is_the_deviation_over_seeds_or_the_interval():
    leaderboard = board()
    (row,) = (row for row in leaderboard.rows if row.label == "local")
    deviation = statistics.stdev(run.score("test") * 100 for run in row.runs(0))
    tables = {spread: parse(paper_tables([leaderboard], spread))[0] for spread in SPREADS}
    cells = {
        spread: next(line for line in table if line[0] == "local")
        for spread, table in tables.items()
    }
    assert f"$\\pm$ {deviation:.1f}" in cells["seeds"][1]
    # The mean over tasks differs between seeds as its tasks do.
    assert f"$\\pm$ {deviation:.1f}" in cells["seeds"][3]
    low, high = (100 * end for end in (row.cells[0].interval.low, row.cells[0].interval.high))
    assert f"{low:.1f}--{high:.1f}" in cells["interval"][1]
    assert "scriptsize" not in " ".join(cells["none"])
    (single,) = parse(paper_tables([board(seeds=(0,))], "seeds"))
    assert not any("pm" in cell for line in single if isinstance(line, list) for cell in line)


def test_caption_names_protocol_seeds_and_test_split():
    (caption,) = re.findall(r"\\caption\{(.*)\}\n", paper_tables([board()]))
    assert "protocol lra-small, mean over 2 seeds" in caption
    assert "Test accuracy, \\%" in caption
    assert "listops 400 of 400; text 400 of 400" in caption
    uneven = [record("full", seed=seed) for seed in (0, 1, 2)] + [record("local")]
    assert "mean over 1 to 3 seeds" in paper_tables([build_leaderboard(uneven)])


def test_notes_are_numbered_in_the_order_of_the_rows():
    runs = [record("linear", num_parameters=300_000), record("full")]
    runs.append(record("local", num_parameters=400_000))
    text = paper_tables([build_leaderboard(runs)])
    assert text.index("local$^{1}$") < text.index("linear$^{2}$")
    assert text.index("$^{1}$ 86.8 \\% more") < text.index("$^{2}$ 40.1 \\% more")


def test_several_metrics_are_named_with_their_direction():
    runs = [record("full"), record("full", "text", score=1.2, metric="bits_per_byte")]
    (table,) = parse(paper_tables([build_leaderboard(runs)]))
    assert "$\\uparrow$" in table[1][1]
    assert "$\\downarrow$" in table[1][2]


def tied_at_chance():
    """Return a board of which two rows are unbeaten and not better than the majority class."""
    return build_leaderboard(
        record_of_answers(name, seed, answers(score), "text")
        for name, score in (("full", 0.48), ("local", 0.475), ("linear", 0.2))
        for seed in (0, 1)
    )


def committed_boards():
    return build_leaderboards(load_results([RESULTS / "lra-scaled", RESULTS / "quick"]))


@pytest.mark.parametrize("spread", SPREADS)
def test_no_two_marks_are_on_one_place(spread):
    """A superscript without width would be set over another one, and over text beside it."""
    check_marks(paper_tables([board()], spread))
    cells = check_marks(paper_tables([tied_at_chance()], spread))
    assert sum("\\dagger" in cell for cell in cells) >= 2


def check_marks(text):
    cells = [x for table in parse(text) for line in table if isinstance(line, list) for x in line]
    assert any("$^" in cell for cell in cells)
    for cell in cells:
        assert cell.count("$^") <= 1, cell
        assert len(re.findall(r"\\(?:textbf|underline)\{", cell)) <= 1, cell
        if "\\rlap" in cell:
            assert re.search(r"\\rlap\{\$\^\{[^{}]*\}\$\}$", cell), cell
    return cells


def test_tables_of_the_committed_records_have_one_mark_on_a_place():
    text = paper_tables(committed_boards(), "interval")
    check_marks(text)
    assert text.isascii()


@pytest.mark.slow
@pytest.mark.parametrize("spread", SPREADS)
def test_tables_are_compiled(tmp_path, spread):
    program = next(filter(None, map(shutil.which, ("pdflatex", "tectonic"))), None)
    if program is None:
        pytest.skip("no TeX (pdflatex or tectonic) is installed")
    tables = paper_tables([board(), tied_at_chance(), *committed_boards()], spread)
    source = tmp_path / "tables.tex"
    source.write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        f"{tables}\\end{{document}}\n"
    )
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in program else []
    done = subprocess.run(
        [program, *options, source.name], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2_000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 1_000
