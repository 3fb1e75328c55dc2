"""Classification heads: logits, losses and pair features."""

import pytest
import torch
import torch.nn.functional as F

from longspan.errors import InputError, OptionError
from longspan.models import (
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
)
from longspan.models.heads.losses import label_loss


def test_sequence_logits_are_mlp_of_pooled_state(small):
    model = LongspanForSequenceClassification(small(num_labels=3, pooling="cls")).double()
    ids, mask = torch.randint(1, 50, (4, 9)), torch.rand(4, 9) > 0.3
    labels = torch.tensor([0, 2, 1, 1])
    out = model(ids, mask, labels=labels)
    hidden = model.classifier.hidden(model.model(ids, mask).pooler_output)
    weight, bias = model.classifier.output.weight, model.classifier.output.bias
    torch.testing.assert_close(out.logits, hidden.clamp(min=0) @ weight.T + bias)
    expected = -out.logits.log_softmax(-1)[torch.arange(4), labels].mean()
    torch.testing.assert_close(out.loss, expected)
    assert model(ids, mask).loss is None


@pytest.mark.parametrize("pooling", ["mean", "cls", "first"])
def test_token_logits_are_mlp_of_token_states(small, pooling):
    model = LongspanForTokenClassification(small(num_labels=3, pooling=pooling)).double()
    ids, mask = torch.randint(1, 50, (4, 9)), torch.rand(4, 9) > 0.3
    out = model(ids, mask)
    states = model.model(ids, mask).last_hidden_state
    first, second = model.classifier.hidden, model.classifier.output
    hidden = (states @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(out.logits, hidden @ second.weight.T + second.bias)
    assert out.logits.shape == (4, 9, 3)
    assert out.loss is None


def test_head_without_hidden_layer_is_linear(small):
    model = LongspanForTokenClassification(small(num_labels=3, classifier_hidden_size=0)).double()
    ids, mask = torch.randint(1, 50, (4, 9)), torch.rand(4, 9) > 0.3
    states, linear = model.model(ids, mask).last_hidden_state, model.classifier.output
    torch.testing.assert_close(model(ids, mask).logits, states @ linear.weight.T + linear.bias)
    assert {name for name, _ in model.classifier.named_parameters()} == {
        "output.weight",
        "output.bias",
    }


def test_token_loss_averages_labeled_tokens(small):
    model = LongspanForTokenClassification(small(num_labels=3)).double()
    ids, labels = torch.randint(1, 50, (2, 5)), torch.full((2, 5), -100)
    labels[0, 1], labels[1, 4], labels[1, 0] = 2, 0, 1
    out = model(ids, labels=labels)
    nll = -out.logits.log_softmax(-1)
    expected = (nll[0, 1, 2] + nll[1, 4, 0] + nll[1, 0, 1]) / 3
    torch.testing.assert_close(out.loss, expected)


def pair_model(small, **fields) -> LongspanForPairClassification:
    return LongspanForPairClassification(small(**{"num_labels": 2} | fields)).double().eval()


@pytest.mark.parametrize(("head", "blocks"), [("interaction", 4), ("concatenate", 2)])
def test_pair_features_follow_configuration(small, head, blocks):
    model = pair_model(small, pair_head=head)
    a, b = torch.randint(1, 50, (3, 9)), torch.randint(1, 50, (3, 14))
    mask_b = torch.rand(3, 14) > 0.3
    x, y = model.model(a).pooler_output, model.model(b, mask_b).pooler_output
    joined = torch.cat([x, y, x * y, x - y][:blocks], dim=1)
    expected = model.classifier(joined)
    labels = torch.tensor([0, 1, 1])
    out = model(a, b, None, mask_b, labels=labels)
    torch.testing.assert_close(out.logits, expected)
    torch.testing.assert_close(out.loss, F.cross_entropy(expected, labels))


def test_both_sequences_share_one_encoder(small):
    model = pair_model(small)
    a, b = torch.full((1, 3), 5), torch.full((1, 4), 6)
    model(a, b).logits[0, 0].backward()
    assert model.model.embeddings.words.weight.grad[[5, 6]].ne(0).any(1).all()
    assert model.num_parameters() == pair_model(small).num_parameters()
    names = [name for name, _ in model.named_parameters() if "words" in name]
    assert names == ["model.embeddings.words.weight"]


def test_regression_loss_is_mean_squared_error(small):
    ids, labels = torch.randint(1, 50, (4, 9)), torch.randn(4)
    for fields in ({"num_labels": 1}, {"num_labels": 1, "problem_type": "regression"}):
        model = LongspanForSequenceClassification(small(**fields)).double().eval()
        out = model(ids, labels=labels)
        assert out.logits.shape == (4, 1)
        torch.testing.assert_close(out.loss, (out.logits[:, 0] - labels).square().mean())
        whole = model(ids, labels=torch.tensor([1, 2, 3, 4])).loss
        torch.testing.assert_close(whole, (out.logits[:, 0] - torch.arange(1, 5)).square().mean())
    several = LongspanForSequenceClassification(small(num_labels=3, problem_type="regression"))
    out = several(ids, labels=(wanted := torch.randn(4, 3)))
    torch.testing.assert_close(out.loss, (out.logits - wanted).square().mean())
    with pytest.raises(InputError, match=r"labels must have shape \(4, 3\), got \(4,\)"):
        several(ids, labels=labels)


def test_regression_of_pairs_and_refusal_for_tokens(small):
    model = pair_model(small, problem_type="regression")
    a, b = torch.randint(1, 50, (2, 3, 9))
    labels = torch.randn(3, 2)
    out = model(a, b, labels=labels)
    torch.testing.assert_close(out.loss, (out.logits - labels).square().mean())
    with pytest.raises(OptionError, match="not for tokens"):
        LongspanForTokenClassification(small(num_labels=1))


def test_several_labels_have_binary_cross_entropies(small):
    fields = {"num_labels": 3, "problem_type": "multi_label_classification"}
    labels = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0]])
    ids = torch.randint(1, 50, (2, 4, 9))
    sequences = LongspanForSequenceClassification(small(**fields)).double().eval()
    for model, texts in ((sequences, ids[:1]), (pair_model(small, **fields), ids)):
        out = model(*texts, labels=labels)
        p = out.logits.sigmoid()
        expected = -torch.where(labels == 1, p.log(), (1 - p).log()).mean()
        torch.testing.assert_close(out.loss, expected)
        torch.testing.assert_close(model(*texts, labels=labels.double()).loss, expected)
    with pytest.raises(InputError, match=r"labels must have shape \(4, 3\), got \(4,\)"):
        sequences(ids[0], labels=labels[:, 0])
    with pytest.raises(OptionError, match=r"several labels .* not for tokens"):
        LongspanForTokenClassification(small(**fields))


