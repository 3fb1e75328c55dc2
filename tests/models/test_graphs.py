"""Models as graphs: torch.export and torch.compile, in a process without type checks."""

import json
import subprocess
import sys

import pytest

CHECK = """
import json, sys
import torch
from longspan.attention import MECHANISMS
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification

names, lengths = json.loads(sys.argv[1]), torch.export.Dim("length", min=8, max=32)
ids = torch.randint(1, 50, (2, 24), generator=torch.Generator().manual_seed(0))
mask = torch.arange(24) < torch.tensor([[24], [17]])
found = {}

def make(cls, name, **changes):
    options = dict(MECHANISMS[name].small_options)
    torch.manual_seed(0)
    return cls(LongspanConfig(
        attention=name, attention_options=options, vocab_size=50, max_position_embeddings=32,
        **changes
    )).eval()

def error(program, model, length):
    inputs = ids[:, :length], mask[:, :length]
    return float((program(*inputs).logits - model(*inputs).logits).abs().max())

for name in names["fixed"]:
    model = make(LongspanForSequenceClassification, name)
    program = torch.export.export(model, (ids, mask)).module()
    found[f"{name} of one length"] = error(program, model, 24)
shapes = {"input_ids": {1: lengths}, "attention_mask": {1: lengths}}
for position in names["positions"]:
    model = make(LongspanForSequenceClassification, "longformer", position=position)
    program = torch.export.export(model, (ids, mask)).module()
    found[f"{position} of one length"] = error(program, model, 24)
    model = make(LongspanForSequenceClassification, "full", position=position)
    program = torch.export.export(model, (ids, mask), dynamic_shapes=shapes)
    found[f"{position} of any length"] = error(program.module(), model, 11)
for name in names["dynamic"]:
    model = make(LongspanForSequenceClassification, name)
    program = torch.export.export(model, (ids, mask), dynamic_shapes=shapes)
    found[f"{name} of any length"] = error(program.module(), model, 11)
for name in names["decoder"]:
    model = make(LongspanForCausalLM, name)
    model.config.use_cache = False
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found[f"{name} compiled"] = error(compiled, model, 24)
    try:
        compiled(ids, mask.flip(1))
        found[f"{name} refuses"] = ""
    except Exception as problem:
        found[f"{name} refuses"] = str(problem)
print(json.dumps(found))
"""
# The graphs with relative positions are those of `longformer` and `full`.
FEW = {
    "fixed": [],
    "dynamic": [],
    "positions": ["relative"],
    "decoder": ["local", "transformer_xl"],
}
MORE = {
    "fixed": ["bigbird", "full", "linear", "local", "longformer", "performer"],
    "dynamic": ["full", "linear", "performer"],
    "positions": ["t5"],
    "decoder": [],
}


def check(names):
    """Return errors and messages by name of the check."""
    command = [sys.executable, "-c", CHECK, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def few():
    return check(FEW)


def assert_outputs_are_equal(found, names):
    errors = {name: x for name, x in found.items() if not name.endswith("refuses")}
    assert len(errors) == sum(map(len, names.values())) + len(names["positions"])
    assert max(errors.values()) < 1e-5, errors


def test_graphs_have_the_outputs_of_the_model(few):
    assert_outputs_are_equal(few, FEW)


@pytest.mark.slow
def test_graphs_of_other_mechanisms_have_the_outputs_of_the_model():
    assert_outputs_are_equal(check(MORE), MORE)


def test_compiled_decoder_refuses_padding_on_the_left_where_it_needs_groups(few):
    """Groups of rows depend on the content of the mask, which a graph cannot read."""
    assert few["local refuses"] == ""
    assert "compiled models require padding on the right" in few["transformer_xl refuses"]
