"""Programs of mechanisms with open batch and length: exported, compiled, and as ONNX.

Run in a process of its own, because type checks would compare open sizes.
"""

import contextlib
import io
import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

from longspan.attention import MECHANISMS, LayerInput, build

HEADS, HEAD_DIM, LONGEST, SHORTEST = 2, 8, 200, 16
EXAMPLE = (5, 70)
# No length is a multiple of the example; 192 is one of most blocks, and 150 and 17 of none.
OTHERS = ((3, 20), (1, 150), (7, 192), (2, 17))

# Operators that the exporter of torch 2.13 or onnxruntime lacks.
WITHOUT_ONNX = {
    "bigbird": "aten.sort",  # a stable one, of global tokens
    "bigbird causal": "aten.sort",
    "strided_local": "aten.sort",
    "reformer": "SymbolicTensor",  # searchsorted
    "reformer causal": "SymbolicTensor",
}
# `bigbird` and patterns of windows and blocks are compiled again for each length.
COMPILED = (
    *("full", "linear", "linformer", "long_short", "nystrom", "performer", "reformer"),
    *("sinkhorn", "sparse_transformer", "strided_local", "synthesizer"),
)


class Call(nn.Module):
    """Self-attention of a mechanism, with the layer input that it may need."""

    def __init__(self, name: str, causal: bool | str = False):
        super().__init__()
        cls = MECHANISMS[name]
        sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": LONGEST}
        options = dict(cls.small_options) | ({"causal": True} if causal else {})
        torch.manual_seed(0)
        sizes = {size: sizes[size] for size in sizes if size in cls.traits.sizes}
        self.attention = build(name, **sizes, **options).eval()

    def forward(self, q, k, v, mask=None):
        """Return the rows."""
        extra = {}
        if self.attention.traits.needs_layer_input:
            extra["layer_input"] = LayerInput(
                q.transpose(1, 2).flatten(2), query=_split_heads, key=_split_heads
            )
        return self.attention(q, k, v, mask, **extra)


def _split_heads(x):
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(-3, -2)


def inputs(B: int, T: int, masked: bool = True) -> tuple:
    """Return queries, keys, values, and a mask whose rows have different lengths."""
    generator = torch.Generator().manual_seed(T)
    q, k, v = (torch.randn(B, HEADS, T, HEAD_DIM, generator=generator) for _ in range(3))
    lengths = torch.tensor([T - (row * 3) % (T - 1) for row in range(B)])
    return (q, k, v, torch.arange(T) < lengths[:, None]) if masked else (q, k, v)


def shapes(masked: bool) -> dict:
    """Return the open dimensions: batch and length."""
    B, T = Dim("batch", min=1, max=64), Dim("length", min=SHORTEST, max=LONGEST)
    rows = {name: {0: B, 2: T} for name in "qkv"}
    return rows | ({"mask": {0: B, 1: T}} if masked else {})


def export(call: Call, masked: bool):
    """Return the program of `torch.export`."""
    return torch.export.export(
        call,
        inputs(*EXAMPLE, masked),
        dynamic_shapes=shapes(masked),
        strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )


def errors(run, call: Call, masked: bool) -> list[float]:
    """Return the largest difference to the eager call at each of the other sizes."""
    found = []
    for B, T in OTHERS:
        own = inputs(B, T, masked)
        found.append(float((run(*own) - call(*own)).abs().max()))
    return found


def exported(name: str, causal: bool):
    """Return the errors of the exported program, or the refusal."""
    call = Call(name, causal)
    try:
        return [
            x
            for masked in (True, False)
            for x in errors(export(call, masked).module(), call, masked)
        ]
    except Exception as problem:
        return str(problem)


def compiled(name: str, causal: bool):
    """Return the error of the call compiled for many lengths, and the number of graphs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    call, grown = Call(name, causal), []
    run = torch.compile(call, backend="eager", fullgraph=True)
    with torch.no_grad():
        for T in (*range(64, 160, 16), *range(71, 161, 15)):
            own = inputs(3, T)
            grown.append(float((run(*own) - call(*own)).abs().max()))
    return [max(grown), torch._dynamo.utils.counters["stats"]["unique_graphs"]]


def onnx(name: str, causal: bool):
    """Return the errors of the ONNX program in onnxruntime, or the refusal."""
    import onnxruntime

    call = Call(name, causal)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            program = torch.onnx.export(export(call, True), dynamo=True, verbose=False)
    except Exception as problem:
        return str(problem)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.onnx"
        program.save(path)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [x.name for x in session.get_inputs()]

        def run(*tensors):
            fed = dict(zip(names, (x.numpy() for x in tensors), strict=True))
            return torch.from_numpy(session.run(None, fed)[0])

        with torch.no_grad():
            return errors(run, call, True)


def main() -> None:
    """Print the results of a kind of program as JSON, by mechanism and causality."""
    kind, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    make, found = {"export": exported, "compile": compiled, "onnx": onnx}[kind], {}
    for name in names:
        for causal in (False, True)[: 1 + MECHANISMS[name].traits.causal]:
            found[f"{name}{' causal' if causal else ''}"] = make(name, causal)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