def test_several_labels_of_which_some_are_unknown(small):
    """They have no loss, also where transformers' Trainer passes the number of known ones."""
    fields = {"num_labels": 3, "problem_type": "multi_label_classification"}
    model = LongspanForSequenceClassification(small(**fields)).double().eval()
    labels, ids = torch.tensor([[0, -100, 1], [-100, -100, -100]]), torch.randint(1, 50, (2, 9))
    for given in (labels, labels.double()):
        out = model(ids, labels=given)
        p = out.logits[0].sigmoid()
        total = -(1 - p[0]).log() - p[2].log()
        torch.testing.assert_close(out.loss, total / 2)
        torch.testing.assert_close(model(ids, labels=given, num_items_in_batch=5).loss, total / 5)
        assert model(ids[1:], labels=given[1:]).loss == 0


def test_labels_that_are_no_classes_are_refused(small):
    model = LongspanForSequenceClassification(small(num_labels=3))
    ids = torch.randint(1, 50, (4, 9))
    with pytest.raises(InputError, match=r"must be in 0..2, or -100, got 0..3"):
        model(ids, labels=torch.arange(4))
    with pytest.raises(InputError, match=r"shape .* \(4,\), got \(4, 1\)"):
        model(ids, labels=torch.zeros(4, 1).long())
    with pytest.raises(InputError, match=r"must be integers, .* set problem_type to 'regression'"):
        model(ids, labels=torch.zeros(4))


def test_loss_of_many_tokens_in_half_precision(small):
    """The sum over tokens exceeds the largest float16, 65,504."""
    logits = torch.randn(9000, 2, generator=torch.Generator().manual_seed(1)) * 100
    labels = logits.argmin(-1)
    found = label_loss(logits.half(), labels)
    assert found > 65504 / 9000
    torch.testing.assert_close(found, F.cross_entropy(logits.half().float(), labels))
    assert label_loss(logits, torch.full_like(labels, -100)) == 0


@pytest.mark.usefixtures("unchecked")
def test_sequences_without_a_partner_are_refused(small):
    model = pair_model(small)
    with pytest.raises(InputError, match="must have a second one, got 3 and 2 sequences"):
        model(torch.ones(3, 5).long(), torch.ones(2, 4).long())


def test_pairs_of_numbers_are_refused(small):
    with pytest.raises(OptionError, match="sequences of token ids, got input_features=3"):
        pair_model(small, input_features=3)
