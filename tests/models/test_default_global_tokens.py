"""Global tokens of heads for one text where the caller names none."""

import pytest
import torch

from longspan.errors import InputError, OptionError
from longspan.models import (
    LongspanForMultipleChoice,
    LongspanForPairClassification,
    LongspanForQuestionAnswering,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)

FIELDS = {"attention": "longformer", "attention_options": {"window": 1}, "sep_token_id": 2}
IDS = torch.tensor([[3, 4, 2, 2, 5, 6, 2], [3, 2, 2, 7, 8, 9, 2], [3, 4, 5, 6, 7, 8, 9]])
# Global positions of each text, by rule. The last text has no separator.
EXPECTED = {
    "first": [[0], [0], [0]],
    "before_separator": [[0, 1], [0], []],
    "after_separator": [[4, 5, 6], [3, 4, 5, 6], []],
}


def mask_of(positions):
    mask = torch.zeros_like(IDS)
    for row, chosen in enumerate(positions):
        mask[row, chosen] = 1
    return mask


@pytest.mark.parametrize("rule", EXPECTED)
@pytest.mark.parametrize(
    "cls",
    [
        LongspanForSequenceClassification,
        LongspanForTokenClassification,
        LongspanForQuestionAnswering,
    ],
)
def test_rule_stands_in_for_a_missing_mask(small, rule, cls):
    model = cls(small(**FIELDS, default_global_tokens=rule)).double().eval()
    given, local = mask_of(EXPECTED[rule]), torch.zeros_like(IDS)
    by_rule, by_mask = model(IDS), model(IDS, global_attention_mask=given)
    torch.testing.assert_close(by_rule[0], by_mask[0])
    assert not torch.equal(by_rule[0], model(IDS, global_attention_mask=local)[0])


def test_every_candidate_has_its_own_global_tokens(small):
    config = small(**FIELDS, default_global_tokens="after_separator")
    model = LongspanForMultipleChoice(config).double().eval()
    given = mask_of(EXPECTED["after_separator"])[None]
    by_rule, by_mask = model(IDS[None]), model(IDS[None], global_attention_mask=given)
    torch.testing.assert_close(by_rule.logits, by_mask.logits)


def test_model_without_head_and_pairs_have_no_rule(small):
    for cls, inputs in ((LongspanModel, (IDS,)), (LongspanForPairClassification, (IDS, IDS))):
        ruled = cls(small(**FIELDS, default_global_tokens="first")).eval()
        plain = cls(small(**FIELDS)).eval()
        plain.load_state_dict(ruled.state_dict())
        torch.testing.assert_close(ruled(*inputs)[0], plain(*inputs)[0])


def test_first_token_of_embeddings_is_global(small):
    model = LongspanForSequenceClassification(small(**FIELDS, default_global_tokens="first"))
    embedded = model.eval().get_input_embeddings()(IDS)
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, model(IDS).logits)


def test_separator_needs_token_ids(small):
    fields = {**FIELDS, "default_global_tokens": "before_separator"}
    model = LongspanForQuestionAnswering(small(**fields))
    embedded = model.get_input_embeddings()(IDS)
    with pytest.raises(InputError, match="finds the separator in input_ids, which are missing"):
        model(inputs_embeds=embedded)
    model(inputs_embeds=embedded, global_attention_mask=mask_of(EXPECTED["first"]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "linear", "attention_options": {}}, "linear does not support global tokens"),
        ({"sep_token_id": None}, "'before_separator' requires sep_token_id, got None"),
    ],
)
def test_rule_that_cannot_be_followed_is_refused(small, fields, message):
    given = {**FIELDS, "default_global_tokens": "before_separator", **fields}
    with pytest.raises(OptionError, match=message):
        small(**given)
