"""`longspan bench`: tables, record, JSON, refusals."""

import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest
import torch

import synthetic
import tiny
from longspan.bench import groups
from longspan.bench import suite as suite_module
from longspan.bench.peaks import PeakMeter
from longspan.results import load_efficiency
from longspan.results.efficiency import Limits
from test_cli_errors import check_rejected

pytestmark = pytest.mark.usefixtures("frozen_heap")

SMALL = (
    *("--lengths", "16,64", "--hidden-size", 32, "--heads", 2, "--tokens", 64, "--times", 1),
    *("--mechanisms", "local", "--device", "cpu"),
)


@pytest.fixture(scope="module", autouse=True)
def quick_limits():
    made = Limits(flops_per_second=2e9, bytes_per_second=3e9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite_module, "measure_limits", lambda dtype, device: made)
        patch.setattr(PeakMeter, "measure", lambda self, make: 2**20)
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Record of a layer."""
    path = tmp_path_factory.mktemp("measured") / "mine.json"
    tiny.run_commands([("bench", *SMALL, "--output", path)])
    return path


def test_tables_and_record(cli, tmp_path):
    out, err = cli.done("bench", *SMALL, "--runs", tmp_path)
    # `torch.__version__` names CUDA where the package does not.
    assert f"{torch.get_num_threads()} threads, torch {metadata.version('torch')}" in out
    assert "float32: products 2 GFLOP/s, copies 3 GB/s" in out
    assert "layer, training, float32" in out
    assert "Pays off" in out
    (path,) = (tmp_path / "efficiency").glob("layer-*.json")
    assert f"record: {path}" in err
    record = load_efficiency(path)
    # The baseline of the ratios is measured too.
    assert [x.mechanism for x in record.measurements] == ["full", "local"] * 2
    assert [x.batch_size for x in record.measurements] == [4, 4, 1, 1]


def test_report_shows_records_without_runs(cli, measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = cli("report", tmp_path, "--section", "efficiency")
    check_rejected(found, "holds no record of efficiency; run `longspan bench` first")
    own = tmp_path / "efficiency"
    own.mkdir()
    shutil.copy(measured, own)
    out, _ = cli.done("report", tmp_path, "--section", "efficiency", "--format", "markdown")
    assert "layer, training, float32" in out
    assert cli("report", own, "--section", "efficiency", "--format", "markdown")[1] == out
    for folder in (tmp_path, own):
        check_rejected(cli("report", folder), "holds no results; --section efficiency shows what w")


def test_invalid_records_are_named_and_left_out(cli, measured, tmp_path):
    (tmp_path / "efficiency").mkdir()
    record = Path(shutil.copy(measured, tmp_path / "efficiency"))
    (tmp_path / "efficiency" / "broken.json").write_text("{")
    look = ("--section", "efficiency", "--format", "markdown")
    out, err = cli.done("report", tmp_path, *look)
    assert "layer, training, float32" in out
    assert err.startswith("left out: ")
    assert "broken.json" in err
    result = next(synthetic.records("smoke", 2, ["local"]))
    result.save(tmp_path)
    out, err = cli.done("report", tmp_path, *look, "--output", tmp_path / "page.html")
    assert "layer, training, float32" in out
    assert "broken.json" in err
    assert "Pays off" in (tmp_path / "page.html").read_text()
    record.unlink()
    shutil.rmtree(tmp_path / "smoke")
    code, _, err = cli("report", tmp_path, *look)
    assert code == 2
    assert "holds no record of efficiency" in err


def test_json_is_the_record(cli, tmp_path):
    path = tmp_path / "mine.json"
    short = ("--lengths", 16, "--passes", "inference", "--output", path, "--json")
    out, _ = cli.done("bench", "scopes", *SMALL, *short)
    assert json.loads(out).items() <= json.loads(path.read_text()).items()
    assert {x["scope"] for x in json.loads(out)["measurements"]} == {"operator", "layer", "model"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("layers",), "no suite called 'layers'; did you mean layer?"),
        (("--lengths", "1K"), "--lengths takes comma-separated integers, got '1K'"),
        (("--mechanisms", "lcal"), "did you mean local?"),
        (("--dtypes", "fp8"), "no dtype called 'fp8'"),
        (("--padding", 1.5), "padding must be at least 0 and below 1, got 1.5"),
        (("--threads", 0), "--threads must be at least 1, got 0"),
        (("--heads", 7), "heads must divide hidden_size, got 7 heads and 512"),
    ],
)
def test_bad_arguments_are_one_message(cli, arguments, message):
    check_rejected(cli("bench", *arguments), message)


NUMBERS = ("tokens", "batch-size", "hidden-size", "heads", "layers", "times", "threads", "lengths")


@pytest.mark.parametrize("value", [-1, 0, 10**12, 10**400])
@pytest.mark.parametrize("option", NUMBERS)
def test_sizes_that_cannot_be_meant_are_refused_before_anything_is_built(
    cli, monkeypatch, option, value
):
    monkeypatch.setattr(suite_module.GroupMeter, "measure", lambda *_: pytest.fail("measured"))
    code, out, err = cli("bench", f"--{option}", value)
    assert (code, out) == (2, "")
    assert "must be at " in err or "is not a valid" in err or "must be numbers" in err


@pytest.mark.parametrize("value", ["nan", "-1", "-inf", "0"])
def test_limits_of_time_are_positive_numbers(cli, value):
    check_rejected(cli("bench", "--max-seconds", value), "max_seconds must be above 0")


def test_rows_that_fit_no_memory_are_left_out_without_an_estimate(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(groups, "estimate_memory", lambda _: pytest.fail("estimated"))
    sizes = ("--lengths", 2**24, "--batch-size", 2**20, "--mechanisms", "local")
    for scope in ("operator", "layer", "model"):
        out, _ = cli.done("bench", *sizes, "--scopes", scope, "--runs", tmp_path, "--json")
        (full, local) = json.loads(out)["measurements"]
        assert full["state"] == local["state"] == "out of memory"
        # One input alone: rows x tokens x width x 4 bytes.
        assert local["estimated_memory"] >= 2**20 * 2**24 * 512 * 4
