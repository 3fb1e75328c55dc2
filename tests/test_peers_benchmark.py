"""Benchmark against other libraries: equal keys per query, reasons for what is left out, table."""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import pickle
import sys
import types

import pytest
import torch

from longspan.bench.peaks import PeakMeter

CPU = torch.device("cpu")
LENGTH = 64
TINY = {
    "width": 32,
    "heads": 2,
    "window": 8,
    "block": 4,
    "random_blocks": 1,
    "landmarks": 8,
    "kernel_size": 5,
    "chunk": 8,
    "rank": 8,
    "features": 16,
    "sorted_block": 8,
}
NAMES = (
    *("transformers-longformer", "transformers-led", "transformers-bigbird"),
    *("transformers-nystromformer", "transformers-reformer", "local-attention"),
    *("local-attention-blocks", "linformer", "nystrom-attention", "performer-pytorch"),
    *("reformer-pytorch", "sinkhorn-transformer", "linear-attention-transformer"),
)
FIXED = ("transformers-longformer", "transformers-led", "local-attention", "local-attention-blocks")


@pytest.fixture(scope="module")
def sizes(import_script):
    return import_script("peer_layers").Sizes(**TINY)


@pytest.fixture
def make_layers(import_script, sizes):
    """Function that builds both layers of a peer in float64, or skips the test."""

    def make(name, sizes=sizes):
        peer = import_script("peer_list").PEERS[name]
        if importlib.util.find_spec(peer.module) is None:
            pytest.skip(f"{peer.package} is not installed; install longspan[dev,peers]")
        torch.manual_seed(0)
        own = import_script("peer_layers").OwnLayer(peer, sizes, LENGTH)
        return peer, own.double(), peer.build(sizes, LENGTH).double()

    return make


def find_keys(layer, query):
    """Return the tokens that the output of a query depends on, with tokens that differ."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(1, LENGTH, TINY["width"], generator=g, dtype=torch.float64, requires_grad=True)
    layer(x)[0, query].sum().backward()
    return set(x.grad[0].abs().amax(-1).nonzero().flatten().tolist())


def arguments(**changes):
    values = {"peers": ["linformer"], "lengths": [LENGTH], "dtypes": ["float32"], "runs": 3}
    return argparse.Namespace(**values | {"device": "cpu"} | changes)


def test_every_library_of_the_processor_is_measured(import_script):
    peers = import_script("peer_list").PEERS
    assert {name for name, peer in peers.items() if not peer.cuda} == set(NAMES)
    assert set(peers) - set(NAMES) == {
        "flash-linear-attention",
        "flash-attn",
        "flex-attention",
        "varlen-attn",
        "natten",
    }


@pytest.mark.parametrize("name", FIXED)
def test_queries_of_both_layers_see_the_same_keys(name, make_layers, sizes):
    peer, own, theirs = make_layers(name)
    for query in (20, 31, 40):  # not at the ends, where blocks differ
        keys = find_keys(own, query)
        assert keys == find_keys(theirs, query)
        assert len(keys) == peer.keys(sizes, LENGTH)


@pytest.mark.parametrize("name", NAMES)
def test_both_layers_have_equally_many_biases(name, make_layers):
    _, *both = make_layers(name)
    counts = [sum(x.numel() for n, x in layer.named_parameters() if "bias" in n) for layer in both]
    assert counts[0] == counts[1]


def test_queries_of_bigbird_see_equally_many_keys(make_layers, sizes):
    """Blocks that the library draws may repeat others, so it sees at most as many.

    Heads draw their own blocks, so there is one head.
    """
    peer, own, theirs = make_layers("transformers-bigbird", dataclasses.replace(sizes, heads=1))
    most = peer.keys(sizes, LENGTH)
    assert most == 6 * sizes.block
    assert {len(find_keys(own, query)) for query in (20, 31, 40)} == {most}
    counts = [len(find_keys(theirs, query)) for query in range(16, 48, 4)]
    assert max(counts) == most
    assert min(counts) >= 5 * sizes.block


@pytest.mark.parametrize("name", ["transformers-reformer", "reformer-pytorch"])
def test_queries_of_reformer_see_equally_many_keys(name, make_layers, sizes):
    """A query sees two chunks per round; heads draw their own hashes, so there is one."""
    peer, *layers = make_layers(name, dataclasses.replace(sizes, heads=1))
    most = peer.keys(sizes, LENGTH)
    for layer in layers:
        counts = [len(find_keys(layer, query)) for query in range(0, LENGTH, 8)]
        assert 2 * sizes.chunk < max(counts) <= most
        assert min(counts) >= 2 * sizes.chunk - 1


@pytest.mark.parametrize("name", ["local-attention", "linformer"])
def test_layers_of_one_function_are_equal_with_equal_weights(name, make_layers):
    _, own, theirs = make_layers(name)
    layer, known = own.layer, theirs.state_dict()
    renamed = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out": "output"}
    weights = {}
    for key, value in known.items():
        part, _, rest = key.partition(".")
        weights[f"{renamed.get(part, part)}.{rest}"] = value
    with torch.no_grad():
        if name == "linformer":
            projection = torch.stack([known["proj_k"].T, known["proj_v"].T])[:, None]
            layer.mechanism.projection.copy_(projection)
    missing = layer.load_state_dict(weights, strict=False).missing_keys
    assert not [x for x in missing if x.endswith("weight")]
    x = torch.randn(1, LENGTH, TINY["width"], dtype=torch.float64)
    torch.testing.assert_close(own(x), theirs(x), rtol=0, atol=1e-10)


def attend_in_window(q, k, v, window):
    """Compute softmax attention of (B, T, H, D) in a window, from the matrix of scores."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    position = torch.arange(q.shape[2])
    hidden = (position[:, None] - position).abs() > window
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def flash_attn_func(q, k, v, *, window_size):
    assert window_size[0] == window_size[1]
    return attend_in_window(q, k, v, window_size[0])


