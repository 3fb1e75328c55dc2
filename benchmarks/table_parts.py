"""Parts of the tables of benchmarks: Markdown, numbers, the environment of a record."""

from collections.abc import Iterable


def table(header: str, alignment: str, rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [header, alignment, *(f"| {' | '.join(row)} |" for row in rows), ""]


def environment(record: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in record["environment"].items()) + "."


def mebibytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**20:,.0f}"


def percent(share: float, error: float) -> str:
    return f"{100 * share:.2f} ± {100 * error:.2f}"
