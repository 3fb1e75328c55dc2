"""Render docs/benchmarks.md and, by `result_tables`, results/README.md and parts of README.md.

`speedrun_tables` renders the table of docs/speedrun.md, `document_tables` that of
docs/recipes/long-documents.md, `ladder_tables`, `recall_tables`, `state_tables`,
`zero_layer_tables`, `length_tables`, `mad_tables` and `duplication_tables` those of
docs/findings.md;
`step_chart`, `peer_chart` and `state_tables` draw pictures.

    python benchmarks/tables.py

The figures come from the records in benchmarks/results, except the rates of the original
generators, which are given in `data_tables` and in the scripts.
"""

import functools
import json
from pathlib import Path

import data_tables
import document_tables
import duplication_tables
import ladder_tables
import length_tables
import mad_tables
import mechanism_tables
import peer_chart
import peer_tables
import recall_tables
import result_tables
import run_tables
import speedrun_tables
import state_tables
import step_chart
import zero_layer_tables

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Rendered by `python benchmarks/tables.py` from the records in `benchmarks/results/`. Each section
names its script. Devices: {devices}.

Against other libraries: `pip install -e '.[dev,peers]'`, then `python benchmarks/peers.py --out
benchmarks/results/peers-cpu.json`; `--device cuda` adds those that need a GPU.

![Time and memory of layers of other libraries over ours, float32](peers.svg)
"""

SECTIONS = {
    "peers-cpu.json": peer_tables.peers,
    "peers-cuda.json": peer_tables.peers,
    "models-cpu.json": mechanism_tables.models,
    "models-cuda.json": mechanism_tables.models,
    "layer-cpu.json": mechanism_tables.layer,
    "decoding-cpu.json": mechanism_tables.decoding,
    "decoding-recent-cpu.json": functools.partial(
        mechanism_tables.decoding, title="Decoding with mechanisms since 2022"
    ),
    "recurrences-cpu.json": mechanism_tables.recurrences,
    "streams-cpu.json": mechanism_tables.streams,
    "feature-error-cpu.json": mechanism_tables.feature_error,
    "arena-cpu.json": run_tables.arena,
    "training-loop-cpu.json": run_tables.training_loop,
    "batch-widths-cpu.json": run_tables.batch_widths,
    "intel-kernels-cpu.json": run_tables.intel_kernels,
    "loading-cpu.json": data_tables.loading,
    "corpora-cpu.json": data_tables.corpora,
    "listops-generation.json": data_tables.listops_generation,
    "first-operator.json": data_tables.first_operator,
    "pathfinder-generation.json": data_tables.pathfinder_generation,
}


def render() -> str:
    """Return the page of all records."""
    paths = {name: RESULTS / name for name in SECTIONS}
    records = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    environments = [record["environment"] for record in records.values() if "environment" in record]
    devices = dict.fromkeys(one["device"] for one in environments)
    lines = [HEAD.format(devices=", ".join(devices))]
    for name, record in records.items():
        lines += SECTIONS[name](record)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    PAGE.write_text(render())
    speedrun_tables.main()
    document_tables.main()
    duplication_tables.main()
    ladder_tables.main()
    length_tables.write_page()
    mad_tables.main()
    recall_tables.main()
    state_tables.main()
    zero_layer_tables.main()
    result_tables.main()
    step_chart.main()
    peer_chart.main()


if __name__ == "__main__":
    main()
