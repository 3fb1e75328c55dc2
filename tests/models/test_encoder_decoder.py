"""Encoder-decoders: any mechanism in either part, caches, generation, training, loading."""

import dataclasses
import inspect

import pytest
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from longspan.attention import MECHANISMS
from longspan.errors import InputError, OptionError, UnknownNameError
from longspan.models import (
    LongspanConfig,
    LongspanEncoderDecoderModel,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
)
from longspan.training.distributed.sharding import recompute_activations

CAUSAL = sorted(name for name, cls in MECHANISMS.items() if cls.traits.causal)
CROSS = sorted(name for name, cls in MECHANISMS.items() if cls.traits.cross)
FIELDS = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    # Large enough that the decoder's choices depend on the encoder.
    "initializer_range": 0.3,
}


def options_of(name):
    return dict(MECHANISMS[name].small_options)


def build(encoder="local", decoder="full", cross="full", overrides=None, **changes):
    """Return an encoder-decoder in float64 with random weights; the same at each call."""
    fields = FIELDS | {"attention_options": options_of(encoder)} | changes
    own = {"attention": decoder, "attention_options": options_of(decoder)}
    own |= {"cross_attention": cross, "cross_attention_options": options_of(cross)}
    config = LongspanConfig(
        attention=encoder,
        is_encoder_decoder=True,
        decoder_overrides=own | (overrides or {}),
        **fields,
    )
    torch.manual_seed(1)
    return LongspanForConditionalGeneration(config).double().eval()


def tokens(rows=3, length=40, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 60, (rows, length), generator=generator)


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


# Every mechanism


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_any_mechanism_encodes_and_its_padding_is_not_read(name):
    model, ids, labels = build(name), tokens(), tokens(length=9)
    mask = torch.ones_like(ids)
    mask[0, 29:] = mask[1, 3:] = 0
    changed = torch.where(mask.bool(), ids, tokens(seed=9))
    first, second = (model(x, mask, labels=labels).logits for x in (ids, changed))
    assert_equal(first, second)
    changed[:, 2] = 7
    assert (model(changed, mask, labels=labels).logits - first).abs().amax(2).min() > 0


@torch.no_grad()
@pytest.mark.parametrize("name", CAUSAL)
def test_decoder_with_a_cache_equals_the_decoder_without(name):
    model, ids, target = build(decoder=name), tokens(), tokens(length=30)
    whole = model(ids, decoder_input_ids=target, use_cache=False)
    assert whole.cache is None
    state, parts, source = None, [], {"input_ids": ids}
    for part in target.split([11, 1, 1, 17], 1):
        output = model(**source, decoder_input_ids=part, cache=state, use_cache=True)
        state, parts, source = output.cache, [*parts, output.logits], {}
    assert_equal(torch.cat(parts, 1), whole.logits)
    later = target.clone()
    later[:, 20:] = 5
    changed = model(ids, decoder_input_ids=later, use_cache=False).logits
    assert_equal(changed[:, :20], whole.logits[:, :20])


@torch.no_grad()
@pytest.mark.parametrize("cross", CROSS)
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_equals_generation_without(cross, beams):
    decoder = "transformer_xl" if beams == 3 else "local"
    model, ids = build("longformer", decoder, cross), tokens(2)
    mask, global_mask = torch.ones_like(ids), torch.zeros_like(ids)
    mask[1, 30:], global_mask[:, 0] = 0, 1
    options = {"attention_mask": mask, "global_attention_mask": global_mask}
    options |= {"max_new_tokens": 6, "num_beams": beams, "do_sample": False}
    found = model.generate(ids, **options)
    assert found.equal(model.generate(ids, use_cache=False, **options))
    assert not found.equal(model.generate(tokens(2, seed=4), **options))
    if beams == 1:
        target = torch.ones(2, 1, dtype=torch.long)
        for _ in range(6):
            logits = model(ids, mask, global_mask, decoder_input_ids=target).logits
            target = torch.cat((target, logits[:, -1:].argmax(-1)), 1)
        assert found.equal(target)


@torch.no_grad()
def test_sampled_sequences_share_the_encoder():
    model, ids, found = build(), tokens(2), []
    for use_cache in (True, False):
        torch.manual_seed(3)
        options = {"do_sample": True, "num_return_sequences": 3, "use_cache": use_cache}
        found.append(model.generate(ids, max_new_tokens=8, **options))
    assert found[0].equal(found[1])
    assert len({tuple(row) for row in found[0].tolist()}) == 6


