"""Rows of several documents: each document has the outputs that it has alone."""

import pytest
import torch
from every_head import HEADS
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorWithFlattening

from longspan.attention import MECHANISMS
from longspan.errors import InputError
from longspan.models import (
    LongspanForCausalLM,
    LongspanForMaskedLM,
    LongspanForQuestionAnswering,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)

NAMES = sorted(MECHANISMS)
CAUSAL = [name for name in NAMES if MECHANISMS[name].traits.causal]
LENGTHS = (7, 1, 12, 1, 1, 5)


def make_documents():
    return [torch.randint(1, 50, (length,)) for length in LENGTHS]


def flatten(documents):
    """Return the batch of transformers' collator."""
    return dict(DataCollatorWithFlattening()([{"input_ids": x.tolist()} for x in documents]))


def pad(documents):
    """Return the documents as a padded batch."""
    lengths = torch.tensor([len(x) for x in documents])
    mask = torch.arange(max(lengths)) < lengths[:, None]
    return {"input_ids": pad_sequence(documents, batch_first=True), "attention_mask": mask}


def make_model(cls, small, name, **fields):
    options = dict(MECHANISMS[name].small_options)
    config = small(attention=name, attention_options=options, short_convolution=3, **fields)
    return cls(config).double().eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_documents_of_a_row_do_not_see_each_other(small, name, causal):
    if causal and name not in CAUSAL:
        pytest.skip("not causal")
    model = make_model(LongspanModel, small, name, is_decoder=causal, position="learned")
    documents = make_documents()
    row, padded = flatten(documents), pad(documents)
    row.pop("labels")
    found = model(**row, output_hidden_states=True)
    expected = model(**padded, output_hidden_states=True)
    real = padded["attention_mask"]
    assert found.last_hidden_state.shape[:2] == row["input_ids"].shape
    for states, others in zip(found.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(states[0], others[real])
    torch.testing.assert_close(found.pooler_output, expected.pooler_output)
    start = sum(LENGTHS[:2])
    row["input_ids"][0, start : start + LENGTHS[2]] %= 49
    row["input_ids"][0, start : start + LENGTHS[2]] += 1
    changed = model(**row).last_hidden_state != found.last_hidden_state
    inside = torch.zeros(sum(LENGTHS), dtype=torch.bool)
    inside[start : start + LENGTHS[2]] = True
    assert changed.any(-1)[0].equal(inside)


@pytest.mark.parametrize("name", ["full", "local", "delta", "ssd"])
@pytest.mark.parametrize("cls", [LongspanForCausalLM, LongspanForMaskedLM])
def test_documents_of_a_row_train_as_alone(small, cls, name):
    model = make_model(cls, small, name, position="rotary")
    documents = make_documents()
    loss = model(**flatten(documents)).loss
    loss.backward()
    found = {n: x.grad.clone() for n, x in model.named_parameters()}
    model.zero_grad()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for document in documents:
        labels = document.clone()[None]
        labels[0, 0] = -100  # as the collator
        targets = int((labels != -100).sum())
        if targets:
            total = total + model(document[None], labels=labels).loss * targets
            count += targets
    (total / count).backward()
    torch.testing.assert_close(loss, total / count)
    for parameter, x in model.named_parameters():
        torch.testing.assert_close(found[parameter], x.grad, msg=parameter)


@torch.no_grad()
def test_a_document_predicts_nothing_of_the_next(small):
    """Labels of the first tokens, which transformers' collator leaves out, change no loss."""
    model, row = make_model(LongspanForCausalLM, small, "local"), flatten(make_documents())
    every = model(**{**row, "labels": row["input_ids"]}).loss
    torch.testing.assert_close(every, model(**row).loss, rtol=0, atol=1e-12)


@torch.no_grad()
def test_several_rows_and_one_row_of_positions(small):
    model = make_model(LongspanModel, small, "full", position="learned")
    ids = torch.randint(1, 50, (2, 9))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    found = model(ids, position_ids=positions).last_hidden_state
    for part in (slice(0, 4), slice(4, 9)):
        alone = model(ids[:, part]).last_hidden_state
        torch.testing.assert_close(found[:, part], alone)
    both = torch.cat((positions, torch.arange(9)[None]))
    mixed = model(ids, position_ids=both).last_hidden_state
    torch.testing.assert_close(mixed[0], found[0])
    torch.testing.assert_close(mixed[1], model(ids[1:]).last_hidden_state[0])


@torch.no_grad()
def test_positions_with_gaps_or_a_mask_are_one_document(small):
    model = make_model(LongspanModel, small, "full", position="learned")
    ids, other = torch.randint(1, 50, (2, 1, 6))
    gaps = torch.tensor([[0, 1, 5, 6, 20, 21]])
    restarting = torch.tensor([[0, 1, 2, 0, 1, 2]])
    mask = torch.ones(1, 6)
    for inputs in ({"position_ids": gaps}, {"position_ids": restarting, "attention_mask": mask}):
        joined = torch.cat((ids[:, :3], other[:, 3:]), 1)
        found = model(ids, **inputs).last_hidden_state[0, 0]
        assert not torch.isclose(model(joined, **inputs).last_hidden_state[0, 0], found).all()


@torch.no_grad()
def test_every_input_is_split_by_document(small):
    model = make_model(LongspanModel, small, "longformer", position="none", type_vocab_size=2)
    documents = make_documents()
    row, padded = flatten(documents), pad(documents)
    positions, real = row["position_ids"], padded["attention_mask"]
    types, is_global = row["input_ids"] % 2, row["input_ids"] % 5 == 0
    embeds = torch.randn(1, sum(LENGTHS), 16, dtype=torch.float64)

    def split(x):
        return pad_sequence(x[0].split(LENGTHS), batch_first=True)

    found = model(
        inputs_embeds=embeds, token_type_ids=types, global_attention_mask=is_global,
        position_ids=positions,
    )  # fmt: skip
    expected = model(
        inputs_embeds=split(embeds), token_type_ids=split(types), attention_mask=real,
        global_attention_mask=split(is_global), position_ids=split(positions),
    )  # fmt: skip
    torch.testing.assert_close(found.last_hidden_state[0], expected.last_hidden_state[real])


@torch.no_grad()
def test_a_classifier_has_one_answer_a_document(small):
    model = make_model(LongspanForSequenceClassification, small, "full", pooling="cls")
    documents = make_documents()
    row = flatten(documents)
    del row["labels"]
    torch.testing.assert_close(model(**row).logits, model(**pad(documents)).logits)


@pytest.mark.parametrize("rule", ["first", "before_separator", "after_separator"])
@pytest.mark.parametrize(
    "cls",
    [
        LongspanForSequenceClassification,
        LongspanForTokenClassification,
        LongspanForQuestionAnswering,
    ],
)
@torch.no_grad()
def test_each_document_has_the_global_tokens_that_the_configuration_names(small, cls, rule):
    """A document without a separator, such as one of a single token, has none."""
    fields = {"default_global_tokens": rule, "sep_token_id": 2}
    model = make_model(cls, small, "longformer", position="learned", **fields)
    documents = make_documents()
    for x in documents:
        x[x == 2] = 3
        x[2:4] = 2
    documents[1][0] = 2  # the first token of the row's padding, if it were read
    row, padded = flatten(documents), pad(documents)
    del row["labels"]
    found, expected = model(**row)[0], model(**padded)[0]
    if cls is not LongspanForSequenceClassification:
        found, expected = found[0], expected[padded["attention_mask"]]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["question", "multi_hop", "choice", "candidates"])
