"""Options that a mechanism refuses: the message names the value and what is possible."""

import pytest

from longspan.attention import build
from longspan.errors import OptionError

SIZES = {"heads": 3, "head_dim": 8, "width": 24, "max_length": 128}
PER_LAYER = [
    ({"window": [3, -2]}, r"window must be an integer >= 0 or a list .*, got \[3, -2\]"),
    ({"window": [3, 4], "layer": 2}, r"window lists 2 layers, but this is layer 2"),
    ({"window": []}, "window lists 0 layers, but this is layer 0"),
    ({"window": 2.5}, "window must be an integer >= 0 or a list .*, got 2.5"),
    ({"dilation": [1, 2]}, r"one number, or one per head \(3\), got \[1, 2\]"),
    ({"dilation": []}, "dilation lists 0 layers, but this is layer 0"),
    ({"dilation": [[1, 1, 2]], "layer": 1}, "dilation lists 1 layers, but this is layer 1"),
    ({"dilation": [[1, 1, 2], [1, 2]]}, r"one per head \(3\), got \[\[1, 1, 2\], \[1, 2\]\]"),
    ({"dilation": [[1, 1, 2], 2]}, "dilation must be an integer >= 1 or a list .*, got"),
]
NO_HEADS = ({"sink_logit": True, "heads": None}, "heads is required .* with sink_logit=True")
INVALID = {
    "bigbird": [
        ({"global_tokens": 2}, "global_tokens=2 requires form='etc'"),
        ({"form": "etc", "causal": True}, "causal=True requires form='itc'"),
        ({"form": "etc", "global_blocks": "first"}, "'first' requires form='itc'"),
        ({"form": "etc", "sampling": "original"}, "'original' requires"),
        ({"causal": True, "sampling": "original"}, "'original' requires"),
        ({"global_blocks": "first", "sampling": "original"}, "'original' requires"),
        (
            {"form": "etc", "causal": True, "global_blocks": "first"},
            "causal=True requires form.*; global_blocks='first' requires",
        ),
    ],
    "blockwise": [
        ({"neighbors": [1, 1], "sink_tokens": 2}, "requires .*circle=False"),
        ({"neighbors": [1]}, r"neighbors must be two numbers, before and after, got \[1\]"),
        (
            {"block": 4, "neighbors": [1, 1], "grid": 6},
            "grid must be a multiple of block=4, and requires neighbors, got 6",
        ),
        (
            {"block": 4, "grid": 12},
            "grid must be a multiple of block=4, and requires neighbors, got 12",
        ),
        ({"circle": False}, "circle=False requires neighbors"),
    ],
    "dilated": PER_LAYER,
    "full": [NO_HEADS],
    "linear": [
        ({"distillation": True}, "distillation requires feature_map=\"hedgehog\", got 'elu'"),
        (
            {"feature_map": "hedgehog", "heads": None, "head_dim": None},
            "'hedgehog' and feature_dim=None require the sizes heads",
        ),
        ({"feature_dim": 4, "heads": None}, "require the sizes heads and head_dim"),
    ],
    "linformer": [
        ({"rank": []}, r"must have an entry for layer 0; got \[\]"),
        ({"rank": [8], "layer": 1}, r"must have an entry for layer 1; got \[8\]"),
        (
            {"sharing": "layerwise", "rank": [8, 4]},
            r"sharing='layerwise' requires one rank for all layers, got \[8, 4\]",
        ),
    ],
    "local": [NO_HEADS, ({"sink_tokens": True}, "sink_tokens must be an integer")],
    "long_short": [
        ({"conv_kernel_size": 4}, r"must be odd, or 0 \(causal: 0\); got 4"),
        ({"conv_kernel_size": 3, "causal": True}, r"must be odd, or 0 \(causal: 0\); got 3"),
        ({"window": 15, "causal": True}, "causal=True requires window >= segment, got 15 and 16"),
    ],
    "longformer": [
        *PER_LAYER,
        (
            {"sink_logit": True, "global_projections": True},
            "sink_logit=True requires global_projections=False",
        ),
    ],
    "lru": [
        ({"r_min": 0.9, "r_max": 0.5}, "0 <= r_min <= r_max <= 1, got r_min=0.9 and r_max=0.5"),
        ({"r_max": 1.5}, "0 <= r_min <= r_max <= 1, got r_min=0.9 and r_max=1.5"),
    ],
    "native_sparse": [
        ({"block": 4, "compressed_block": 3}, "compressed_block must divide block=4, got 3"),
        ({"shared_heads": 2}, "shared_heads must divide heads=3, got 2"),
    ],
    "nystrom": [({"conv_kernel_size": 4}, "conv_kernel_size must be odd, or 0 .*; got 4")],
    "performer": [
        ({"features": None}, "'softmax': features must be a number, got None"),
        ({"features": 7, "feature_map": "hyperbolic"}, "features must be an even number, got 7"),
    ],
    "reformer": [
        ({"wrap": True, "causal": True}, "wrap=True excludes"),
        ({"wrap": True, "same_bucket": True}, "wrap=True excludes"),
        ({"grid": 96}, "grid must be a multiple of chunk=64, got 96"),
        ({"grid": 64, "wrap": True}, "excludes wrap=True, which"),
        ({"buckets": [4, 3]}, "a list of even numbers; got"),
        ({"buckets": []}, "a list of even numbers; got"),
        ({"buckets": 7}, "even number, above 128 a power of two; got 7"),
        ({"buckets": 0}, "buckets must be an integer >= 1 or a list .*, got 0"),
        ({"buckets": -2}, "buckets must be an integer >= 1 or a list .*, got -2"),
        ({"buckets": 130}, "even number, above 128 a power of two; got 130"),
    ],
    "sinkhorn": [
        ({"temperature": 0.0}, r"temperature must be > 0, got 0\.0"),
        ({"sortcut": 1, "causal": True}, "causal=True requires sortcut=None"),
    ],
    "sparse_transformer": [
        ({"kind": "fixed", "groups": 1025}, "groups must be at most 1,024, got 1025"),
        (
            {"kind": "fixed", "stride": 8, "summary": 3, "groups": 3},
            "groups must be <= stride, got 9 and 8",
        ),
        ({"kind": "strided", "groups": 2}, "groups > 1 requires kind='fixed', got groups=2"),
        ({"kind": "fixed", "head_patterns": "separate", "heads": 1}, "requires heads >= 2, got 1"),
    ],
    "synthesizer": [
        ({"scores": "dense+vanilla"}, r"different names of dot, dense, .*joined by \+; got 'dense"),
        ({"scores": "random+random"}, "different names of .*; got 'random"),
        ({"scores": ""}, "different names of .*; got ''"),
    ],
}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [(name, *row) for name, rows in INVALID.items() for row in rows],
    ids=str,
)
def test_invalid_options_are_rejected(name, options, message):
    with pytest.raises(OptionError, match=message):
        build(name, **SIZES | options)
