"""Sentences of docs/gpu.md and docs/efficiency.md, recomputed from the committed records."""

import json
from pathlib import Path

import pytest

from longspan.results import load_efficiency

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "results"
GPU, EFFICIENCY = (
    " ".join((ROOT / "docs" / name).read_text().split()) for name in ("gpu.md", "efficiency.md")
)


def read(name):
    return json.loads((RECORDS / name).read_text())["rows"]


def speeds(name, length, work="training", precision="bfloat16"):
    """Return the speed of each mechanism over that of `full`."""
    record = load_efficiency(ROOT / "results" / "efficiency" / name)
    shape = (length, work, precision)
    rows = [x for x in record.measurements if (x.length, x.work, x.precision) == shape]
    times = {x.mechanism: x.median for x in rows if x.median and x.mechanism != "identity"}
    return {name: times["full"] / time for name, time in times.items()}


@pytest.mark.parametrize("length", [4_096, 16_384])
def test_whole_models_on_the_h100(length):
    section = GPU.partition("- `models`")[2].partition("- `kernels`")[0]
    short = section.partition("At 4,096 tokens:")[2]
    text = short if length == 4_096 else section.removesuffix(short)
    models: dict = {}
    for row in read("models-h100.json"):  # training, then inference
        models.setdefault((row["model"], row["length"]), []).append(row)
    for name in (model for model, of_length in models if of_length == length):
        training, inference = (f"{x['time_ratio']:.1f}" for x in models[name, length])
        shown = name.removesuffix("Model").removesuffix("Encoder")
        assert f"{shown} {training} and {inference}" in text
    ours = [1_000 * both[0]["ours"]["median"] for both in models.values()]
    # Rounded to 5 ms.
    low, high = (5 * round(end(ours) / 5) for end in (min, max))
    assert f"A training step of ours takes {low} to {high} ms" in section


def test_layers_of_other_libraries_on_the_h200():
    ratios: dict = {}
    for row in read("peers-h200.json"):
        ratios.setdefault(row["length"], {})[row["peer"]] = row["time_ratio"]
    there = ratios.pop(16_384)
    ours = {peer for peer, ratio in there.items() if ratio > 1}
    lower = [ratio for peer, ratio in there.items() if peer not in ours]
    assert f"all others are faster than ours ({min(lower)} to {max(lower)})" in GPU
    slower = {x for shorter in ratios.values() for x in there if x not in ours and shorter[x] > 1}
    assert slower == {"performer-pytorch"}
    (said,) = {f"but for performer-pytorch ({x['performer-pytorch']:.1f})" for x in ratios.values()}
    assert said in GPU


def test_layers_and_byte_models_on_a_gpu():
    byte_models = speeds("lra-speed-h200.json", 1_000)
    fast = "`linformer` has {linformer:.2f}, `linear` {linear:.2f}, `performer` {performer:.2f}"
    assert fast.format(**byte_models) in GPU
    said = "`disjoint`, `blockwise` and `local` {local:.2f} to {disjoint:.2f}"
    assert said.format(**byte_models) in GPU
    assert byte_models["local"] < byte_models["blockwise"] < byte_models["disjoint"]
    long = speeds("scaling-h100.json", 65_536)
    faster = {name: x for name, x in long.items() if x > 1}
    assert len(faster) == 15
    assert all(f"`{name}` {x:.1f}" in GPU for name, x in faster.items())


def test_range_of_layers_is_that_of_the_record():
    found = sorted(speeds("layer.json", 16_384, precision="float32").values())[1:]  # but `full`
    said = f"a layer in the picture below takes 1/{found[0]:.1f} to 1/{found[-1]:.1f} of the time"
    assert said in EFFICIENCY
