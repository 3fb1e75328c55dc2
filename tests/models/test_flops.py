"""FLOPs and parameter counts of models."""

from inspect import signature

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from flop_counter import flop_counter
from longspan.attention import MECHANISMS
from longspan.errors import InputError
from longspan.models import LongspanConfig
from longspan.models import LongspanForSequenceClassification as Sequence
from longspan.models.heads import find_head


def count_flops(config, length, cls=Sequence):
    return cls.flops(config, dict.fromkeys(cls.texts, (length,)))


TEXT = {"input_ids": (23,)}
OPTIONS = {"span_width": 3, "antecedents": 4, "spans_per_token": 0.6, "feature_size": 3}
CASES = [
    *(
        ("sequence_classification", {"pooling": pooling, "position": "rotary"}, {"input_ids": (n,)})
        for pooling in ("mean", "cls")
        for n in (1, 17, 40)
    ),
    *(
        ("sequence_classification", fields, TEXT)
        for fields in (
            *({"input_features": n, "pooling": x} for n in (1, 3) for x in ("mean", "cls")),
            *({"attention_head_size": 12}, {"feed_forward": "gated"}),
            {"output_gate": "silu", "output_norm": "rms"},
        )
    ),
    (
        "sequence_classification",
        {"stem": "convolution", "num_hidden_layers": 0, "max_position_embeddings": 25},
        {"input_ids": (25,)},
    ),
    *(("token_classification", {"pooling": x, "num_labels": 9}, TEXT) for x in ("mean", "cls")),
    *(
        ("pair_classification", {"pair_head": x}, {**TEXT, "input_ids_b": (19,)})
        for x in ("interaction", "concatenate")
    ),
    *(
        ("coreference", {"coreference": {**OPTIONS, **x}}, {"input_ids": (12,)})
        for x in ({"speakers": True, "genres": 2, "depth": 3}, {"depth": 1, "span_width": 5})
    ),
]


@pytest.mark.parametrize(("head", "fields", "shapes"), CASES)
def test_flops_equal_torch_counter(small, head, fields, shapes):
    """Matrix products with the math backend of SDPA."""
    config = small(**{"num_labels": 3, "num_hidden_layers": 3, **fields})
    cls = find_head(head)
    model, batch = cls(config).eval(), cls.dummy_batch(shapes, 1, config.input_features)
    known = signature(model.forward).parameters
    counter = flop_counter()
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        model(**{name: x for name, x in batch.items() if name in known and "mask" not in name})
    assert counter.get_total_flops() == cls.flops(config, shapes)


def test_flops_of_short_convolutions_are_a_product_for_each_tap(small):
    """They are sums of shifted products, which the counter of torch leaves out."""
    for name, projections in (("full", 3), ("synthesizer", 1)):
        with_taps, without = (small(attention=name, short_convolution=x) for x in (4, 0))
        added = count_flops(with_taps, 40) - count_flops(without, 40)
        assert added == 2 * projections * 2 * 4 * 40 * without.hidden_size


def test_flops_reject_too_long_input(small):
    with pytest.raises(InputError, match="tokens, got 41"):
        count_flops(small(), 41)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_flops_of_mechanisms_differ_in_attention_only(small, name):
    config, full = small(attention=name), small()
    rest = count_flops(full, 40) - 2 * 2 * (4 * 40 * 40 * full.head_dim)
    absent = 3 - len(MECHANISMS[name].traits.inputs)  # projections of two layers
    rest -= 2 * absent * (2 * 40 * full.hidden_size * full.all_head_size)
    assert count_flops(config, 40) > rest


def test_flops_of_linear_head(small):
    linear, hidden = small(classifier_hidden_size=0), small(classifier_hidden_size=5)
    M, C = linear.hidden_size, linear.num_labels
    difference = count_flops(hidden, 40) - count_flops(linear, 40)
    assert difference == 2 * (M * 5 + 5 * C) - 2 * M * C


def test_number_of_parameters():
    M, F, C, V, N = 8, 12, 5, 20, 10
    config = LongspanConfig(
        vocab_size=V,
        hidden_size=M,
        num_hidden_layers=1,
        intermediate_size=F,
        max_position_embeddings=N,
        classifier_hidden_size=C,
        pooling="cls",
        num_labels=3,
    )
    layer = 4 * (M * M + M) + (M * F + F) + (F * M + M) + 2 * 2 * M
    embeddings = V * M + (N + 1) * M + M
    head = (M * C + C) + (C * 3 + 3)
    model = Sequence(config)
    assert model.num_parameters(only_trainable=True) == embeddings + layer + 2 * M + head
    model.model.embeddings.requires_grad_(False)
    assert model.num_parameters(only_trainable=True) == layer + 2 * M + head
