import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from longspan.attention import MECHANISMS
from longspan.errors import InputError
from longspan.models import (
    LongspanConfig,
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    flops,
    parameters,
)


def counted(model, *inputs) -> int:
    """What torch counts while the model runs; only plain products are known to its counter."""
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        model.eval()(*inputs)
    return counter.get_total_flops()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("length", [1, 17, 40])
def test_flops_are_those_torch_counts(small, pooling, length):
    config = small(pooling=pooling, num_labels=3, num_hidden_layers=3, position="rotary")
    model = LongspanForSequenceClassification(config)
    ids = torch.ones(1, length, dtype=torch.long)
    assert flops(config, length, classes=3) == counted(model, ids)


@pytest.mark.parametrize("head", ["interaction", "concatenate"])
def test_flops_of_a_pair_are_those_torch_counts(small, head):
    config = small(pair_head=head, num_labels=2)
    ids = torch.ones(1, 23, dtype=torch.long)
    expected = counted(LongspanForPairClassification(config), ids, ids)
    assert flops(config, 23, classes=2, pair=True) == expected


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("features", [1, 3])
def test_flops_of_continuous_inputs_are_those_torch_counts(small, pooling, features):
    config = small(pooling=pooling, num_labels=3, input_features=features)
    expected = counted(
        LongspanForSequenceClassification(config),
        None,
        None,
        None,
        None,
        torch.rand(1, 23, features),
    )
    assert flops(config, 23, classes=3) == expected


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_flops_of_scored_tokens_are_those_torch_counts(small, pooling):
    config = small(pooling=pooling, num_labels=9)
    ids = torch.ones(1, 23, dtype=torch.long)
    expected = counted(LongspanForTokenClassification(config), ids)
    assert flops(config, 23, classes=9, per_token=True) == expected


def test_flops_of_heads_of_another_width_are_those_torch_counts(small):
    config = small(attention_head_size=12, num_labels=2)
    ids = torch.ones(1, 23, dtype=torch.long)
    assert flops(config, 23, classes=2) == counted(LongspanForSequenceClassification(config), ids)


def test_flops_refuse_a_length_the_model_cannot_take(small):
    with pytest.raises(InputError, match="41 tokens"):
        flops(small(), 41, classes=2)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_flops_add_only_the_mechanism(small, name):
    config, full = small(attention=name), small()
    rest = flops(full, 40, classes=2) - 2 * 2 * (4 * 40 * 40 * full.head_dim)
    assert flops(config, 40, classes=2) > rest


def test_parameters_of_a_known_size():
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
    model = LongspanForSequenceClassification(config)
    assert parameters(model) == embeddings + layer + 2 * M + head
    model.encoder.embeddings.requires_grad_(False)
    assert parameters(model) == layer + 2 * M + head
