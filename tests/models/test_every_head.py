"""All models with a head: inputs that they pass on, auxiliary losses, refusals, checkpoints."""

import functools
from inspect import signature

import pytest
import torch
import torch.nn.functional as F
import transformers
from every_head import HEADS, B, Head, T

from longspan.attention import Attention
from longspan.errors import InputError
from longspan.models import LongspanDualEncoder, LongspanModel
from longspan.models.inputs import TextInputs

TEXTS = [(name, text) for name, head in HEADS.items() for text in head.texts]
TEXTS_OF_ALL_INPUTS = [x for x in TEXTS if x[0] not in ("dual", "coreference")]


@pytest.fixture(params=sorted(HEADS))
def head(request) -> Head:
    return HEADS[request.param]


def global_mask(head, place):
    mask = torch.zeros(head.shape, dtype=torch.long)
    mask[..., place] = 1
    return mask


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_global_tokens_of_each_text_reach_the_mechanism(small, name, text, monkeypatch):
    head, seen = HEADS[name], []
    model = head.build(small, attention="local", attention_options={"window": 1})
    forward = Attention.forward
    monkeypatch.setattr(
        Attention,
        "forward",
        lambda self, *x, **y: seen.append(y["global_mask"]) or forward(self, *x, **y),
    )
    inputs, mask = head.inputs(), global_mask(head, 4)
    plain = head.logits(model(**inputs, **head.unlabeled))
    seen.clear()
    marked = {text.format("global_attention_mask"): mask}
    found = head.logits(model(**inputs, **marked, **head.unlabeled))
    assert not torch.isclose(found, plain).all(-1).any()
    given = [x for x in seen if x is not None]
    assert len(given) == 2  # layers
    assert all(x.equal(mask.view(-1, T).bool()) for x in given)


@pytest.mark.parametrize("kind", ["attention_mask", "global_attention_mask"])
@pytest.mark.parametrize(("name", "text"), TEXTS)
@torch.no_grad()
def test_masks_have_two_values(small, name, text, kind):
    head = HEADS[name]
    model = head.build(small, attention="local", attention_options={"window": 1})
    inputs, mask, field = head.inputs(), global_mask(head, 4), text.format(kind)
    if kind == "attention_mask":
        mask = 1 - mask
    call = functools.partial(model, **inputs, **head.unlabeled)
    expected = head.logits(call(**{field: mask}))
    for same in (mask.bool(), mask.float(), mask.half(), mask.int(), mask.to(torch.uint8)):
        assert torch.equal(head.logits(call(**{field: same})), expected)
    # Longformer's old mask, signs, a mask that is added to scores.
    added = (1 - mask).double() * torch.finfo(torch.float64).min
    for other in (mask + 1, -mask, added):
        with pytest.raises(InputError, match=rf"{kind} must be boolean or 0 and 1"):
            call(**{field: other})


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_global_tokens_are_refused_without_a_mechanism_that_has_them(small, name, text):
    head = HEADS[name]
    marked = {text.format("global_attention_mask"): global_mask(head, 0)}
    for changes, layers in (({"attention": "linear"}, "2"), ({"num_hidden_layers": 0}, "0")):
        model = head.build(small, **changes)
        with pytest.raises(InputError, match=f"not supported by {layers} layers of .* leave out"):
            model(**head.inputs(), **marked, **head.unlabeled)


@pytest.mark.parametrize("kind", ["attention_mask", "global_attention_mask"])
@pytest.mark.parametrize(("name", "text"), TEXTS)
@pytest.mark.usefixtures("unchecked")
def test_masks_of_another_shape_are_refused(small, name, text, kind):
    head = HEADS[name]
    mask = {text.format(kind): torch.ones(head.shape, dtype=torch.long)[..., 1:]}
    places = {"{}_b": "second sequence", "query_{}": "queries", "document_{}": "documents"}
    with pytest.raises(InputError, match=rf"^{places.get(text, '')}.*{kind} must have .* got \(3"):
        head.build(small)(**head.inputs(), **mask, **head.unlabeled)


def wrong_tensors(x, kind):
    """Yield values in place of an input of texts that have another type or shape."""
    yield x.tolist()
    yield x[0]
    yield x[None, None]
    if kind != "input_ids":
        yield x[..., 1:]
        yield x[..., :1]
    if kind != "inputs_embeds":
        yield x.float() + 0.5


@pytest.mark.parametrize("kind", sorted(set(TextInputs._fields) - {"input_values"}))
@pytest.mark.parametrize("position", ["learned", "rotary"])
@pytest.mark.parametrize(("name", "text"), TEXTS)
@pytest.mark.usefixtures("unchecked")
def test_wrong_tensors_are_refused_in_words(small, name, text, position, kind):
    """Rows and tokens are not broadcast: one position for all tokens would be no order."""
    head = HEADS[name]
    if text.format(kind) not in signature(head.cls.forward).parameters:
        pytest.skip("the model does not take it")
    model = head.build(small, type_vocab_size=2, position=position, attention="local")
    inputs = head.inputs()
    good = torch.ones(head.shape, dtype=torch.long)
    if kind == "inputs_embeds":
        good = model.get_input_embeddings()(good)
        inputs.pop(text.format("input_ids"))
    for wrong in wrong_tensors(good, kind):
        with pytest.raises(InputError):
            model(**{**inputs, text.format(kind): wrong}, **head.unlabeled)


