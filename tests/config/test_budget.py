"""Parsing and printing of budgets."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from longspan.config import Budget, parse_budget
from longspan.errors import LongspanError, OptionError, UnknownNameError

PARSED = {
    "steps": Budget(),
    "seconds=600": Budget(kind="seconds", limit=600),
    "seconds=1.5min": Budget(kind="seconds", limit=90),
    "seconds = 2 h": Budget(kind="seconds", limit=7200),
    "seconds=1d": Budget(kind="seconds", limit=86400),
    "flops=1e15": Budget(kind="flops", limit=1e15),
    "flops=2.5T": Budget(kind="flops", limit=2.5e12),
    "memory=2GiB": Budget(kind="memory", limit=2 * 1024**3),
    "memory=300MB": Budget(kind="memory", limit=3e8),
    "memory=1e6": Budget(kind="memory", limit=1e6),
    "memory=1TiB": Budget(kind="memory", limit=1024**4),
    "microbatch=16GiB": Budget(kind="microbatch", limit=16 * 1024**3),
    "flops=1.2345678901234e20": Budget(kind="flops", limit=1.2345678901234e20),
}
REJECTED = {
    "second=5": "no budget called 'second'; did you mean seconds",
    "steps=5": "--budget must be like steps, seconds=600, .* got 'steps=5'",
    "memory": "--budget must be like steps, seconds=600, .* got 'memory'",
    "memory=": "limit of --budget memory must be a positive number, got",
    "memory=-3": "limit of --budget memory must be a positive number, got",
    "flops=1.2.3": "limit of --budget flops must be a positive number, got",
    "seconds=3GiB": "unit of --budget seconds must be one of s, min, h, d, got 'GiB' in '3GiB'",
    "memory=2gib": "unit of --budget memory must be one of KB",
    "flops=0": "the limit of a budget must be positive, got 0",
    "seconds=1e300": "limit of a budget of seconds must be at most 1e.10, got 1e.300",
    "seconds=400000000d": "limit of a budget of seconds must be at most 1e.10, got 3.456e.13",
    "flops=1e31": "limit of a budget of flops must be at most 1e.30, got 1e.31",
    "memory=1e19": "limit of a budget of memory must be at most 1e.18, got 1e.19",
    "flops=1e999": "limit should be a finite number, got inf",
}


@pytest.mark.parametrize("text", PARSED)
def test_parsed_budget_prints_parsable_text(text):
    assert parse_budget(text) == PARSED[text]
    assert parse_budget(str(PARSED[text])) == PARSED[text]


@given(
    st.sampled_from(["seconds", "flops", "memory", "microbatch"]),
    st.floats(1e-3, 1e10) | st.integers(1, 10**10),
)
def test_every_limit_is_parsed_back_from_text(kind, limit):
    budget = Budget(kind=kind, limit=limit)
    assert parse_budget(str(budget)) == budget


@pytest.mark.parametrize("text", REJECTED)
def test_invalid_text_is_rejected(text):
    with pytest.raises(LongspanError, match=REJECTED[text]) as caught:
        parse_budget(text)
    assert isinstance(caught.value, OptionError | UnknownNameError)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limit": 5.0}, r"a budget of steps takes no limit \(set training.steps\), got 5.0"),
        ({"kind": "flops"}, "a budget of flops takes a limit, got None"),
        ({"kind": "flops", "limit": -1}, "the limit of a budget must be positive, got -1"),
        ({"kind": "money", "limit": 5}, "kind should be 'steps', .*got 'money'"),
        ({"kind": "flops", "limit": "5"}, "limit should be a valid number, got '5'"),
    ],
)
def test_invalid_limit_or_kind_is_rejected(fields, message):
    with pytest.raises(OptionError, match=message):
        Budget(**fields)