# Masks, batches, states of the encoder


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_with_padding_equals_its_rows(side):
    model, ids, target = build(position="rotary"), tokens(2, 20), tokens(2, 9)
    mask = torch.ones_like(ids)
    real = slice(6, 20) if side == "left" else slice(0, 14)
    mask[1] = 0
    mask[1, real] = 1
    both = model(ids, mask, decoder_input_ids=target).logits
    assert_equal(both[:1], model(ids[:1], decoder_input_ids=target[:1]).logits)
    alone = ids[1:, real]
    assert_equal(both[1:], model(alone, decoder_input_ids=target[1:]).logits)
    for beams in (1, 3):
        options = {"max_new_tokens": 7, "num_beams": beams, "do_sample": False}
        found = model.generate(ids, attention_mask=mask, **options)
        assert found[1:].equal(model.generate(alone, **options))


@torch.no_grad()
def test_padding_before_the_decoders_tokens_changes_nothing():
    model, ids, target = build(decoder="disjoint"), tokens(2), tokens(2, 12)
    mask = torch.ones_like(target)
    mask[1, :5] = 0
    both = model(ids, decoder_input_ids=target, decoder_attention_mask=mask).logits
    assert_equal(both[1:, 5:], model(ids[1:], decoder_input_ids=target[1:, 5:]).logits)
    options = {"max_new_tokens": 6, "do_sample": False}
    target[:, 0] = target[1, 5] = 1  # so that transformers adds no start token
    options_of_both = {"decoder_input_ids": target, "decoder_attention_mask": mask, **options}
    found = model.generate(ids, **options_of_both)[1, 12:]
    alone = model.generate(ids[1:], decoder_input_ids=target[1:, 5:], **options)[0, 7:]
    assert found.equal(alone)


@torch.no_grad()
def test_states_of_the_encoder_may_be_given():
    model, ids, target = build("longformer"), tokens(), tokens(length=8)
    mask, global_mask = torch.ones_like(ids), torch.zeros_like(ids)
    mask[0, 30:], global_mask[:, :2] = 0, 1
    encoded = model.get_encoder()(ids, mask, global_mask)
    assert model.get_encoder() is model.model.encoder
    expected = model(ids, mask, global_mask, decoder_input_ids=target).logits
    for given in (encoded, (encoded.last_hidden_state,)):
        output = model(encoder_outputs=given, attention_mask=mask, decoder_input_ids=target)
        assert_equal(output.logits, expected)
    options = {"max_new_tokens": 6, "num_beams": 2, "do_sample": False, "attention_mask": mask}
    given = BaseModelOutput(last_hidden_state=encoded.last_hidden_state)
    found = model.generate(encoder_outputs=given, **options)
    assert found.equal(model.generate(ids, global_attention_mask=global_mask, **options))


@torch.no_grad()
def test_the_encoder_runs_once_and_beams_share_its_keys(monkeypatch):
    model, ids, calls, caches = build("longformer"), tokens(2), [], []
    encode, decode = model.model.encoder.forward, model.model.decoder.forward

    def record_encoder(input_ids, attention_mask, global_attention_mask, **rest):
        calls.append(global_attention_mask)
        return encode(input_ids, attention_mask, global_attention_mask, **rest)

    def record_decoder(*inputs, **rest):
        output = decode(*inputs, **rest)
        caches.append(output.cache)
        return output

    mask, global_mask = torch.ones_like(ids), torch.zeros_like(ids)
    global_mask[0, 0] = global_mask[1, 1:4] = 1
    arguments = {"attention_mask": mask, "global_attention_mask": global_mask}
    options = {"max_new_tokens": 5, "num_beams": 4, "do_sample": False}
    # transformers reads the signature of the encoder.
    record_encoder.__signature__ = inspect.signature(encode)
    monkeypatch.setattr(model.model.encoder, "forward", record_encoder)
    monkeypatch.setattr(model.model.decoder, "forward", record_decoder)
    model.generate(ids, **arguments, **options)
    assert len(calls) == 1
    assert calls[0].equal(global_mask)
    first, last = caches[0].layers[0], caches[-1].layers[0]
    assert last.batch_size == 8
    assert last.cross.k.shape == (2, 2, 40, 16)
    assert last.cross.k is first.cross.k


