"""README: its example, its lists, and each property that it claims, for every mechanism.

A test of a property begins with the words that claim it. A sentence that changes fails its test.
"""

import json
import re
from pathlib import Path

import pytest
import torch

from longspan.arena import PROTOCOLS
from longspan.attention import MECHANISMS, build
from longspan.errors import InputError, OptionError
from longspan.tasks import TASKS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROSE = " ".join(README.split())
HEADS, WIDTH = 2, 8

every_mechanism = pytest.mark.parametrize("name", sorted(MECHANISMS))


def claim(words):
    """Assert that the README makes this claim in these words."""
    assert words in PROSE, f"README no longer says: {words}"


def listed_before(words):
    """Return the names in code type in the part of the sentence before some words."""
    claim(words)
    before = PROSE.partition(words)[0]
    return set(re.findall(r"`([a-z_]+)`", re.split(r"[;.] ", before)[-1]))


def build_small(name, length, **options):
    sizes = {"heads": HEADS, "head_dim": WIDTH, "max_length": length}
    torch.manual_seed(0)
    return build(name, **sizes, **MECHANISMS[name].small_options, **options).double()


def inputs(length):
    torch.manual_seed(1)
    return [torch.randn(2, HEADS, length, WIDTH).double() for _ in range(3)]


def ends_padded(length):
    return torch.arange(length) < torch.tensor([length, length - length // 3])[:, None]


def test_example_has_stated_shape_and_zeros():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
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


@every_mechanism
def test_mechanisms_that_are_listed_need_no_sizes(name):
    if name in listed_before("need no sizes"):
        assert build(name)(*(torch.randn(2, 8, 100, 64) for _ in range(3))).shape[2] == 100
    else:
        with pytest.raises(OptionError, match="is required"):
            build(name)


@every_mechanism
def test_a_mask_is_honored_or_refused(name):
    """Padding between tokens, too: what it hides has no influence on any other row."""
    claim("Each honors a mask or refuses it")
    attention, (q, k, v) = build_small(name, 40), inputs(40)
    mask = (torch.arange(40) % 5 != 3).expand(2, -1)
    try:
        out = attention(q, k, v, mask)
    except InputError:
        return
    assert not out.movedim(1, 2)[~mask].any()
    hidden = ~mask[:, None, :, None]
    changed = [torch.where(hidden, x + 3, x) for x in (q, k, v)]
    torch.testing.assert_close(attention(*changed, mask), out)


@every_mechanism
def test_content_of_padded_positions_is_ignored(name):
    claim("ignores the content of padded positions (NaN included)")
    attention, mask = build_small(name, 40), ends_padded(40)
    q, k, v = inputs(40)
    bad = [torch.where(mask[:, None, :, None], x, torch.nan) for x in (q, k, v)]
    torch.testing.assert_close(attention(*bad, mask), attention(q, k, v, mask))


@every_mechanism
def test_lengths_need_be_no_multiple_of_a_block(name):
    claim("takes lengths that are no multiple of a block")
    attention = build_small(name, 128)
    for length in (1, 2, 7, 31, 33, 67, 127):
        out = attention(*inputs(length), ends_padded(length))
        assert out.shape == (2, HEADS, length, WIDTH)
        assert out.isfinite().all(), length


@every_mechanism
def test_every_mechanism_trains(name):
    claim("a block, trains, and has")
    attention = build_small(name, 40).train()
    given = [x.requires_grad_() for x in inputs(40)]
    attention(*given, ends_padded(40)).square().sum().backward()
    for letter, x in zip("qkv", given, strict=True):
        is_read = letter in attention.traits.inputs
        assert (x.grad is not None and x.grad.any().item()) == is_read, letter
        assert x.grad is None or x.grad.isfinite().all()
    for parameter in attention.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@every_mechanism
def test_every_mechanism_equals_its_plain_reference(name):
    claim('has a plain reference (`backend="reference"`)')
    given, mask = inputs(40), ends_padded(40)
    outputs = [build_small(name, 40, backend=x)(*given, mask) for x in ("auto", "reference")]
    torch.testing.assert_close(*outputs)


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
    claim("One seed (`performer`, `sparse_transformer`: three)")
    seeds = {}
    for path in (ROOT / "results" / "quick").glob("*/*.json"):
        record = json.loads(path.read_text())
        seeds.setdefault(record["config"]["mechanism"]["name"], set()).add(record["seed"])
    three = {"performer", "sparse_transformer"}
    assert {name: len(own) for name, own in seeds.items()} == {
        name: 3 if name in three else 1 for name in PROTOCOLS["quick"].default_rows
    }


def test_every_mechanism_ran_on_the_gpus_that_the_readme_names():
    claim("The twenty of the table ran on CUDA devices, an H200 and an H100")
    twenty = set(PROTOCOLS["quick"].default_rows)
    record = json.loads((ROOT / "benchmarks/results/quick-h200.json").read_text())
    assert "H200" in record["device"]
    assert {x["mechanism"] for x in record["rows"]} == twenty
    layers = json.loads((ROOT / "results/efficiency/layer-h200.json").read_text())
    assert {x["mechanism"] for x in layers["measurements"]} >= twenty
    scaling = json.loads((ROOT / "results/efficiency/scaling-h100.json").read_text())
    assert "H100" in scaling["device"]
    measured = {x["mechanism"] for x in scaling["measurements"] if x["state"] == "measured"}
    assert measured >= twenty


def test_readme_lists_every_mechanism_task_and_protocol():
    listed = set(re.findall(r"`([a-z0-9_-]+)`", README))
    missing = {*MECHANISMS, *TASKS, *PROTOCOLS} - listed
    assert not missing, f"the README does not mention {sorted(missing)}"


def test_readme_is_short():
    assert len(README.splitlines()) <= 80
