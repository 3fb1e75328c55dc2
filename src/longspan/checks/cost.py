"""Can it have cost what it says: time, tokens, memory, operations."""

import math
from collections.abc import Iterator

from longspan.checks.base import Fault, Filed, batch_of
from longspan.checks.scores import AS_RUN

SEQUENCES = 2  # of an example at most: a pair has two


def positive(filed: Filed) -> Iterator[Fault]:
    """What is measured or counted is more than nothing."""
    record = filed.record
    names = ("seconds", "tokens_per_second", "parameters", "flops", "length", "steps")
    for name in (*names, "full_parameters", "peak_memory", "attended_pairs"):
        value = getattr(record, name)
        if value is not None and not value > 0:
            yield Fault(field=name, expected="more than 0", found=f"{value}", remedy=AS_RUN)


def waiting(filed: Filed) -> Iterator[Fault]:
    """Waiting for data is a part of the training."""
    record = filed.record
    if record.waiting is not None and not 0 <= record.waiting <= record.seconds * (1 + 1e-9):
        yield Fault(
            field="waiting",
            expected=f"from 0 to {record.seconds}, the seconds of training",
            found=f"{record.waiting}",
            remedy=AS_RUN,
        )


def timing(filed: Filed) -> Iterator[Fault]:
    """The curve ends with the seconds of the training."""
    record = filed.record
    if record.curve and not math.isclose(record.curve[-1].seconds, record.seconds, rel_tol=0.01):
        yield Fault(
            field="seconds",
            expected=f"{record.curve[-1].seconds}, as at the end of the curve",
            found=f"{record.seconds}",
            remedy=AS_RUN,
        )


def tokens(filed: Filed) -> Iterator[Fault]:
    """Speed x time is no more than the examples can hold, and no less than a token of each."""
    record = filed.record
    batch = batch_of(record)
    if batch is None:
        return
    examples = record.steps * batch
    found = record.tokens_per_second * record.seconds
    if not examples * (1 - 1e-6) <= found <= SEQUENCES * examples * record.length * (1 + 1e-6):
        yield Fault(
            field="tokens_per_second",
            expected=f"{examples:,} examples of 1 to {record.length:,} tokens (a pair: twice that) "
            f"in {record.seconds:.1f} s",
            found=f"{found:,.0f} tokens",
            remedy=AS_RUN,
        )


def pairs(filed: Filed) -> Iterator[Fault]:
    """No mechanism attends to more pairs than there are."""
    count, length = filed.record.attended_pairs, filed.record.length
    if count is not None and count > length**2:
        yield Fault(
            field="attended_pairs",
            expected=f"at most {length**2:,}, length x length",
            found=f"{count:,}",
            remedy=AS_RUN,
        )


RULES = (positive, waiting, timing, tokens, pairs)
