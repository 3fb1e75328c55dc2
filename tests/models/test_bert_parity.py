"""Parity with BERT: states and gradients of the encoder, logits and losses of its heads."""

import pytest
import torch
import transformers
from transformers import BertConfig, BertModel
from transformers_bert import SHARED_FIELDS, bert_names, bert_with_encoder_of

import longspan.models as models
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


IDS = torch.randint(1, 50, (3, 4, 9), generator=torch.Generator().manual_seed(1))
NUMBERS = {"labels": torch.eye(3).double()}
# Positions behind the input have no loss in either.
SPANS = {"start_positions": torch.tensor([1, 0, 12]), "end_positions": torch.tensor([2, 9, 14])}
PROBLEMS = ["multi_label_classification", "regression"]


@pytest.mark.parametrize(
    ("head", "labels", "problem"),
    [
        ("SequenceClassification", {"labels": torch.tensor([0, 2, 1])}, None),
        *(("SequenceClassification", NUMBERS, problem) for problem in PROBLEMS),
        ("MultipleChoice", {"labels": torch.tensor([3, 0, 1])}, None),
        ("QuestionAnswering", SPANS, None),
    ],
)
def test_logits_and_losses_of_heads_equal_bert(small, head, labels, problem):
    fields = {"classifier_hidden_size": 16, "classifier_activation": "tanh"}
    fields |= {"num_labels": 2 if head == "QuestionAnswering" else 3, "problem_type": problem}
    config = small(norm="post", pooling="first", **fields)
    model = getattr(models, f"LongspanFor{head}")(config).double().eval()
    bert = bert_with_encoder_of(model, getattr(transformers, f"BertFor{head}"))
    if head == "QuestionAnswering":
        bert.qa_outputs.load_state_dict(model.qa_outputs.state_dict())
    else:
        bert.bert.pooler.dense.load_state_dict(model.classifier.hidden.state_dict())
        bert.classifier.load_state_dict(model.classifier.output.state_dict())
    ids = IDS if head == "MultipleChoice" else IDS[:, 0]
    mask = torch.ones_like(ids)
    if head != "QuestionAnswering":  # transformers lets padding compete with the tokens
        mask[0, ..., 4:] = mask[2, ..., 6:] = 0
    expected = bert(ids, attention_mask=mask, **labels)
    found = model(ids, mask, **labels)
    torch.testing.assert_close(found.to_tuple(), expected.to_tuple())
