"""README and the first page of the docs: examples, figures, and each property that they claim.

A test of a property begins with the words that claim it. A sentence that changes fails its test.
"""

import itertools
import json
import re
import statistics
from pathlib import Path

import pytest
import torch

from longspan.arena import PROTOCOLS
from longspan.attention import MECHANISMS, build
from longspan.errors import InputError, OptionError
from longspan.report.statistics.survival import verdicts_by_seed
from longspan.report.tables.published import read_published
from longspan.results import load_efficiency, load_results
from own_files import reviews, write_csv
from roads import run_shell

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "index.md").read_text()
BLOCK = README[README.index("<!-- rendered") : README.index("<!-- end -->")]
PROSE = " ".join((README + INDEX).split())
HEADS, WIDTH = 2, 8

every_mechanism = pytest.mark.parametrize("name", sorted(MECHANISMS))


def claim(words):
    """Assert that one of the pages makes this claim in these words."""
    assert words in PROSE, f"README and docs/index.md no longer say: {words}"


def listed_before(words):
    """Return the names in code type in the part of the sentence before some words."""
    claim(words)
    before = PROSE.partition(words)[0]
    return set(re.findall(r"`([a-z_]+)`", re.split(r"[;.] ", before)[-1]))


def inputs(length):
    torch.manual_seed(1)
    return [torch.randn(2, HEADS, length, WIDTH).double() for _ in range(3)]


def test_example_has_stated_shape_and_zeros():
    (example,) = re.findall(r"```python\n(.*?)```", INDEX, re.S)
    names: dict = {}
    exec(compile(example, "index.md", "exec"), names)
    assert names["out"].shape == (2, 8, 1000, 64)
    assert names["out"][1, :, 700:].eq(0).all()
    assert names["out"][1, :, :700].ne(0).any(-1).all()


@every_mechanism
def test_every_mechanism_has_the_call(name):
    claim("Every mechanism has this call once built with `heads`, `head_dim` and `max_length`")
    q = k = v = torch.randn(2, 8, 1000, 64)
    mask = torch.arange(1000) < torch.tensor([[1000], [700]])
    out = build(name, heads=8, head_dim=64, max_length=1000)(q, k, v, mask)
    assert out.shape == (2, 8, 1000, 64)
    assert out[1, :, 700:].eq(0).all()
    assert out.isfinite().all()


def test_properties_of_every_mechanism_are_those_of_its_contract():
    """`tests/attention/test_contract.py` checks each of these for every mechanism."""
    claim("Each honors a mask or refuses it")
    claim("ignores the content of padded positions (NaN included)")
    claim("takes lengths that are no multiple of a block, trains, and has")
    claim('a plain reference (`backend="reference"`)')


@every_mechanism
def test_mechanisms_that_are_listed_need_no_sizes(name):
    if name in listed_before("need no sizes"):
        assert build(name)(*(torch.randn(2, 8, 100, 64) for _ in range(3))).shape[2] == 100
    else:
        with pytest.raises(OptionError, match="is required"):
            build(name)


@every_mechanism
def test_rows_longer_than_the_maximum_are_refused_where_stated(name):
    claim("Rows longer than `max_length` are refused by")
    sentence = PROSE.partition("Rows longer than `max_length` are refused by")[2].partition(".")[0]
    attention = build(name, heads=HEADS, head_dim=WIDTH, max_length=512).double()
    if name in re.findall(r"`([a-z_]+)`", sentence):
        with pytest.raises(InputError, match="exceeds max_length=512"):
            attention(*inputs(1000))
    else:
        assert attention(*inputs(1000)).isfinite().all()


def test_numbers_of_mechanisms_and_seeds_are_those_of_the_records():
    claim("Thirty-five sequence mixers")
    assert len(MECHANISMS) == 35
    claim("trains 24 mechanisms on two small tasks with three seeds")
    assert len(PROTOCOLS["quick"].default_rows) == 24
    seeds = {}
    for path in (ROOT / "results" / "quick").glob("*/*.json"):
        record = json.loads(path.read_text())
        seeds.setdefault(record["config"]["mechanism"]["name"], set()).add(record["seed"])
    assert set(seeds) == set(PROTOCOLS["quick"].default_rows)
    assert all(numbers == set(range(10)) for numbers in seeds.values())


