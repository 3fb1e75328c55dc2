"""Render the table of docs/speedrun.md from the records in benchmarks/results/speedrun.

    python benchmarks/speedrun_tables.py

`benchmarks/tables.py` does so, too.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from table_parts import table

HERE = Path(__file__).parent
RECORDS, PAGE = HERE / "results" / "speedrun", HERE.parent / "docs" / "speedrun.md"
OPEN, CLOSE = "<!-- rendered by benchmarks/speedrun_tables.py -->", "<!-- end -->"


def render(records: Iterable[dict]) -> str:
    """Return the table of records, the newest first; a sentence if there is none."""
    rows = sorted(records, key=lambda record: record["date"], reverse=True)
    if not rows:
        return "There is no record yet.\n"
    lines = table(
        "| seconds, mean | of each seed | steps | test, % | date | commit | machine | change |",
        "|---:|---|---|---|---|---|---|---|",
        map(_cells, rows),
    )
    return "\n".join(lines)


def _cells(record: dict) -> list[str]:
    runs, place = record["runs"], record["environment"]
    return [
        f"{record['seconds']:.2f}",
        ", ".join(f"{run['seconds']:.2f}" for run in runs),
        ", ".join(f"{run['steps']:,}" for run in runs),
        ", ".join(f"{100 * run['test']:.1f}" for run in runs),
        record["date"],
        f"`{record['commit'][:8]}`",
        f"{place['device']}, torch {place['torch']}",
        record["change"],
    ]


def read_records(folder: Path = RECORDS) -> list[dict]:
    """Return the committed records."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def updated_page(page: str, records: Iterable[dict]) -> str:
    """Return the page with the table of records between its marks."""
    before, after = page.split(OPEN)[0], page.split(CLOSE)[1]
    return f"{before}{OPEN}\n{render(records)}{CLOSE}{after}"


def main() -> None:
    PAGE.write_text(updated_page(PAGE.read_text(), read_records()))


if __name__ == "__main__":
    main()
