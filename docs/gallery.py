"""Render the gallery of mechanisms: a timeline of their patterns, what they cost and recall."""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from layer_record import PRECISION, all_conditions, layers, memory_over_full, speed_over_full
from pictures import TOKENS, cells, weights

from longspan.attention import MECHANISMS, Attention
from longspan.catalog import describe_cost, families
from longspan.report.statistics.survival import read_survival
from longspan.results import BASELINE, Result, load_results

ROOT = Path(__file__).parents[1]
CONTRACT = ROOT / "benchmarks" / "results" / "contract.json"
TASKS = ("needle", "recall")
SWEPT = "task.vocabulary"  # 128 in every run of the sweep of pairs, 64 in the recipe
SEEDS = 3  # of a cell of the sweep
TRAITS = {
    "exact": "exact softmax over its pattern",
    "causal": "causal form",
    "cross": "cross-attention",
    "global_tokens": "global tokens",
    "needs_layer_input": "needs the layer's input",
}
THUMB, STEP, ROW, TOP = 64, 98, 100, 30  # pixels: side of a pattern, column, row, head
Runs = dict[tuple[str, str], list[Result]]  # by task and mechanism


def index() -> str:
    """Return the page that lists the mechanisms by year and by family."""
    lines = [
        "# Mechanisms",
        "",
        "Attention replaces the vector of each token by a weighted mean of the vectors of other",
        "tokens: a *query* asks, *keys* answer, *values* are averaged. Comparing every query with",
        "every key costs the square of the length. Most mechanisms below avoid that cost, each in",
        "its own way. A page begins with the idea, and shows the weights, the definition, options",
        "and cost. [Choosing a mechanism](../choosing.md) goes by need and by measured cost;",
        "`longspan show NAME` draws a mechanism in a terminal.",
        "",
        "![Timeline of the mechanisms, each with its pattern of weights](timeline.svg)",
        "",
        f"Patterns on {TOKENS} tokens: runs of six of one of four topics, each of which returns",
        "once. Rows are queries, columns keys. Pages have larger pictures and the causal forms.",
        "",
        *by_year(),
        "",
        *by_family(),
    ]
    return "\n".join(lines) + "\n"


def by_year() -> list[str]:
    """Return the mechanisms by the year of their paper, with cost and solved tasks."""
    runs, swept = plain_runs(), swept_runs()
    longest = max(x.length for x in layers(BASELINE))
    speed = f"speed at {longest:,} tokens"
    lines = [
        "## By year: cost and recall",
        "",
        f"| year | mechanism | paper | cost | {speed} | memory | needle | recall | most pairs |",
        "|---|---|---|---|---:|---:|---|---|---:|",
    ]
    for name in sorted(MECHANISMS, key=lambda x: (year(x), x)):
        paper = re.split(r";|, http", MECHANISMS[name].traits.paper or "unpublished")[0]
        solved = " | ".join(solved_text(runs.get((task, name))) for task in TASKS)
        row = f"{year(name)} | [`{name}`]({name}.md) | {paper} | {describe_cost(name)}"
        lines.append(f"| {row} | {costs(name, longest)} | {solved} | {pairs_text(swept[name])} |")
    return [
        *lines,
        "",
        "Cost grows as T, the number of tokens. Speed and memory: a training step of one layer",
        f"over that of `full` ({PRECISION}, {all_conditions()}).",
        "*needle* (reach over 128 tokens) and *recall* (look-up of eight pairs): median steps",
        "until 95 % of the answers are right, if every seed gets there, else the seeds that do or",
        "the accuracy on test (`longspan report results/quick`, ten seeds, and `results/mixers`,",
        "three, of one recipe with one learning rate). *Most pairs*:",
        "with a short convolution and the better of two rates, the largest number of 4, 8, 16 and",
        "32 pairs of 128 ids that all three seeds recall in 1,500 steps",
        "([how many pairs](../findings.md#how-many-pairs-are-looked-up)). A dash: no record.",
    ]


def by_family() -> list[str]:
    """Return the mechanisms by family, with their traits and the results of their contract."""
    record = json.loads(CONTRACT.read_text())
    results, place = {row["mechanism"]: row for row in record["rows"]}, record["environment"]
    lines = [
        "## By family: what they can do",
        "",
        "Families are the classes of Tay et al. 2022, Efficient Transformers: A Survey",
        "(https://arxiv.org/abs/2009.06732), table 1, and two later ones, linear recurrence and",
        "convolution; `dense` is attention to every pair. Tests of",
        "the contract: reference in float64, gradients, masks, padding, causality, steps, caches,",
        "layouts, precision, growth. Not claimed: tests of forms that a mechanism does not have",
        f"(`python benchmarks/contract.py`, {place['device']}, torch {place['torch']}).",
        "",
        f"| mechanism | | family | {' | '.join(TRAITS.values())} | tests: passed, failed, not "
        "claimed |",
        f"|---|---|---|{':-:|' * len(TRAITS)}---:|",
    ]
    for family, names in families().items():
        for name in names:
            cls, row = MECHANISMS[name], results.get(name)
            marks = " | ".join("yes" if getattr(cls.traits, trait) else "" for trait in TRAITS)
            title = re.split(r"\n| \(|,", about(cls))[0].rstrip(".")
            tests = "{passed}, {failed}, {skipped}".format_map(row) if row else ""
            lines.append(f"| [`{name}`]({name}.md) | {title} | {family} | {marks} | {tests} |")
    return lines