def test_every_seed_alone_gives_the_verdict_of_the_first_table():
    """But for a few rows at the border, which the table tells; controls of recall are not there."""
    lines = verdicts_by_seed(load_results([ROOT / "results" / "quick"]))
    assert len(lines) == 48
    assert all(set(line.solved) == set(range(10)) for line in lines)
    disagreeing = {(line.row, line.task) for line in lines if not line.agree}
    assert len(disagreeing) <= 6, disagreeing
    minorities = [min(sum(x), len(x) - sum(x)) for x in (line.solved.values() for line in lines)]
    claim(f"{sum(minorities)} of 480 runs decide otherwise than most of their row")
    solved = {(line.row, line.task): set(line.solved.values()) for line in lines}
    assert solved["full", "recall"] == solved["full", "needle"] == {True}
    controls = [("synthesizer", "recall"), ("convolution", "recall"), ("convolution", "needle")]
    assert all(solved[control] == {False} for control in controls)


def test_twenty_mixers_ran_on_the_gpus_that_the_readme_names():
    claim("an H200 and an H100 ran twenty mixers")
    record = json.loads((ROOT / "benchmarks/results/quick-h200.json").read_text())
    assert "H200" in record["device"]
    twenty = {x["mechanism"] for x in record["rows"]}
    assert len(twenty) == 20
    layers = json.loads((ROOT / "results/efficiency/layer-h200.json").read_text())
    assert {x["mechanism"] for x in layers["measurements"]} >= twenty
    scaling = json.loads((ROOT / "results/efficiency/scaling-h100.json").read_text())
    assert "H100" in scaling["device"]
    measured = {x["mechanism"] for x in scaling["measurements"] if x["state"] == "measured"}
    assert measured >= twenty


def speeds(name, length, work="training"):
    """Return the speed of each mechanism over that of `full` in a record of efficiency."""
    record = load_efficiency(ROOT / "results" / "efficiency" / f"{name}.json")
    assert f"Intel Xeon, {record.date[:10]}" in PROSE
    assert (record.device, record.threads) == ("Intel(R) Xeon(R) Processor", 2)
    shapes = [x for x in record.measurements if (x.length, x.work) == (length, work)]
    times = {x.mechanism: x.median for x in shapes if x.precision == "float32" and x.median}
    return {name: times["full"] / time for name, time in times.items() if name in MECHANISMS}


def test_claim_of_byte_models_is_that_of_the_record():
    long, short = speeds("lra-speed", 4000), speeds("lra-speed", 1000)
    claim(f"trains {long['local']:.1f} times as fast with `local` as with `full`")
    claim(f"{long['longformer']:.1f} with `longformer`")
    claim(f"at 1,000 bytes {short['local']:.1f} and {short['longformer']:.1f}")
    slow, *_, fast = sorted(x for name, x in long.items() if name not in ("full", "synthesizer"))
    claim(f"byte model at 4,000 tokens {slow:.1f} to {fast:.1f} times")


def test_speed_of_most_layers_is_that_of_the_record():
    near = sorted(x for name, x in speeds("layer", 1_024).items() if name != "full")
    claim(f"at 1,024 tokens {near[0]:.1f} to {near[-1]:.1f} times")
    faster = speeds("layer", 16_384)
    claim("a training step of a layer is 10 to 19 times as fast with most mechanisms")
    within = [x for x in faster.values() if 9.95 <= x < 19.55]
    assert len(within) > len(faster) / 2
    assert max(faster.values()) < 19.55


def test_claim_of_peers_is_that_of_the_record():
    record = json.loads((ROOT / "benchmarks/results/peers-cpu.json").read_text())
    environment = record["environment"]
    assert (environment["device"], environment["threads"]) == ("Intel(R) Xeon(R) Processor", 2)
    rows = {(x["peer"], x["length"], x["dtype"]): x for x in record["rows"]}
    near = rows["transformers-longformer", 4096, "float32"]
    far = rows["transformers-bigbird", 16_384, "float32"]
    ratios = "Longformer layer takes 1/{:.1f} of the time and 1/{:.1f} of the memory"
    claim(ratios.format(near["time_ratio"], near["memory_ratio"]))
    claim("BigBird 1/{:.1f} and 1/{:.1f} at 16,384".format(far["time_ratio"], far["memory_ratio"]))
    claim("Of 13 layers of eight libraries none is faster there")
    peers = {peer for peer, *_ in rows}
    assert len(peers) == 13
    assert len({record["peers"][x]["package"] for x in peers}) == 8
    there = [x["time_ratio"] for (_, length, _), x in rows.items() if length >= 4096]
    assert round(min(there), 2) >= 1
    gpu = json.loads((ROOT / "benchmarks/results/peers-h200.json").read_text())
    there = [x["time_ratio"] for x in gpu["rows"] if x["length"] == 16_384]
    claim(f"On an H200 {sum(x < 1 for x in there)} of {len(there)} are")
    claim(f"({gpu['date']}, [record]")


