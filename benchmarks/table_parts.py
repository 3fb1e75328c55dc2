"""Parts of the tables of benchmarks: Markdown, numbers, the environment of a record."""

from collections.abc import Iterable, Sequence
from statistics import fmean

CLOSE = "<!-- end -->"


def table(header: str, alignment: str, rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [header, alignment, *(f"| {' | '.join(row)} |" for row in rows), ""]


def environment(record: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in record["environment"].items()) + "."


def mebibytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**20:,.0f}"


def percent(share: float, error: float) -> str:
    return f"{100 * share:.2f} ± {100 * error:.2f}"


def mean_and_range(values: Sequence[float]) -> str:
    """Return the mean, and the least and largest of the seeds where they are printed apart."""
    mean, low, high = (f"{x:.1f}" for x in (fmean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def replace_between(page: str, start: str, lines: Iterable[str]) -> str:
    """Return a page with other lines between a mark and the end mark that follows it."""
    before, found, rest = page.partition(start)
    _, ended, after = rest.partition(CLOSE)
    if not (found and ended):
        raise ValueError(f"the page has no part from {start} to {CLOSE}")
    return f"{before}{start}\n\n" + "\n".join(lines) + f"\n{CLOSE}{after}"