def na1d(query, key, value, kernel_size):
    assert kernel_size % 2 == 1
    return attend_in_window(query, key, value, kernel_size // 2)


def varlen_attn(query, key, value, ends_q, ends_k, max_q, max_k, *, window_size):
    assert ends_q.tolist() == ends_k.tolist() == [0, LENGTH]
    assert (ends_q.dtype, max_q, max_k) == (torch.int32, LENGTH, LENGTH)
    return attend_in_window(query[None], key[None], value[None], window_size[0])[0]


def chunk_linear_attn(q, k, v, scale):
    """Compute causal attention with weights that are products, and no final state."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (scale * q @ k.mT).tril()
    return (weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2), None


OF_A_GPU = {
    "flash-attn": ("flash_attn", flash_attn_func),
    "natten": ("natten.functional", na1d),
    "varlen-attn": ("torch.nn.attention.varlen", varlen_attn),
    "flash-linear-attention": ("fla.ops.linear_attn", chunk_linear_attn),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", [*OF_A_GPU, "flex-attention"])
def test_layers_of_a_gpu_take_the_arguments_of_their_libraries(
    name, import_script, sizes, monkeypatch
):
    """Functions with the signatures of the libraries stand for them, flex_attention for itself."""
    if name in OF_A_GPU:
        module, function = OF_A_GPU[name]
        library = types.SimpleNamespace(**{function.__name__: function})
        monkeypatch.setitem(sys.modules, module, library)
    peer = import_script("peer_list").PEERS[name]
    own = import_script("peer_layers").OwnLayer(peer, sizes, LENGTH)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, dynamic: function)
        theirs = peer.build(sizes, LENGTH)
    own.layer.load_state_dict(theirs.state_dict())
    x = torch.randn(1, LENGTH, TINY["width"])
    with torch.no_grad():  # flex_attention has no gradients on the CPU
        torch.testing.assert_close(own(x), theirs(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_library_gives_a_row(
    name, make_layers, import_script, sizes, fixed_peaks, monkeypatch
):
    make_layers(name)  # or the test is skipped
    peers = import_script("peers")
    monkeypatch.setattr(peers, "LEAST_SECONDS", 0.0)
    row = peers.measure(name, sizes, LENGTH, "float32", 3, CPU, PeakMeter(CPU))
    assert row["backend"]
    assert 0 < row["lowest_time_ratio"] <= row["time_ratio"] <= row["highest_time_ratio"]
    for side in ("ours", "theirs"):
        assert row[side]["runs"] == 3
        assert row[side]["minimum"] > 0


def test_calls_alternate_and_ratios_are_theirs_over_ours(import_script, sizes, monkeypatch):
    """Turns of 1, 5 and 4 seconds of theirs against 2 seconds of ours."""
    peers, layers = import_script("peers"), import_script("peer_layers")
    times, called = iter([2.0, 1.0, 2.0, 5.0, 2.0, 4.0]), []

    def time_call(call, device):
        call()
        return next(times)

    def build(sizes, length):
        return Watched("theirs")

    class Watched(torch.nn.Linear):
        def __init__(self, side):
            super().__init__(TINY["width"], TINY["width"])
            self.side = side

        def forward(self, x):
            called.append(self.side)
            return super().forward(x)

    real = layers.OwnLayer.forward

    def forward(self, x):
        called.append("ours")
        return real(self, x)

    listed, name = import_script("peer_list").PEERS, "local-attention"
    monkeypatch.setitem(listed, name, dataclasses.replace(listed[name], build=build))
    peaks = iter([200, 600])
    monkeypatch.setattr(peers, "time_call", time_call)
    monkeypatch.setattr(PeakMeter, "measure", lambda self, make: next(peaks))
    monkeypatch.setattr(layers.OwnLayer, "forward", forward)
    row = peers.measure(name, sizes, LENGTH, "float32", 3, CPU, PeakMeter(CPU))
    assert called[-6:] == ["ours", "theirs"] * 3
    found = [row[f"{x}time_ratio"] for x in ("lowest_", "", "highest_")]
    assert found == [0.5, 2.0, 2.5]
    assert (row["ours"]["median"], row["theirs"]["median"]) == (2.0, 4.0)
    assert (row["ours"]["peak_memory"], row["memory_ratio"]) == (200, 3.0)


def test_passes_leave_no_gradients_in_memory(import_script, sizes):
    layer = torch.nn.Linear(4, 4)
    x = torch.ones(1, 4, requires_grad=True)
    import_script("peers").forward_backward(layer, x, torch.ones(1, 4))()
    assert x.grad is None
    assert all(p.grad is None for p in layer.parameters())


def test_what_is_left_out_has_a_reason(import_script, sizes, monkeypatch):
    peers, listed = import_script("peers"), import_script("peer_list").PEERS

    def fail(sizes, length):
        raise RuntimeError("expected Float\nand a traceback")

    monkeypatch.setitem(
        listed, "linformer", dataclasses.replace(listed["linformer"], module="torch", build=fail)
    )
    monkeypatch.setitem(
        listed, "local-attention", dataclasses.replace(listed["local-attention"], module="no_such")
    )
    names = ["natten", "local-attention", "linformer"]
    found = list(peers.measure_all(names, sizes, [LENGTH], ["bfloat16"], 1, CPU))
    assert found == [
        {"peer": "natten", "reason": "needs a GPU"},
        {"peer": "local-attention", "reason": "is not installed"},
        {
            "peer": "linformer",
            "length": LENGTH,
            "dtype": "bfloat16",
            "reason": "RuntimeError: expected Float",
        },
    ]


def test_our_errors_are_not_left_out(import_script, sizes, monkeypatch):
    """An invalid option of our mechanism is a bug of the benchmark."""
    listed, name = import_script("peer_list").PEERS, "local-attention"
    broken = dataclasses.replace(listed[name], options=lambda *_: {"window": -1})
    monkeypatch.setitem(listed, name, broken)
    with pytest.raises(ValueError, match="window"):
        import_script("peers").measure(name, sizes, LENGTH, "float32", 1, CPU, PeakMeter(CPU))


def test_records_name_versions_and_allocator(import_script, sizes, monkeypatch):
    """The process that measures memory receives the builder of the layers."""
    pytest.importorskip(
        "linformer", reason="linformer is not installed; install longspan[dev,peers]"
    )

    def build_received(self, make):
        pickle.loads(pickle.dumps(make))()
        return 2**20

    monkeypatch.setattr(PeakMeter, "measure", build_received)
    (record,) = import_script("peers").make_records(arguments(), sizes, "default")
    record = json.loads(json.dumps(record))
    assert record["environment"]["allocator"] == "default"
    assert {"device", "threads", "torch"} <= set(record["environment"])
    (peer,) = record["peers"].values()
    assert peer["version"] == importlib.metadata.version("linformer")
    assert (peer["keys"], peer["mechanism"]) == (sizes.rank, "linformer")
    assert len(import_script("peer_tables").peers(record)) > 10


def test_table_gives_ratios_with_their_range_and_reasons(import_script):
    timing = {"median": 0.25, "minimum": 0.2, "maximum": 0.3, "runs": 3, "peak_memory": 2**21}
    row = {"peer": "a", "length": 4096, "dtype": "float32", "memory_ratio": 0.5, "ours": timing}
    row |= {"time_ratio": 1.5, "lowest_time_ratio": 0.9, "highest_time_ratio": 2.0}
    about = {"package": "lib", "version": "1.2", "what": "Layer", "mechanism": "local"}
    about |= {"keys": 513, "causal": False, "note": "is another"}
    record = {
        "environment": {"device": "x", "allocator": "default"},
        "sizes": {"width": 512, "heads": 8},
        "runs": 3,
        "peers": {"a": about},
        "rows": [row],
        "left_out": [
            {"peer": "b", "reason": "needs a GPU"},
            {"peer": "c", "reason": "needs a GPU"},
            {"peer": "a", "reason": "E: no", "dtype": "bfloat16", "length": 4096},
        ],
    }
    lines = import_script("peer_tables").peers(record)
    cells = "250.0 | 1.50 (0.90 to 2.00) | 2 | 0.50"
    assert f"| `Layer` | lib 1.2 | `local` | 513 | {cells} |" in lines
    assert "device x, allocator default." in lines
    assert "- `Layer` of lib: is another." in lines
    assert "- b, c: needs a GPU." in lines
    assert "- a (bfloat16, T = 4,096): E: no." in lines
