"""Programs of every mechanism with open batch and length: exported, compiled, and as ONNX."""

import importlib.util
import json

import pytest
import torch
from contract import run_in_new_process
from open_programs import COMPILED, OTHERS, WITHOUT_ONNX, Call

from longspan.attention import MECHANISMS

TOLERANCE = 1e-5
CODE = "from open_programs import main; main()"
# Windows and chunks, whose layouts depend on the length most, and a loop over the length.
FEW = ("linear", "local", "transformer_xl")
REST = [name for name in sorted(MECHANISMS) if name not in FEW]
needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnxscript", "onnxruntime"))),
    reason="onnxscript and onnxruntime are not installed: pip install -e '.[onnx]'",
)


def run(kind, *names):
    """Return the results of a kind of program, by mechanism and causality."""
    found = json.loads(run_in_new_process(CODE, kind, *names).splitlines()[-1])
    assert len(found) == sum(1 + MECHANISMS[name].traits.causal for name in names)
    return found


def assert_programs_equal_calls(names):
    for call, errors in run("export", *names).items():
        if Call(*call.split()).attention.loops_over_length:
            assert "torch.export requires a fixed length" in errors, call
        else:
            assert len(errors) == 2 * len(OTHERS), (call, errors)
            assert max(errors) < TOLERANCE, (call, errors)


def test_programs_of_open_length_equal_eager_calls():
    assert_programs_equal_calls(FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_programs_of_every_mechanism_equal_eager_calls(name):
    assert_programs_equal_calls([name])


@pytest.mark.slow
def test_compiled_calls_of_new_lengths_share_few_graphs():
    for call, (error, graphs) in run("compile", *COMPILED).items():
        assert error < TOLERANCE, call
        assert graphs <= 3, (call, graphs)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_onnx_programs_equal_eager_calls(name):
    for call, errors in run("onnx", name).items():
        if Call(*call.split()).attention.loops_over_length:
            assert "torch.export requires a fixed length" in errors, call
        elif call in WITHOUT_ONNX:
            assert WITHOUT_ONNX[call] in str(errors), call
        else:
            assert torch.tensor(errors).max() < TOLERANCE, (call, errors)