@torch.no_grad()
def test_selected_rows_keep_their_encoder_and_its_mask():
    model, ids, target = build(decoder="transformer_xl"), tokens(), tokens(length=14)
    mask = torch.ones_like(ids)
    mask[0, 25:] = mask[2, 9:] = 0
    rows = torch.tensor([2, 2, 0, 1])
    expected = model(ids[rows], mask[rows], decoder_input_ids=target[rows]).logits[:, 9:]
    state = model(ids, mask, decoder_input_ids=target[:, :9], use_cache=True).cache
    state.reorder_cache(rows)
    found = model(decoder_input_ids=target[rows, 9:], cache=state).logits
    assert_equal(found, expected)
    repeated = model(ids, mask, decoder_input_ids=target[:, :9], use_cache=True).cache
    repeated.batch_repeat_interleave(2)
    every = torch.arange(3).repeat_interleave(2)
    found = model(decoder_input_ids=target[every, 9:], cache=repeated).logits
    assert_equal(found, model(ids, mask, decoder_input_ids=target).logits[every, 9:])
    repeated.reorder_cache(torch.tensor([4, 1]))
    found = model(decoder_input_ids=target[[2, 0], 9:], cache=repeated).logits
    assert_equal(found, model(ids, mask, decoder_input_ids=target).logits[[2, 0], 9:])


@torch.no_grad()
def test_detached_and_cleared_states_keep_the_encoder():
    model, ids, target = build(), tokens(2), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, 20:] = 0
    begin, end = target.split([7, 5], 1)
    with torch.enable_grad():
        state = model(ids, mask, decoder_input_ids=begin, use_cache=True).cache
    expected = model(ids, mask, decoder_input_ids=target).logits[:, 7:]
    for given, wanted in ((state, True), (state.detach(), False)):
        assert all(layer.cross.k.requires_grad is wanted for layer in given.layers)
        assert_equal(model(decoder_input_ids=end, cache=given).logits, expected)
    cleared = model.model.decoder.clear_rows(state, torch.tensor([True, False]))
    found = model(decoder_input_ids=end, cache=cleared).logits
    assert_equal(found[1], expected[1])
    assert_equal(found[0], model(ids, mask, decoder_input_ids=end).logits[0])


@torch.no_grad()
def test_cross_attention_with_parameters_for_each_position_of_a_longer_encoder():
    model = build(cross="linformer", overrides={"max_position_embeddings": 16})
    assert model.model.decoder.config.max_encoder_positions == 64
    assert model(tokens(length=64), decoder_input_ids=tokens(length=16)).logits.isfinite().all()


# Training


def test_labels_are_the_decoders_inputs_one_token_later():
    model, ids, labels = build(), tokens(), tokens(length=8)
    labels[1, 5:] = -100
    output = model(ids, labels=labels)
    shifted = torch.cat((torch.ones(3, 1, dtype=torch.long), labels[:, :-1]), 1)
    shifted[shifted == -100] = 0
    assert model.prepare_decoder_input_ids_from_labels(labels).equal(shifted)
    assert_equal(output.logits, model(ids, decoder_input_ids=shifted).logits)
    scores = output.logits.log_softmax(-1)
    picked = scores.gather(2, labels.clamp(min=0)[..., None])[..., 0]
    assert_equal(output.loss, -picked[labels != -100].mean())


def test_it_learns_to_copy():
    fields = {"position": "learned", "initializer_range": 0.15, "num_hidden_layers": 1}
    model = build("local", **fields).float().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for step in range(80):
        ids = torch.randint(2, 12, (16, 6), generator=torch.Generator().manual_seed(step))
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # A tenth of the loss of guessing among the ten tokens.
    assert losses[0] > 2.3
    assert max(losses[-5:]) < 0.23
    copied = model.eval().generate(ids, max_new_tokens=6, num_beams=2, do_sample=False)
    assert (copied[:, 1:] == ids).float().mean() > 0.95


