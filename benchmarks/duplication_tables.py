"""Render the table of docs/findings.md on duplication, from results/duplication-small.

    longspan arena --protocol duplication-small --runs results --mechanisms \
        shared,reformer-1,reformer-2,reformer-4
    for f in results/duplication-small/duplication/*.json; do for h in 1 2 4 8; do \
        longspan eval $f --set evaluation.chunk=8 --set evaluation.hashes=$h; done; \
        longspan eval $f --set evaluation.chunk=128 --set evaluation.hashes=1; done
    python benchmarks/duplication_tables.py
"""

from collections.abc import Sequence
from pathlib import Path

from table_parts import mean_and_range, replace_between, table

from longspan.results import CrossEvaluation, Result, load_results, load_side_records

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "duplication-small"
PAGE = ROOT / "docs" / "findings.md"
OPEN = "<!-- duplication, rendered by benchmarks/tables.py -->"
Setting = tuple[int, int]  # chunk and hashes
PAIRS: Setting = (128, 1)  # one chunk: all pairs
SETTINGS: dict[Setting, str] = {
    PAIRS: "all pairs",
    (8, 8): "8 hashes",
    (8, 4): "4 hashes",
    (8, 2): "2 hashes",
    (8, 1): "1 hash",
}
Scores = dict[tuple[Setting, Setting], list[float]]  # in %, by setting of training and evaluation


def main() -> None:
    text = replace_between(PAGE.read_text(), OPEN, render(read_scores([RECORDS])))
    PAGE.write_text(text)


def read_scores(folders: Sequence[Path]) -> Scores:
    """Return the test accuracies of all seeds."""
    scores: Scores = {}
    runs: dict[tuple[str, int], Result] = {}
    for run in sorted(load_results(folders), key=lambda run: run.seed):
        runs[run.config_hash, run.seed] = run
        setting = setting_of(run.config.mechanism.options)
        scores.setdefault((setting, setting), []).append(100 * run.score())
    for one in load_side_records(CrossEvaluation, folders):
        options = runs[one.config_hash, one.seed].config.mechanism.options
        place = setting_of(options), setting_of({**options, **one.mechanism_options})
        if place[0] != place[1]:
            scores.setdefault(place, []).append(100 * one.score.metrics[one.metric])
    return scores


def setting_of(options: dict) -> Setting:
    return options["chunk"], options["hashes"]


def render(scores: Scores) -> list[str]:
    """Return the table: a row for each setting of the training, a column for the evaluation."""
    trained = [x for x in SETTINGS if (x, x) in scores]
    lines = [
        [SETTINGS[row], *(mean_and_range(scores[row, column]) for column in SETTINGS)]
        for row in trained
    ]
    header = "| trained with | " + " | ".join(SETTINGS.values()) + " |"
    return table(header, "|---|" + "---:|" * len(SETTINGS), lines)


if __name__ == "__main__":
    main()
