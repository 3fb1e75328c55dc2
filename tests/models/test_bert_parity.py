"""Parity of the encoder with full attention and BERT: equal states and gradients."""

import pytest
import torch
from transformers import BertConfig, BertModel
from transformers_bert import SHARED_FIELDS, bert_names

from longspan.models import LongspanModel


def build_bert_and_ours(small) -> tuple[BertModel, LongspanModel, dict[str, str]]:
    config = small(norm="post", layer_norm_eps=1e-12, pooling="first", num_hidden_layers=3)
    bert = BertModel(
        BertConfig(
            **{name: getattr(config, name) for name in SHARED_FIELDS},
            attention_probs_dropout_prob=0.0,
            attn_implementation="eager",
        ),
        add_pooling_layer=False,
    ).double()
    ours = LongspanModel(config).double()
    names = bert_names(config.num_hidden_layers)
    with torch.no_grad():
        for parameter in bert.parameters():
            parameter.normal_(0, 0.3)
        # BERT adds the embedding of token type 0 to every token.
        types = bert.embeddings.token_type_embeddings.weight
        bert.embeddings.word_embeddings.weight += types[0]
        types.zero_()
        for mine, theirs in names.items():
            ours.get_submodule(mine).load_state_dict(bert.get_submodule(theirs).state_dict())
    return bert, ours, names


@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
def test_states_and_gradients_equal_bert(small, padded):
    bert, ours, names = build_bert_and_ours(small)
    ids = torch.randint(1, 50, (3, 13))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 9:], mask[1, 1:] = 0, 0
    gradient = torch.randn(3, 13, 16, dtype=torch.float64) * mask[..., None]

    theirs = bert(ids, attention_mask=mask).last_hidden_state
    mine = ours(ids, mask if padded else None).last_hidden_state
    torch.testing.assert_close(mine, theirs * mask[..., None], atol=1e-10, rtol=0)

    (theirs * gradient).sum().backward()
    (mine * gradient).sum().backward()
    for my_name, their_name in names.items():
        mine_of = dict(ours.get_submodule(my_name).named_parameters())
        for name, parameter in bert.get_submodule(their_name).named_parameters():
            torch.testing.assert_close(mine_of[name].grad, parameter.grad, atol=1e-10, rtol=1e-10)
    copied = sum(len(list(ours.get_submodule(name).parameters())) for name in names)
    assert copied == len(list(ours.parameters()))