def about(cls: type[Attention]) -> str:
    return str(sys.modules[cls.__module__].__doc__).strip()


def year(name: str) -> str:
    """Return the year of the paper, or nothing without one."""
    found = re.search(r"(?:19|20)\d\d", MECHANISMS[name].traits.paper or "")
    return found.group() if found else ""


def plain_runs() -> Runs:
    """Return the runs without overrides by task and mechanism, of `quick` or else `mixers`.

    The recipe is the same.
    """
    quick, mixers = (_plain_runs(name) for name in ("quick", "mixers"))
    return {**mixers, **quick}


def _plain_runs(protocol: str) -> Runs:
    runs: Runs = defaultdict(list)
    for run in load_results([ROOT / "results" / protocol]):
        if not run.overrides and not run.reference:
            runs[run.task, run.mechanism].append(run)
    return runs


def swept_runs() -> dict[str, list[Result]]:
    """Return the runs of the sweep over pairs and learning rates, by mechanism."""
    runs: dict[str, list[Result]] = defaultdict(list)
    for run in load_results([ROOT / "results" / "mixers"]):
        if SWEPT in run.overrides and run.row_name == run.mechanism:
            runs[run.mechanism].append(run)
    return runs


def is_solved(runs: Sequence[Result]) -> bool:
    """Return whether every seed reaches the score that ends a training."""
    times = read_survival(runs, runs[0].config.training.stop_at)
    return times is not None and times.solved == len(runs)


def solved_text(runs: Sequence[Result] | None) -> str:
    """Return the median steps where every seed solves, else how many do, or the score."""
    if not runs:
        return "–"
    times = read_survival(runs, runs[0].config.training.stop_at)
    assert times is not None
    if times.solved == len(runs):
        return f"{times.median:,} steps"
    if times.solved:
        return f"{times.solved} of {len(runs)} seeds"
    return f"no: {100 * sum(run.score() for run in runs) / len(runs):.0f} %"


def pairs_text(runs: Iterable[Result]) -> str:
    """Return the largest number of pairs that every seed recalls at one learning rate."""
    cells = defaultdict(list)
    for run in runs:
        cells[run.config.task.options["pairs"], run.config.training.learning_rate].append(run)
    cells = {place: found for place, found in cells.items() if len(found) >= SEEDS}
    solved = [pairs for (pairs, _), found in cells.items() if is_solved(found)]
    if not cells:
        return "–"
    return str(max(solved)) if solved else f"below {min(pairs for pairs, _ in cells)}"


def costs(name: str, length: int) -> str:
    """Return speed and memory of a layer over those of `full`, as two cells."""
    for one in layers(name):
        if one.length == length:
            ratios = speed_over_full(one), memory_over_full(one)
            return " | ".join("–" if x is None else f"{x:.1f} x" for x in ratios)
    return "– | –"


def timeline() -> str:
    """Draw the patterns in columns by year, each with cost and a mark for recall."""
    runs, columns = plain_runs(), defaultdict(list)
    for names in families().values():
        for name in names:
            columns[year(name) or "unpublished"].append(name)
    drawn = []
    for x, when in enumerate(sorted(columns)):
        place = f'x="{x * STEP + STEP / 2:g}" text-anchor="middle"'
        drawn.append(f'<text {place} y="18" font-size="15" font-weight="bold">{when}</text>')
        for y, name in enumerate(columns[when]):
            drawn.append(thumbnail(name, x * STEP, TOP + y * ROW, runs.get(("recall", name))))
    width, rows = len(columns) * STEP, max(map(len, columns.values()))
    height = TOP + rows * ROW + 24
    legend = (
        "recall of eight pairs (quick): ● every seed, ◐ some, ○ none, nothing: no record; "
        "T: cost in the number of tokens"
    )
    drawn.append(f'<text x="8" y="{height - 8}">{legend}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="11" fill="#767676">'
        f"<title>Mechanisms by year</title>{''.join(drawn)}</svg>\n"
    )


def thumbnail(name: str, x: int, y: int, runs: Sequence[Result] | None) -> str:
    """Draw the pattern of the first head, with name, cost and mark below."""
    inset, middle = (STEP - THUMB) / 2, STEP / 2
    mark = ""
    if runs:
        times = read_survival(runs, runs[0].config.training.stop_at)
        assert times is not None
        mark = " ●" if times.solved == len(runs) else " ◐" if times.solved else " ○"
    texts = "".join(
        f'<text x="{middle:g}" y="{THUMB + below}" text-anchor="middle">{text}</text>'
        for below, text in ((12, name), (24, MECHANISMS[name].traits.cost + mark))
    )
    scale = THUMB / TOKENS
    pattern = cells(weights(name, causal=False)[0])
    return (
        f'<g transform="translate({x} {y})"><g transform="translate({inset:g} 0) '
        f'scale({scale:.4g}) translate(0 .5)">{pattern}</g>{texts}</g>'
    )
