"""Models whose tensors accelerate creates without values, or keeps elsewhere between calls."""

import copy
import functools

import pytest
import torch
from accelerate import cpu_offload, disk_offload, init_empty_weights, load_checkpoint_and_dispatch
from every_head import HEADS

from longspan.attention import MECHANISMS, build
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForSequenceClassification,
)

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "num_labels": 2,
}
# What has no tensors of its own is offloaded like any module.
OWN = [x for x in MECHANISMS if build(x, heads=2, head_dim=8, max_length=64).state_dict()]
CAUSAL = [name for name, cls in MECHANISMS.items() if cls.traits.causal]
T = 40
PLACES = {
    "cpu": lambda model, folder: cpu_offload(model, "cpu", offload_buffers=True),
    "disk": lambda model, folder: disk_offload(model, folder, "cpu", offload_buffers=True),
}
GENERATION = {
    "max_new_tokens": 4,
    "do_sample": False,
    "output_logits": True,
    "return_dict_in_generate": True,
    "pad_token_id": 0,
    "eos_token_id": None,
}


def tokens(padded="right"):
    ids, mask = torch.randint(1, 50, (2, T)), torch.ones(2, T, dtype=torch.long)
    mask[1, T // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask.flip(1) if padded == "left" else mask}


def logits(model, inputs):
    return model(**inputs).logits


def generated(model, inputs):
    return torch.stack(model.generate(**inputs, **GENERATION).logits)


@torch.no_grad()
def check(model, call, place, folder):
    """Compare a model with a copy of it that is offloaded, in two calls."""
    model = model.double().eval()
    away = PLACES[place](copy.deepcopy(model), str(folder))
    assert all(x.is_meta for x in away.state_dict().values())
    expected = call(model)
    for _ in range(2):
        torch.testing.assert_close(call(away), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "place"), [*((name, "cpu") for name in MECHANISMS), *((name, "disk") for name in OWN)]
)
def test_offloaded_mechanism_has_equal_outputs(name, place, tmp_path):
    model = LongspanForSequenceClassification(LongspanConfig(**SIZES, attention=name))
    check(model, functools.partial(logits, inputs=tokens()), place, tmp_path)


@pytest.mark.parametrize("name", CAUSAL)
def test_offloaded_mechanism_generates_the_same(name, tmp_path):
    model = LongspanForCausalLM(LongspanConfig(**SIZES, attention=name, is_decoder=True))
    check(model, functools.partial(generated, inputs=tokens("left")), "cpu", tmp_path)


@pytest.mark.parametrize("name", HEADS)
def test_offloaded_head_has_equal_outputs(name, tmp_path):
    head = HEADS[name]
    inputs = {**head.inputs(), **head.more}

    def call(model):
        loss = model(**inputs, **head.labels).loss
        return torch.cat((head.logits(model(**inputs, **head.unlabeled)).flatten(), loss[None]))

    check(head.cls(LongspanConfig(**SIZES)), call, "cpu", tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"position": "t5"},
        {"position": "relative"},
        {"position": "rotary"},
        {"position": "sinusoidal"},
        {"position": "axial", "axial_shape": [8, 8], "axial_widths": [8, 8]},
        {"residual": "reversible"},
        {"short_convolution": 3, "output_norm": "rms", "output_gate": "silu"},
        {"embedding_size": 8, "type_vocab_size": 2},
    ],
    ids=lambda fields: next(iter(fields.values())),
)
def test_offloaded_parts_have_equal_outputs(fields, tmp_path):
    model = LongspanForSequenceClassification(LongspanConfig(**SIZES, **fields))
    check(model, functools.partial(logits, inputs=tokens()), "cpu", tmp_path)


def test_offloaded_positions_of_images_have_equal_outputs(tmp_path):
    fields = {**SIZES, "position": "relative_2d", "max_position_embeddings": 36}
    inputs = {"input_ids": torch.randint(1, 50, (2, 36))}
    model = LongspanForSequenceClassification(LongspanConfig(**fields))
    check(model, functools.partial(logits, inputs=inputs), "cpu", tmp_path)


@pytest.mark.parametrize("name", ["full", "local", "performer"])
def test_offloaded_encoder_decoder_generates_the_same(name, tmp_path):
    fields = {"is_encoder_decoder": True, "decoder_start_token_id": 1, "pad_token_id": 0}
    config = LongspanConfig(**SIZES, attention=name, **fields)
    model = LongspanForConditionalGeneration(config)
    check(model, functools.partial(generated, inputs=tokens()), "cpu", tmp_path)


@pytest.mark.parametrize("name", OWN)
@torch.no_grad()
def test_model_without_values_is_loaded(name, tmp_path):
    model = LongspanForSequenceClassification(LongspanConfig(**SIZES, attention=name)).eval()
    model.save_pretrained(tmp_path)
    with init_empty_weights():
        empty = LongspanForSequenceClassification(LongspanConfig.from_pretrained(tmp_path))
    assert all(x.is_meta for x in empty.parameters())
    found = load_checkpoint_and_dispatch(empty, tmp_path, device_map={"": "cpu"}).eval()
    inputs = tokens()
    torch.testing.assert_close(logits(found, inputs), logits(model, inputs))
