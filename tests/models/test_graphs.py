"""Models as graphs: torch.export and torch.compile, in a process without type checks."""

import pytest
import torch

import tiny
from longspan.attention import MECHANISMS
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification

IDS = torch.randint(1, 50, (2, 24), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(24) < torch.tensor([[24], [17]])
LAYER = {
    **{"short_convolution": 4, "short_convolution_activation": "silu"},
    **{"output_norm": "rms", "output_gate": "silu"},
}


def make(name, cls=LongspanForSequenceClassification, **changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "max_position_embeddings": 32, "num_hidden_layers": 1}
    options = dict(MECHANISMS[name].small_options)
    return cls(LongspanConfig(attention=name, attention_options=options, **sizes, **changes)).eval()


def error(program, model, length=24):
    inputs = IDS[:, :length], MASK[:, :length]
    return float((program(*inputs).logits - model(*inputs).logits).abs().max())


def export_one_length(model):
    return error(torch.export.export(model, (IDS, MASK)).module(), model)


def export_any_length(model):
    lengths = torch.export.Dim("length", min=8, max=32)
    shapes = {"input_ids": {1: lengths}, "attention_mask": {1: lengths}}
    program = torch.export.export(model, (IDS, MASK), dynamic_shapes=shapes)
    return error(program.module(), model, length=11)


def compile_decoder(name):
    """Return the error of a compiled decoder, and its refusal of padding on the left."""
    model = make(name, LongspanForCausalLM)
    model.config.use_cache = False
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found = {f"{name} compiled": error(compiled, model), f"{name} refuses": ""}
    try:
        compiled(IDS, MASK.flip(1))
    except Exception as problem:
        found[f"{name} refuses"] = str(problem)
    return found


def compile_steps(name):
    """Return the error of a compiled decoder that continues its state."""
    model = make(name, LongspanForCausalLM, position="none", **LAYER)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    state, parts = None, []
    for part in IDS.split((21, 1, 1, 1), 1):
        output = compiled(part, cache=state, use_cache=True)
        state, parts = output.cache, [*parts, output.logits]
    expected = model(IDS, use_cache=False).logits
    return float((torch.cat(parts, 1) - expected).abs().max())


def check_graphs(names):
    """Return errors and messages by name of the check."""
    found = {}
    for name in names["fixed"]:
        found[f"{name} of one length"] = export_one_length(make(name))
    for name in names["dynamic"]:
        found[f"{name} of any length"] = export_any_length(make(name))
    for position in names["positions"]:
        model = make("longformer", position=position)
        found[f"{position} of one length"] = export_one_length(model)
        found[f"{position} of any length"] = export_any_length(make("full", position=position))
    for name in names["layered"]:
        found[f"{name} in a layer of any length"] = export_any_length(make(name, **LAYER))
        found[f"{name} in a layer by steps"] = compile_steps(name)
    for name in names["decoder"]:
        found |= compile_decoder(name)
    return found


# The graphs with relative positions are those of `longformer` and `full`.
FEW = {
    "fixed": [],
    "dynamic": [],
    "positions": ["relative"],
    "layered": ["linear"],
    "decoder": ["local", "transformer_xl"],
}
MORE = {
    "fixed": ["bigbird", "full", "linear", "local", "longformer", "performer"],
    "dynamic": ["full", "linear", "performer"],
    "positions": ["t5"],
    "layered": ["full"],
    "decoder": [],
}


@pytest.fixture(scope="module")
def few():
    return tiny.call_elsewhere(check_graphs, FEW)


def assert_outputs_are_equal(found, names):
    errors = {name: x for name, x in found.items() if not name.endswith("refuses")}
    assert len(errors) == sum(map(len, names.values())) + sum(
        extra * len(names[kind]) for kind, extra in (("positions", 1), ("layered", 1))
    )
    assert max(errors.values()) < 1e-5, errors


def test_graphs_have_the_outputs_of_the_model(few):
    assert_outputs_are_equal(few, FEW)


@pytest.mark.slow
def test_graphs_of_other_mechanisms_have_the_outputs_of_the_model():
    assert_outputs_are_equal(tiny.call_elsewhere(check_graphs, MORE), MORE)


def test_compiled_decoder_refuses_padding_on_the_left_where_it_needs_groups(few):
    """Groups of rows depend on the content of the mask, which a graph cannot read."""
    assert few["local refuses"] == ""
    assert "compiled models require padding on the right" in few["transformer_xl refuses"]