def gradients(model, inputs):
    model.zero_grad()
    model(**inputs).loss.backward()
    assert all(x.grad is not None for x in model.parameters())
    return [x.grad.clone() for x in model.parameters()]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_activation_checkpointing_changes_no_gradient(norm, reentrant):
    model = build(norm=norm).train()
    inputs = {"input_ids": tokens(), "labels": tokens(length=8)}
    expected = gradients(model, inputs)
    recompute_activations(model, {"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
        model.model.decoder.enable_input_require_grads()
    for found, other in zip(gradients(model, inputs), expected, strict=True):
        assert_equal(found, other)


@pytest.mark.parametrize("encoder", ["local", "indexed"])
@pytest.mark.parametrize("decoder", ["full", "indexed", "compressive"])
def test_auxiliary_losses_of_both_parts_join_the_loss(encoder, decoder):
    more = {"compression": "conv"} if decoder == "compressive" else {}
    overrides = {"attention_options": options_of(decoder) | more}
    model = build(encoder, decoder, overrides=overrides)
    inputs = {"input_ids": tokens(), "labels": tokens(length=40)}
    plain = model(**inputs)
    trained = model.train()(**inputs)
    assert plain.auxiliary_loss is None
    if (encoder, decoder) == ("local", "full"):
        assert trained.auxiliary_loss is None
        return
    assert_equal(trained.loss, plain.loss + trained.auxiliary_loss)
    trained.auxiliary_loss.backward()
    learning = {name for name, x in model.named_parameters() if x.grad is not None and x.grad.any()}
    names = {name for name, _ in model.named_parameters() if "indexer" in name}
    names |= {name for name, _ in model.named_parameters() if "compression" in name}
    assert learning == names
    encoded = model.model.encoder(inputs["input_ids"])
    del inputs["input_ids"]
    assert_equal(model(encoder_outputs=encoded, **inputs).loss, trained.loss)


# Configuration, loading, vocabulary


@pytest.mark.parametrize("tied", [True, False])
def test_save_load_and_ties(tmp_path, tied):
    model = build("longformer", tie_word_embeddings=tied, embedding_size=16)
    ids, labels = tokens(), tokens(length=8)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert type(loaded) is LongspanForConditionalGeneration
    torch.testing.assert_close(loaded(ids, labels=labels).logits, model(ids, labels=labels).logits)
    parts = (loaded.model.encoder, loaded.model.decoder)
    words = [part.embeddings.words.weight for part in parts] + [loaded.lm_head.weight]
    assert len({id(x) for x in words}) == (1 if tied else 3)
    headless = LongspanEncoderDecoderModel.from_pretrained(tmp_path, dtype=torch.float64)
    target = model.prepare_decoder_input_ids_from_labels(labels)
    with torch.no_grad():
        found = headless.eval()(ids, decoder_input_ids=target)
        expected = model.model(ids, decoder_input_ids=target)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state)
    with pytest.raises(OptionError, match="use LongspanForConditionalGeneration"):
        AutoModel.from_pretrained(tmp_path)


def test_another_cross_attention_than_that_of_the_checkpoint_has_its_initial_state(tmp_path):
    build().save_pretrained(tmp_path)
    overrides = {"cross_attention": "performer"}
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, decoder_overrides=overrides)
    fresh = LongspanForConditionalGeneration(loaded.config)
    for found, expected in zip(
        loaded.model.decoder.layers, fresh.model.decoder.layers, strict=True
    ):
        features = (x.cross_attention.mechanism.state_dict() for x in (found, expected))
        torch.testing.assert_close(*features, check_dtype=False)


@pytest.mark.parametrize("tied", [True, False])
def test_vocabulary_of_both_parts_is_resized(tied):
    model = build(tie_word_embeddings=tied)
    before = model(tokens(), labels=tokens(length=8)).logits
    model.resize_token_embeddings(70)
    parts = (model.model.encoder, model.model.decoder)
    assert [part.embeddings.words.num_embeddings for part in parts] == [70, 70]
    assert {part.config.vocab_size for part in (model, *parts)} == {70}
    after = model(tokens(), labels=tokens(length=8)).logits
    assert after.shape[2] == 70
    assert_equal(after[..., :60], before)
    assert model(tokens() + 8, labels=tokens(length=8) + 8).loss.isfinite()


