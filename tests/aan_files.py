"""AAN fixtures in both published file formats."""

import pyarrow as pa
import pyarrow.parquet as pq

SPLITS = {"train": "train", "validation": "eval", "test": "test"}
PAPERS = {f"P{n:02d}": f"Paper {n}: naïve attention, {'long ' * n}text" for n in range(12)}
PAIRS = {
    "train": [(n % 2, f"P{n:02d}", f"P{n + 1:02d}") for n in range(8)],
    "validation": [(0, "P08", "P00"), (1, "P09", "P10"), (1, "P10", "P08"), (0, "P09", "P01")],
    "test": [(1, "P10", "P11"), (0, "P11", "P02")],
}


def write_by_id(folder, pairs=PAIRS, papers=PAPERS):
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in pairs.items():
        lines = ["\t".join(map(str, row)) + "\n" for row in rows]
        (folder / f"pairs.{SPLITS[split]}.tsv").write_text("".join(lines))
    table = pa.table({"id": list(papers), "title": list(papers), "text": list(papers.values())})
    pq.write_table(table, folder / "papers.parquet")
    return folder


def write_release(folder, pairs=PAIRS, papers=PAPERS):
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in pairs.items():
        lines = [
            "\t".join([f"{label:.1f}", a, b, papers[a], papers[b]]) + "\n" for label, a, b in rows
        ]
        (folder / f"new_aan_pairs.{SPLITS[split]}.tsv").write_text("".join(lines))
    return folder