def test_claim_of_listops_is_that_of_the_records():
    rule = json.loads((ROOT / "benchmarks/results/first-operator.json").read_text())["fresh"]
    (published,) = (
        x.value
        for x in read_published()
        if (x.task, x.mechanism, x.protocol) == ("listops", "full", "lra-paper") and x.metric
    )
    claim(f"answers {100 * rule['accuracy']:.1f} % of ListOps")
    claim(f"the Transformer of Long Range Arena has {100 * published:.1f} %")
    bare = [x.score() for x in load_results([ROOT / "results/lra-small/text"]) if x.overrides]
    claim(f"a model without layers answers {100 * statistics.mean(bare):.1f} % of Text")
    (table,) = (
        x.value
        for x in read_published()
        if (x.task, x.mechanism) == ("text", "full") and "Nystromformer" in x.source
    )
    claim(f"Nystromformer's Transformer {100 * table:.1f}")


def test_flex_is_as_much_faster_as_the_readme_says():
    record = load_efficiency(ROOT / "results/efficiency/windows-h200.json")
    times = {(x.mechanism, x.length): x.median for x in record.measurements if x.median}
    ratios = [
        times["local:torch", length] / time
        for (name, length), time in times.items()
        if name == "local:flex"
    ]
    claim(f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as our blocks")


def test_named_lines_of_the_picture_can_be_told_apart(import_script):
    drawn = import_script("step_chart")
    rows = drawn.points(load_efficiency(drawn.RECORD).measurements)
    last = {x["mechanism"]: (x["length"], x["microseconds"]) for x in rows}
    ends = sorted(last[name] for name in (*drawn.NAMED, drawn.BOUND))
    longest = [time for length, time in ends if length == ends[-1][0]]
    assert len(longest) == len(drawn.NAMED)  # `full` ends earlier
    assert all(b / a > 1.2 for a, b in itertools.pairwise(longest))


def test_lines_of_the_doors_run():
    (door,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict = {}
    small = "BertConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, vocab_size=9)"
    assert "BertConfig()" in door
    exec(compile(door.replace("BertConfig()", small), "README.md", "exec"), names)
    ids = torch.arange(9)[None]
    assert names["model"](ids).last_hidden_state.shape == (1, 9, 32)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_commands_of_the_doors_run(tmp_path):
    """The commands as they stand, but with a few updates and one seed."""
    texts = [(text, {"pos": "good", "neg": "bad"}[label]) for text, label, _ in reviews(60)]
    write_csv(tmp_path / "reviews.csv", texts, ("body", "stars"))
    write_csv(tmp_path / "new.csv", [(text,) for text, _ in texts[:5]], ("body",))
    mine = (ROOT / "tests" / "gated_window.py").read_text()
    (tmp_path / "mine.py").write_text(mine.replace('"gated_window"', '"mine"'))
    documents, idea = re.findall(r"```sh\n(.*?)```", README, re.S)
    contract, *idea = idea.splitlines()
    assert contract == ".venv/bin/python -m pytest tests/attention --mechanism mine.py"
    short = " --set training.steps=4 --set training.warmup_steps=1"
    lines = [x + short * ("predict" not in x) for x in (*documents.splitlines(), *idea)]
    lines[-1] += " --seeds 0"
    run_shell(tmp_path, "bash", "-ec", "\n".join(lines))
    assert len((tmp_path / "predicted.csv").read_text().splitlines()) == 6
    assert len(list((tmp_path / "runs" / "quick").glob("*/mine-*.json"))) == 2


def test_citation_has_the_version_of_the_package():
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_readme_is_short():
    prose = re.sub(r"```.*?```", "", README.replace(BLOCK, ""), flags=re.S)
    assert len(prose.split()) < 500
    assert len(README.splitlines()) - len(BLOCK.splitlines()) <= 70