def test_the_decoder_has_the_encoders_fields_but_for_overrides():
    overrides = {"num_hidden_layers": 1, "max_position_embeddings": 20, "intermediate_size": 48}
    overrides |= {"cross_attention_options": {"features": 12}}
    fields = {"type_vocab_size": 2, "pooling": "cls", "max_global_tokens": 3}
    fields["stem"] = "convolution"
    model = build("bigbird", "linear", "performer", overrides, position="sinusoidal", **fields)
    encoder, decoder = model.model.encoder, model.model.decoder
    assert [len(part.layers) for part in (encoder, decoder)] == [2, 1]
    assert decoder.layers[0].feed_forward.input.out_features == 48
    assert decoder.config.position == "sinusoidal"
    assert decoder.layers[0].attention.mechanism.name == "linear"
    crossing = decoder.layers[0].cross_attention.mechanism
    assert (crossing.name, crossing.options["features"]) == ("performer", 12)
    assert not crossing.options.get("causal")
    absent = [getattr(decoder.embeddings, name) for name in ("types", "summary", "stem")]
    assert absent == [None] * 3
    assert encoder.config.attention == "bigbird"
    assert not encoder.config.is_decoder
    assert encoder.layers[0].cross_attention is None
    assert LongspanConfig(**model.config.to_diff_dict()).to_dict() == model.config.to_dict()


def test_any_configuration_makes_an_encoder_decoder():
    config = LongspanConfig(attention="local")
    model = LongspanForConditionalGeneration(config)
    assert model.config.is_encoder_decoder
    assert not config.is_encoder_decoder


@torch.no_grad()
def test_outputs_are_those_of_transformers():
    model = build().train()
    output = model(tokens(), decoder_input_ids=tokens(length=8), output_hidden_states=True)
    assert output.cache is None
    assert [len(output[f"{part}_hidden_states"]) for part in ("encoder", "decoder")] == [3, 3]
    assert output.encoder_hidden_states[-1] is output.encoder_last_hidden_state
    options = {"output_hidden_states": True, "return_dict_in_generate": True}
    generated = model.eval().generate(tokens(), max_new_tokens=3, **options)
    assert len(generated.decoder_hidden_states) == 3
    first, second = model(tokens(), decoder_input_ids=tokens(length=8), return_dict=False)[:2]
    assert first.shape == (3, 8, 60)
    assert second.get_seq_length() == 8
    assert model(tokens(), labels=tokens(length=8)).cache is None
    shown = {"output_hidden_states": True, "output_attentions": True}
    labelled = model(tokens(), labels=tokens(length=8), **shown)
    # The predictions are the logits alone.
    ignored = set(model.config.keys_to_ignore_at_inference)
    assert set(labelled) - ignored == {"loss", "logits"}
    assert "cache" in ignored


@torch.no_grad()
def test_weights_of_both_parts_and_of_cross_attention():
    model, ids, target = build(), tokens(), tokens(6, length=8)
    mask = torch.ones_like(ids)
    mask[1, 25:] = 0
    inputs = {"decoder_input_ids": target, "output_attentions": True}
    output = model(ids, mask, **inputs)
    assert output.encoder_attentions[0].shape == (3, 2, 40, 40)
    assert output.decoder_attentions[0].shape == (6, 2, 8, 8)
    # Rows 2 and 3 of the decoder read row 1 of the encoder.
    assert not output.cross_attentions[1][2:4, ..., 25:].any()
    alone = model(ids[1:2, :25], decoder_input_ids=target[2:4], output_attentions=True)
    assert_equal(output.cross_attentions[1][2:4, ..., :25], alone.cross_attentions[1])
    assert_equal(output.cross_attentions[0].sum(3), torch.ones(6, 2, 8).double())


# Refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_decoder": True}, "does not support is_decoder=True"),
        ({"input_features": 3}, "does not support input_features=3"),
        ({"cross_attention": "full"}, "requires is_decoder=True"),
        ({"decoder_overrides": {"attention": "nystrom"}}, "decoder_overrides.*nystrom does not"),
        ({"decoder_overrides": {"cross_attention": "local"}}, "which local does not support; use"),
        ({"decoder_overrides": {"num_hidden_layers": 0}}, "num_hidden_layers >= 1, got 0"),
        ({"is_encoder_decoder": False, "decoder_overrides": {"norm": "pre"}}, "requires is_enc"),
        ({"cross_attention_options": {"features": 8}}, "requires cross_attention"),
    ],
)
def test_configurations_of_no_encoder_decoder_are_refused(fields, message):
    with pytest.raises(OptionError, match=message):
        LongspanConfig(**{"is_encoder_decoder": True, **fields})


