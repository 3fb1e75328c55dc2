"""Weights of memories and segments: against the reference with values that name the part."""

import pytest
import torch

from longspan.attention import MECHANISMS, Inputs, build
from longspan.attention.ops.segments import SegmentAttention

# Segments, memories and groups of which none divides another; the same with sizes that do.
OPTIONS = {
    "transformer_xl": [
        {"segment": 7, "memory": 10},
        {"segment": 8, "memory": 8, "same_length": True},
        {"segment": 5, "memory": 0},
    ],
    "compressive": [
        {"segment": 7, "memory": 5, "compressed_memory": 3, "ratio": 4},
        {"segment": 8, "memory": 8, "compressed_memory": 2, "ratio": 4},
        {"segment": 6, "memory": 4, "compressed_memory": 0},
    ],
    "position_infused": [{"segment": 7, "memory": 10}],
}
CASES = [(name, options) for name, several in OPTIONS.items() for options in several]
IDS = [f"{name}-{i}" for name, several in OPTIONS.items() for i in range(len(several))]
T = 45


def make(name, options, causal=True):
    torch.manual_seed(1)
    return build(name, heads=2, head_dim=4, causal=causal, **options).double()


def inputs(size=T):
    torch.manual_seed(2)
    return torch.randn(3, 2, 2, size, 4, dtype=torch.float64)


def boundaries(options, start):
    """Return the first token of the memory, and of the segment that begins at `start`."""
    memory = options["memory"]
    if slots := options.get("compressed_memory"):
        groups = max(0, start - memory) // options["ratio"] if slots else 0
        return groups * options["ratio"], start
    return max(0, start - memory), start


def weigh_parts(attention, *tensors):
    """Return the weights of each query on the parts of its keys, (B, H, T) by name."""
    parts = attention.bucket_weights(Inputs(*tensors), 1)
    return {name: x[..., 0] for name, x in parts.items()}


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("causal", [True, False])
def test_parts_weigh_as_the_reference_says(name, options, causal):
    """A one at each token of a part, and zero elsewhere, makes the output the weight of the part.

    The mean of ones is one, so slots of older tokens have value one as well.
    """
    attention, (q, k, _) = make(name, options, causal), inputs()
    found = weigh_parts(attention, q, k, q, None)
    names = ["compressed memory", "memory", "segment"] if name == "compressive" else None
    assert list(found) == (names or ["memory", "segment"])
    for start in range(0, T, options["segment"]):
        own = slice(start, start + options["segment"])
        first, begin = boundaries(options, start)
        bounds = [0, first, begin, T][-len(found) - 1 :]
        for part, low, high in zip(found, bounds, bounds[1:], strict=False):
            v = torch.zeros_like(q)
            v[:, :, low:high] = 1
            expected = attention.reference(Inputs(q, k, v))[:, :, own, 0]
            torch.testing.assert_close(found[part][:, :, own], expected)


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_parts_of_real_queries_sum_to_one_under_a_mask(name, options):
    attention, (q, k, v) = make(name, options), inputs()
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[1, 30:] = False
    found = weigh_parts(attention, q, k, v, mask)
    total = sum(found.values())
    torch.testing.assert_close(total[0], torch.ones_like(total[0]))
    torch.testing.assert_close(total[1, :, :30], torch.ones_like(total[1, :, :30]))
    alone = weigh_parts(attention, *(x[1:, :, :30] for x in (q, k, v)), None)
    for part, weights in alone.items():
        torch.testing.assert_close(found[part][1:, :, :30], weights)


@pytest.mark.parametrize(
    ("name", "options"), [x for x in CASES if x[0] != "position_infused"], ids=IDS[:-1]
)
def test_memory_is_full_from_the_first_segment_that_says_so(name, options):
    """With equal scores, parts weigh as many keys as they have."""
    attention = make(name, options)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.zero_()
        k = inputs(90)[0]
        found = weigh_parts(attention, torch.zeros_like(k), k, k, None)
    starts = range(0, 90, options["segment"])
    # The first query of a segment sees one key of its segment; `same_length` hides no other here.
    counts = [
        [float(found[part][0, 0, start] / found["segment"][0, 0, start]) for part in [*found][:-1]]
        for start in starts
    ]
    sizes = [options["compressed_memory"]] if name == "compressive" else []
    sizes.append(options["memory"])
    first = attention.first_full
    full = [
        start
        for start, line in zip(starts, counts, strict=True)
        if all(count > size - 0.5 for count, size in zip(line, sizes, strict=True))
    ]
    assert full == [start for start in starts if start >= first]


def test_sizes_of_memories():
    options = {"segment": 7, "memory": 5, "compressed_memory": 3, "ratio": 4}
    made = make("compressive", options)
    assert (made.segment, made.memory_tokens, made.first_full) == (7, 17, 21)
    for segment, memory, first in ((8, 16, 16), (7, 10, 14), (5, 0, 0)):
        made = make("transformer_xl", {"segment": segment, "memory": memory})
        assert (made.segment, made.memory_tokens, made.first_full) == (segment, memory, first)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_recurrent_mechanisms_alone_have_parts(name):
    """A mechanism that keeps a memory of segments names its parts."""
    cls = MECHANISMS[name]
    attention = build(name, heads=2, head_dim=4, max_length=T, causal=cls.traits.causal)
    has_parts = isinstance(attention, SegmentAttention)
    assert has_parts == (cls.traits.family == "recurrence") == (name in OPTIONS)
