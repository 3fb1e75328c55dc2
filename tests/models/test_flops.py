"""FLOPs and parameter counts of models."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from flop_counter import flop_counter
from longspan.attention import MECHANISMS
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
)

Sequence, Token = LongspanForSequenceClassification, LongspanForTokenClassification


def count_flops(config, length, cls=Sequence):
    return cls.flops(config, dict.fromkeys(cls.texts, (length,)))


def count_flops_with_torch(model, *inputs) -> int:
    """Count matrix products with torch's counter, with the math backend of SDPA."""
    counter = flop_counter()
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        model.eval()(*inputs)
    return counter.get_total_flops()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("length", [1, 17, 40])
def test_flops_equal_torch_counter(small, pooling, length):
    config = small(pooling=pooling, num_labels=3, num_hidden_layers=3, position="rotary")
    model = Sequence(config)
    ids = torch.ones(1, length, dtype=torch.long)
    assert count_flops(config, length) == count_flops_with_torch(model, ids)


@pytest.mark.parametrize("head", ["interaction", "concatenate"])
def test_pair_flops_equal_torch_counter(small, head):
    config = small(pair_head=head, num_labels=2)
    ids = torch.ones(1, 23, dtype=torch.long)
    expected = count_flops_with_torch(LongspanForPairClassification(config), ids, ids)
    assert count_flops(config, 23, LongspanForPairClassification) == expected


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("features", [1, 3])
def test_flops_of_continuous_inputs_equal_torch_counter(small, pooling, features):
    config = small(pooling=pooling, num_labels=3, input_features=features)
    expected = count_flops_with_torch(
        Sequence(config),
        None,
        None,
        None,
        None,
        torch.rand(1, 23, features),
    )
    assert count_flops(config, 23) == expected


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_token_classification_flops_equal_torch_counter(small, pooling):
    config = small(pooling=pooling, num_labels=9)
    ids = torch.ones(1, 23, dtype=torch.long)
    expected = count_flops_with_torch(Token(config), ids)
    assert count_flops(config, 23, Token) == expected


def test_flops_with_attention_head_size_equal_torch_counter(small):
    config = small(attention_head_size=12, num_labels=2)
    ids = torch.ones(1, 23, dtype=torch.long)
    assert count_flops(config, 23) == count_flops_with_torch(Sequence(config), ids)


def test_flops_of_gated_network_equal_torch_counter(small):
    config = small(feed_forward="gated", num_labels=2)
    ids = torch.ones(1, 23, dtype=torch.long)
    assert count_flops(config, 23) == count_flops_with_torch(Sequence(config), ids)


def test_flops_reject_too_long_input(small):
    with pytest.raises(InputError, match="tokens, got 41"):
        count_flops(small(), 41)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_flops_of_mechanisms_differ_in_attention_only(small, name):
    config, full = small(attention=name), small()
    rest = count_flops(full, 40) - 2 * 2 * (4 * 40 * 40 * full.head_dim)
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