def test_mechanisms_that_mix_queries_are_no_cross_attention(monkeypatch):
    """A token would see the queries of later tokens."""
    full = MECHANISMS["full"]
    traits = dataclasses.replace(full.traits, mixes_queries=True)
    monkeypatch.setitem(MECHANISMS, "full", type("Mixing", (full,), {"traits": traits}))
    with pytest.raises(OptionError, match="their own query and the encoder only, which full does"):
        build(cross="full")


def test_fields_that_both_parts_share_are_no_overrides():
    with pytest.raises(UnknownNameError, match="'hidden_size'"):
        LongspanConfig(is_encoder_decoder=True, decoder_overrides={"hidden_size": 8})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": "ids", "encoder_outputs": "states"}, "replaces the encoder's input"),
        ({"input_ids": "ids", "cache": "state"}, "cache replaces the encoder"),
        ({}, "give input_ids, inputs_embeds or encoder_outputs; got none"),
        ({"encoder_outputs": "narrow"}, "must be hidden_size=32 wide, got 16"),
        ({"encoder_outputs": "rows"}, r"as many rows as the inputs, 3, or a divisor .*\(2, 40\)"),
        ({"encoder_outputs": "states", "attention_mask": "short"}, "encoder_attention_mask must"),
        ({"encoder_outputs": "long", "cache": "state"}, r"\(3, 40\), got \(3, 41\)"),
        ({"input_ids": "ids", "global_attention_mask": "ids"}, "not supported by 2 layers of perf"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, message):
    model, target = build("performer"), tokens(length=4)
    values = {
        "ids": tokens(),
        "states": (torch.zeros(3, 40, 32).double(),),
        "long": (torch.zeros(3, 41, 32).double(),),
        "rows": (torch.zeros(2, 40, 32).double(),),
        "narrow": (torch.zeros(3, 40, 16).double(),),
        "short": torch.ones(3, 39, dtype=torch.long),
    }
    if "cache" in inputs:
        output = model(tokens(), decoder_input_ids=target, use_cache=True)
        values["state"] = output.cache
    chosen = {name: values.get(x, x) if isinstance(x, str) else x for name, x in inputs.items()}
    with pytest.raises(InputError, match=message):
        model(decoder_input_ids=target, **chosen)


def test_start_and_padding_tokens_are_required_where_labels_need_them():
    with pytest.raises(InputError, match="set decoder_start_token_id"):
        build(decoder_start_token_id=None)(tokens(), labels=tokens(length=4))
    from_bos = build(decoder_start_token_id=None, bos_token_id=5)
    assert from_bos.prepare_decoder_input_ids_from_labels(tokens())[:, 0].tolist() == [5] * 3
    labels = tokens(length=4)
    labels[0, 1:] = -100
    with pytest.raises(InputError, match="set pad_token_id, got None"):
        build(pad_token_id=None)(tokens(), labels=labels)


def test_generation_beyond_the_decoders_positions_is_refused():
    model = build(position="learned", overrides={"max_position_embeddings": 6})
    with pytest.raises(InputError, match="max_position_embeddings=6 tokens, got 7"):
        model.generate(tokens(), max_new_tokens=9, do_sample=False)


def test_encoders_read_their_text_whole():
    """transformers said that there was no cache."""
    with pytest.raises(InputError, match=r"prefill_chunk_size=4 divides .* a decoder"):
        build().generate(tokens(), max_new_tokens=2, prefill_chunk_size=4)


def test_decoders_with_cross_attention_require_an_encoder():
    config = LongspanConfig(**FIELDS, is_decoder=True, cross_attention="full")
    with pytest.raises(InputError, match="requires encoder_hidden_states; got None"):
        LongspanForCausalLM(config)(tokens())
    with pytest.raises(InputError, match="this model has none"):
        LongspanForCausalLM(LongspanConfig(**FIELDS)).model(
            tokens(), encoder_hidden_states=torch.zeros(3, 4, 32)
        )
    with pytest.raises(OptionError, match="cross_attention does not support context parallelism"):
        LongspanForCausalLM(config).model.enable_context_parallel(None)