def test_heads_with_one_answer_a_row_refuse_several_documents(small, name):
    head = HEADS[name]
    positions = (torch.arange(head.shape[-1]) % 5).expand(head.shape)
    with pytest.raises(InputError, match=r"several documents, but each row has .* pad the"):
        head.build(small)(**head.inputs(), **head.labels, position_ids=positions)


@torch.no_grad()
def test_a_state_is_not_continued_by_several_documents(small):
    model = make_model(LongspanForCausalLM, small, "full")
    ids, positions = torch.ones(1, 4, dtype=torch.long), torch.tensor([[0, 1, 0, 1]])
    state = model(ids).cache
    with pytest.raises(InputError, match=r"several documents.* with cache; pad the documents"):
        model(ids, position_ids=positions, cache=state)


@pytest.mark.parametrize(
    ("fields", "inputs", "named"),
    [
        ({"is_decoder": True}, {"use_cache": True}, "use_cache"),
        ({}, {"output_attentions": True}, "output_attentions"),
        ({"output_attentions": True}, {}, "output_attentions"),
    ],
)
def test_what_documents_of_a_row_cannot_have_is_refused(small, fields, inputs, named):
    model = LongspanModel(small(**fields))
    positions = torch.tensor([[0, 1, 0, 1]])
    with pytest.raises(InputError, match=rf"several documents.* with {named}; pad the documents"):
        model(torch.ones(1, 4, dtype=torch.long), position_ids=positions, **inputs)


def test_a_compiled_model_refuses_documents_of_a_row(small):
    model = torch.compile(LongspanModel(small()).eval(), backend="aot_eager", fullgraph=True)
    ids = torch.ones(1, 4, dtype=torch.long)
    model(ids, position_ids=torch.arange(4)[None])
    with pytest.raises(RuntimeError, match="rows of several documents cannot be compiled"):
        model(ids, position_ids=torch.tensor([[0, 1, 0, 1]]))
