"""Scores of needle at longer inputs by positions: collect them, and render docs/findings.md.

    for p in none sinusoidal rotary; do longspan arena --protocol quick --tasks needle \
        --mechanisms full,local,longformer,linear,performer,ssd,delta,gated_delta \
        --set model.position=$p --runs positions; done
    for p in t5 relative; do longspan arena --protocol quick --tasks needle \
        --mechanisms full,local --set model.position=$p --runs positions; done
    for f in positions/quick/needle/*.json; do \
        longspan eval $f --lengths 256,512,1024,2048 --set task.test=500; done
    python benchmarks/length_tables.py --collect positions

Without `--collect` the committed record is rendered again.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from table_parts import replace_between, table

from longspan.results import CrossEvaluation, load_results, load_side_records

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "needle-lengths.json"
PAGE = ROOT / "docs" / "findings.md"
OPEN = "<!-- lengths, rendered by benchmarks/tables.py -->"
POSITIONS = ("none", "sinusoidal", "rotary", "t5", "relative")
TRAINED = 128  # tokens
CONTROL = 95.0  # % at the trained length, which a row must have


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collect", type=Path, help="folder of runs and their evaluations")
    folder = parser.parse_args().collect
    if folder is not None:
        RECORD.write_text(json.dumps(collect(folder), indent=1) + "\n")
    write_page()


def write_page() -> None:
    PAGE.write_text(replace_between(PAGE.read_text(), OPEN, render(json.loads(RECORD.read_text()))))


def collect(folder: Path) -> dict[str, Any]:
    """Return the scores of all runs, at the length of training and at others."""
    runs, rows = load_results([folder]), []
    places = {(run.config_hash, run.seed): run for run in runs}
    scores = [(run, TRAINED, run.score()) for run in runs]
    for one in load_side_records(CrossEvaluation, [folder]):
        run = places[one.config_hash, one.seed]
        scores.append((run, one.length, one.score.metrics[one.metric]))
    for run, length, score in scores:
        place = {"mechanism": run.mechanism, "position": run.config.model.position}
        rows.append({**place, "seed": run.seed, "length": length, "accuracy": score})
    rows.sort(key=lambda row: [str(x).zfill(9) for x in row.values()][:4])
    first = min(runs, key=lambda run: run.date)
    return {
        "environment": {
            "device": first.device,
            "torch": first.versions["torch"],
            "date": first.date[:10],
            "commit": first.git_commit,
        },
        "core_hours": sum(run.seconds for run in runs) / 3600,
        "rows": rows,
    }


def render(record: dict[str, Any]) -> list[str]:
    """Return the table: mean accuracies over seeds, and their range where it is wide."""
    cells: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in record["rows"]:
        lengths = cells.setdefault((row["mechanism"], row["position"]), {})
        lengths.setdefault(row["length"], []).append(100 * row["accuracy"])
    lengths = sorted({row["length"] for row in record["rows"]})
    shown = {
        place: x
        for place, x in cells.items()
        if fmean(x[TRAINED]) >= CONTROL and set(x) == set(lengths)
    }
    ordered = sorted(
        shown, key=lambda place: (POSITIONS.index(place[1]), -fmean(shown[place][max(lengths)]))
    )
    lines = (
        [f"`{name}`", position, *(cell(shown[name, position][x]) for x in lengths)]
        for name, position in ordered
    )
    header = " | ".join(f"{length:,}" for length in lengths)
    head = f"| accuracy, % | positions | {header} |"
    environment = record["environment"]
    runs = sum(row["length"] == TRAINED for row in record["rows"])
    seeds = len({row["seed"] for row in record["rows"]})
    return [
        *table(head, "|---|---|" + "---:|" * len(lengths), lines),
        f"{runs} runs, {seeds} seeds, {environment['device']}, {environment['date']}.",
        "",
    ]


def cell(values: list[float]) -> str:
    """Return the mean, and the range of the seeds where it exceeds a point."""
    mean = f"{fmean(values):.1f}"
    if max(values) - min(values) <= 1:
        return mean
    return f"{mean} ({min(values):.0f} to {max(values):.0f})"


if __name__ == "__main__":
    main()
