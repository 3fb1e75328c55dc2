"""Render the table of docs/speedrun.md from the records in benchmarks/results/speedrun.

    python benchmarks/speedrun_tables.py

`benchmarks/tables.py` does so, too.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from table_parts import replace_between, table

HERE = Path(__file__).parent
RECORDS, PAGE = HERE / "results" / "speedrun", HERE.parent / "docs" / "speedrun.md"
OPEN = "<!-- rendered by benchmarks/speedrun_tables.py -->"


def render(records: Iterable[dict]) -> list[str]:
    """Return the table of records, the newest first; a sentence if there is none."""
    rows = sorted(records, key=lambda record: record["date"], reverse=True)
    if not rows:
        return ["There is no record yet."]
    return table(
        "| seconds, mean | of each seed | steps | test, % | date | commit | machine | change |",
        "|---:|---|---|---|---|---|---|---|",
        map(_cells, rows),
    )


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


def main() -> None:
    PAGE.write_text(replace_between(PAGE.read_text(), OPEN, render(read_records())))


if __name__ == "__main__":
    main()
