"""Render the comparison of docs/recipes/long-documents.md from its record.

python benchmarks/document_tables.py
"""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from table_parts import replace_between, table

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "document-ways.json"
PAGE = ROOT / "docs" / "recipes" / "long-documents.md"
OPEN = "<!-- ways, rendered by benchmarks/tables.py -->"
SIGNIFICANT = 0.05
SETS = {  # by set: title
    "novels": "author of 1,000 words of a novel",
    "articles": "hyperpartisan article",
    "posts": "group of a post",
    "citations": "citation between two papers",
}
TITLES = {
    "whole": "whole, local attention",
    "mean": "chunks of 512, mean",
    "max": "chunks of 512, maximum",
    "attention": "chunks of 512, attention",
    "head": "first 512",
    "head_tail": "first 128 and last 384",
    "words": "words alone, no layers",
    "pretrained whole": "pretrained here on 256 tokens, whole",
    "pretrained head": "pretrained here, first 512",
    "TF-IDF": "TF-IDF, logistic regression",
    "constant": "most frequent class",
}


def main() -> None:
    rows = json.loads(RECORD.read_text())["rows"]
    PAGE.write_text(replace_between(PAGE.read_text(), OPEN, render(rows)))


def render(rows: Iterable[dict]) -> list[str]:
    """Return a table: a row for each way, the sets as columns."""
    runs: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        runs.setdefault((way(row), row["set"]), []).append(row)
    sets = [name for name in SETS if any(name == x for _, x in runs)]
    lines = [
        [title, *(cell(runs.get((title, name), [])) for name in sets)]
        for title in TITLES.values()
        if any((title, name) in runs for name in sets)
    ]
    header = "| accuracy, % | " + " | ".join(SETS[name] for name in sets) + " |"
    return table(header, "|---|" + "---|" * len(sets), lines)


def way(row: dict) -> str:
    """Return the title of the way that a row is of."""
    options, name = row["options"], row["name"]
    if options.get("num_hidden_layers") == 0:
        name = "words"
    elif name == "disjoint":
        name = options.get("pooling", "mean")
    elif "from" in options:
        name = "pretrained whole" if name == "local" else "pretrained head"
    elif name == "local":
        name = options.get("truncation", "head" if options["length"] == 512 else "whole")
    return TITLES[name]


def cell(rows: list[dict]) -> str:
    """Return mean and range of the seeds, minutes, and seeds that beat or lose to TF-IDF."""
    if not rows:
        return "–"
    values = [100 * row["metrics"]["accuracy"] for row in rows]
    seconds = fmean(row["seconds"] for row in rows)
    time = f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
    if "seed" not in rows[0]:
        return f"{values[0]:.1f}; {time}" if seconds else f"{values[0]:.1f}"
    decided = [row for row in rows if (row["p_value"] or 1) < SIGNIFICANT]
    better = sum(row["fewer_errors"][0] > row["fewer_errors"][1] for row in decided)
    verdicts = {"better": better, "worse": len(decided) - better}
    words = ", ".join(f"{word} {n} of {len(rows)}" for word, n in verdicts.items() if n)
    spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}; {time}; {words or 'level'}"


if __name__ == "__main__":
    main()