@pytest.mark.parametrize(("name", "text"), TEXTS_OF_ALL_INPUTS)
def test_types_positions_and_embeddings_reach_the_transformer(small, name, text):
    head = HEADS[name]
    model = head.build(small, type_vocab_size=2, position="learned")
    inputs = head.inputs()
    plain = model(**inputs).to_tuple()
    ids = inputs[text.format("input_ids")]
    places = torch.arange(T).expand(head.shape)
    same = {"token_type_ids": torch.zeros_like(ids), "position_ids": places}
    other = {"token_type_ids": torch.ones_like(ids), "position_ids": places + 1}
    for key in same:
        found = model(**inputs, **{text.format(key): same[key]}).to_tuple()
        torch.testing.assert_close(found, plain)
        found = model(**inputs, **{text.format(key): other[key]}).to_tuple()
        assert not torch.allclose(found[0], plain[0])
    embedded = {text.format("inputs_embeds"): model.get_input_embeddings()(ids)}
    inputs.pop(text.format("input_ids"))
    torch.testing.assert_close(model(**inputs, **embedded).to_tuple(), plain)


@pytest.mark.parametrize("name", sorted(set(HEADS) - {"dual"}))
def test_hidden_states_and_tuples_on_request(small, name):
    head = HEADS[name]
    model, inputs = head.build(small), head.inputs()
    output = model(**inputs, **head.labels, output_hidden_states=True)
    for text, field in zip(head.texts, ("hidden_states", "hidden_states_b"), strict=False):
        ids = inputs[text.format("input_ids")].view(-1, T)
        expected = model.model(ids, output_hidden_states=True).hidden_states
        assert len(output[field]) == 3
        torch.testing.assert_close(output[field], expected)
    found = model(**inputs, **head.labels, output_hidden_states=True, return_dict=False)
    torch.testing.assert_close(found, output.to_tuple())
    assert "hidden_states" not in model(**inputs)


@pytest.mark.parametrize("name", sorted(set(HEADS) - {"dual"}))
def test_attention_weights_on_request(small, name):
    head = HEADS[name]
    model, inputs = head.build(small), head.inputs()
    output = model(**inputs, output_attentions=True)
    for text, field in zip(head.texts, ("attentions", "attentions_b"), strict=False):
        ids = inputs[text.format("input_ids")].view(-1, T)
        expected = model.model(ids, output_attentions=True).attentions
        assert len(output[field]) == 2
        torch.testing.assert_close(output[field], expected)
    assert "attentions" not in model(**inputs)


def test_auxiliary_losses_are_added_in_training(head, small):
    options = {"segment": 2, "memory": 2, "compressed_memory": 2, "ratio": 2, "compression": "conv"}
    fields = {"attention": "compressive", "attention_options": options, "pooling": "last"}
    model = head.build(small, is_decoder=True, **fields)
    inputs = head.inputs()
    expected = model(**inputs, **head.labels).loss
    model.train()
    for ids in inputs.values():
        expected = expected + (auxiliary := model.model(ids.view(-1, T)).auxiliary_loss)
        assert auxiliary > 0.01
    torch.testing.assert_close(found := model(**inputs, **head.labels).loss, expected)
    found.backward()
    parameters = dict(model.named_parameters())
    assert all(parameters[n].grad.any() for n in parameters if n.endswith("compression.values"))
    assert model(**inputs, **head.unlabeled).loss is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_decoders_keep_no_state_and_ignore_padding(head, small, side, monkeypatch):
    model = head.build(small, is_decoder=True, pooling="last", attention="local")
    monkeypatch.setattr(Attention, "step", None)
    inputs = head.inputs()
    padding = (5, 0) if side == "left" else (0, 5)
    padded = {name: F.pad(ids, padding, value=7) for name, ids in inputs.items()}
    masks = {
        name.replace("input_ids", "attention_mask"): F.pad(torch.ones_like(ids), padding)
        for name, ids in inputs.items()
    }
    expected = head.logits(model(**inputs, **head.unlabeled))
    moved = {x: torch.where(y < 0, y, y + padding[0]) for x, y in head.more.items()}
    found = head.logits(model(**padded, **masks, **moved, **head.unlabeled))
    if found.shape != expected.shape:  # logits of tokens
        axis = found.shape.index(T + 5)
        found = found.narrow(axis, padding[0], T)
    torch.testing.assert_close(found, expected)


def test_checkpoints_load_through_auto_classes(head, small, tmp_path):
    model = head.bind(head.cls(small()).eval())
    model.save_pretrained(tmp_path)
    loaded = (head.auto or head.cls).from_pretrained(tmp_path)
    assert type(loaded) is head.cls
    head.bind(loaded)
    inputs = head.inputs()
    torch.testing.assert_close(head.logits(loaded(**inputs)), head.logits(model(**inputs)))
    encoder = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(encoder) is LongspanModel
    ids = torch.randint(1, 50, (B, T))
    torch.testing.assert_close(encoder(ids).pooler_output, model.model(ids).pooler_output)


def test_gradients_reach_all_parameters(head, small):
    changes = {"shared_towers": False} if head.cls is LongspanDualEncoder else {}
    model = head.build(small, type_vocab_size=1, **changes)
    model(**head.inputs(), **head.labels).loss.backward()
    zero = {name for name, p in model.named_parameters() if p.grad.abs().max() < 1e-14}
    constant = ("key.bias", *head.constant)
    assert zero == {n for n, _ in model.named_parameters() if n.endswith(constant)}


def test_loss_falls_in_training(head, small):
    model, inputs = head.bind(head.cls(small(initializer_range=0.1))), head.inputs()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(25):
        loss = model(**inputs, **head.labels).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0]


def test_losses_of_half_precision_are_float32(head, small):
    model = head.bind(head.cls(small()).bfloat16())
    output = model(**head.inputs(), **head.labels)
    compares = head.cls is LongspanDualEncoder  # as a ranking does
    assert head.logits(output).dtype == (torch.float32 if compares else torch.bfloat16)
    assert output.loss.dtype == torch.float32
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
