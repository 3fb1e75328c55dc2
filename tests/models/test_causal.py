"""Decoders: causality, states between calls, generation, memory in training."""

import jaxtyping
import pytest
import torch
from transformers import AutoModelForCausalLM

from longspan.attention import MECHANISMS
from longspan.errors import InputError, OptionError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanModel,
)
from longspan.models.heads.language import CACHE_NAME
from longspan.models.short_convolution import ShortConvolution
from longspan.training.distributed.sharding import recompute_activations

# Layers with a state of their own beside that of the mechanism: bounded, growing, in row groups.
LAYERED = {f"{x} in a layer": x for x in ("compressive", "full", "linear", "position_infused")}
LAYER = {
    **{"short_convolution": 4, "short_convolution_activation": "silu"},
    **{"output_norm": "rms", "output_gate": "sigmoid"},
}
CAUSAL = [*sorted(name for name, cls in MECHANISMS.items() if cls.traits.causal), *LAYERED]
WITH_GLOBAL_TOKENS = {name for name, cls in MECHANISMS.items() if cls.traits.global_tokens}
T = 40
PREFILL = {"prefill_chunk_size": 5}


@pytest.fixture(params=CAUSAL)
def name(request):
    return request.param


def decoder(name, **changes):
    """Return a decoder in float64 with random weights; the same at each call."""
    name, layer = LAYERED.get(name, name), LAYER if name in LAYERED else {}
    cls = MECHANISMS[name]
    fields = {
        **layer,
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "attention_options": dict(cls.small_options),
        "position": "auto" if cls.traits.carries_positions else "rotary",
    }
    config = LongspanConfig(attention=name, is_decoder=True, **fields | changes)
    torch.manual_seed(1)
    model = LongspanForCausalLM(config).double().eval()
    for module in model.modules():
        if isinstance(module, ShortConvolution):
            torch.nn.init.normal_(module.weight)
    return model


def speaker(name, **changes):
    """Return a decoder whose most probable tokens vary: tied embeddings predict the last one.

    It has one layer if those of its mechanism are alike; `LAYERED` have the states of several.
    """
    differ = name in LAYERED or "layer" in MECHANISMS[name].traits.sizes
    fields = {"initializer_range": 0.5, "tie_word_embeddings": False}
    model = decoder(name, **fields | {"num_hidden_layers": 2 if differ else 1} | changes)
    model.lm_head.weight.data[model.config.pad_token_id] = 0  # transformers hides what it predicts
    return model


def tokens(rows=3, length=T):
    return torch.randint(1, 60, (rows, length), generator=torch.Generator().manual_seed(2))


def logits_by_parts(model, ids, ends):
    """Return the logits of a sequence given to the model part by part."""
    state, parts = None, []
    for start, end in zip((0, *ends), (*ends, ids.shape[1]), strict=True):
        output = model(ids[:, start:end], cache=state, use_cache=True)
        state, parts = output.cache, [*parts, output.logits]
    return torch.cat(parts, 1), state


@torch.no_grad()
def test_parts_with_a_state_equal_the_whole(name):
    model, ids = decoder(name), tokens()
    found, state = logits_by_parts(model, ids, (17, 18, 19, 33))
    torch.testing.assert_close(found, model(ids, use_cache=False).logits, rtol=0, atol=1e-12)
    assert state.get_seq_length() == T


@torch.no_grad()
def test_generation_with_a_state_equals_generation_without(name):
    model, ids = speaker(name), tokens(2, 9)
    options = {"max_new_tokens": 9, "do_sample": False}
    found = model.generate(ids, **options)
    assert len(found[:, 9:].unique()) > 2  # no constant text
    # Greedy tokens are the best of each position, given the tokens before them.
    best = model(found[:, :-1], use_cache=False).logits[:, 8:].argmax(-1)
    assert found[:, 9:].equal(best)
    beams = (model.generate(ids, **options, num_beams=3, use_cache=x) for x in (True, False))
    assert next(beams).equal(next(beams))


def test_segments_of_a_stream_train_like_the_papers(name):
    """A later segment's loss reaches the parameters, not the state of earlier segments."""
    model, ids = decoder(name).train(), tokens()
    state = model(ids[:, :24], use_cache=True).cache.detach()
    tensors = [x for layer in state.layers for x in layer.state.state.values()]
    assert not any(x.requires_grad for x in tensors)
    before = [x.clone() for x in tensors]
    model(ids[:, 24:], shift_labels=ids[:, 24:], cache=state).loss.backward()
    assert all(x.equal(y) for x, y in zip(tensors, before, strict=True))
    assert model.model.embeddings.words.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_cleared_rows_forget_their_document(name):
    model, ids = decoder(name), tokens(2)
    other = torch.cat((tokens(2).flip(1)[:1], ids[1:]))
    found = []
    for first in (ids, other):
        state = model(first[:, :20], use_cache=True).cache
        cleared = model.model.clear_rows(state, torch.tensor([True, False]))
        assert cleared.next_positions.tolist() == [0, 20]
        found.append(model(ids[:, 20:], cache=cleared).logits)
        kept = model(ids[:, 20:], cache=state).logits[1]
        torch.testing.assert_close(found[-1][1], kept, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-12)


def assert_left_padding_changes_nothing(model):
    ids = tokens(3, 12)
    starts = (0, 5, 3)
    mask = torch.arange(12) >= torch.tensor(starts)[:, None]
    # To the end of a block or segment, and beyond.
    options = {"max_new_tokens": 14, "do_sample": False}
    found = model(ids, attention_mask=mask, use_cache=False).logits
    generated = model.generate(ids, attention_mask=mask.long(), **options)
    for row, start in enumerate(starts):
        alone = model(generated[row : row + 1, start:-1], use_cache=False).logits[0]
        torch.testing.assert_close(found[row, start:], alone[: 12 - start], rtol=0, atol=1e-12)
        # Greedy tokens are the best of each position, given the tokens before them.
        assert generated[row, 12:].equal(alone[11 - start :].argmax(-1))


def assert_beams_ignore_left_padding(model):
    """Beams move the rows of a state, which have groups of their own if padded."""
    ids, starts = tokens(3, 12), (0, 5, 3)
    mask = torch.arange(12) >= torch.tensor(starts)[:, None]
    options = {"max_new_tokens": 7, "num_beams": 2, "do_sample": False}
    generated = model.generate(ids, attention_mask=mask.long(), **options)
    for row, start in enumerate(starts):
        alone = model.generate(ids[row : row + 1, start:], **options)[0]
        assert generated[row, start:].equal(alone)


@torch.no_grad()
def test_left_padding_changes_nothing(name):
    assert_left_padding_changes_nothing(speaker(name))


@torch.no_grad()
@pytest.mark.parametrize("name", [x for x in CAUSAL if x in WITH_GLOBAL_TOKENS])
def test_tokens_are_global_behind_padding_on_the_left(name):
    model, ids, starts = decoder(name), tokens(3, 33), (0, 5, 3)
    places = torch.arange(33) - torch.tensor(starts)[:, None]
    mask, is_global = places >= 0, (places == 0) | (places == 7)
    found = model(ids, attention_mask=mask, global_attention_mask=is_global, use_cache=False).logits
    for row, start in enumerate(starts):
        part = {"global_attention_mask": is_global[row : row + 1, start:], "use_cache": False}
        alone = model(ids[row : row + 1, start:], **part).logits[0]
        torch.testing.assert_close(found[row, start:], alone, rtol=0, atol=1e-12)


@torch.no_grad()
def test_padding_on_the_left_predicts_nothing(name):
    """The loss of texts of unequal lengths is the mean over the tokens that each has alone."""
    model, ids, starts = decoder(name), tokens(3, 12), (0, 5, 3)
    mask = torch.arange(12) >= torch.tensor(starts)[:, None]
    rows = [ids[row : row + 1, start:] for row, start in enumerate(starts)]
    losses = [model(x, labels=x, use_cache=False).loss * (x.shape[1] - 1) for x in rows]
    expected = sum(losses) / sum(x.shape[1] - 1 for x in rows)
    for labels in (ids, ids.masked_fill(~mask, -100)):
        found = model(ids, attention_mask=mask, labels=labels, use_cache=False).loss
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("name", ["local", "sparse_transformer", "transformer_xl", "compressive"])
def test_beams_ignore_left_padding(name):
    assert_beams_ignore_left_padding(speaker(name))


@torch.no_grad()
def test_prompts_that_end_in_padding_are_refused():
    model, ids = decoder("full"), tokens(2, 20)
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0
    with pytest.raises(InputError, match=r"ends in padding, .* pad prompts on the left"):
        model.generate(ids, attention_mask=mask, max_new_tokens=2)


def test_prompts_in_chunks_generate_what_whole_prompts_do(name):
    """transformers reads a prompt in chunks of `prefill_chunk_size`, which may end in padding."""
    model, ids = speaker(name), tokens(2, 12)
    mask = torch.ones_like(ids)
    # A row of padding alone would begin in a later call, which grids do not allow.
    anchored = model.model.layers[0].attention.mechanism.traits.anchored
    mask[1, : 2 if anchored else 7] = 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    options["num_beams"] = 2 if name in LAYERED else 1
    whole = model.generate(ids, **options)
    assert len(whole[:, 12:].unique()) > 2
    assert model.generate(ids, **options, **PREFILL).equal(whole)


def test_guidance_reads_its_second_text_through_a_state(name):
    """transformers compares with the text that begins at the last token of the prompt."""
    model, ids = speaker(name), tokens(2, 9)
    options = {"max_new_tokens": 8, "do_sample": False, "guidance_scale": 1.5}
    found, expected = (model.generate(ids, use_cache=x, **options) for x in (True, False))
    assert found.equal(expected)


@pytest.mark.parametrize("name", [*LAYERED, "local", "sparse_transformer", "transformer_xl"])
def test_embeddings_generate_what_their_tokens_do(name):
    model, ids = speaker(name), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    embedded = model.get_input_embeddings()(ids)
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    whole = model.generate(ids, **options)
    assert len(whole[:, 9:].unique()) > 2
    for use_cache in (True, False):
        found = model.generate(inputs_embeds=embedded, use_cache=use_cache, **options)
        assert found.equal(whole[:, 9:])
    with pytest.raises(InputError, match="prefill_chunk_size=5 divides input_ids"):
        model.generate(inputs_embeds=embedded, **options, **PREFILL)


@torch.no_grad()
def test_padding_between_tokens_is_refused_where_a_distance_counts_it(name):
    """The trait `ignores_gaps`, through a state: a prompt padded on the right, then new tokens."""
    model, prompt, new = decoder(name), tokens(2, 20), tokens(2, 9)
    mask = torch.ones_like(prompt)
    mask[1, 13:] = 0
    state = model(prompt, mask, use_cache=True).cache
    if name in LAYERED or not MECHANISMS[name].traits.ignores_gaps:
        state.reorder_cache(torch.tensor([1, 0]))
        with pytest.raises(InputError, match=r"pad prompts on the left.* padding in rows \[0\]"):
            model(new, cache=state)
        model(new, cache=model.model.clear_rows(state, torch.tensor([True, False])))
        return
    found = model(new, cache=state).logits
    alone = model(torch.cat((prompt[1:, :13], new[1:]), 1)).logits[0, 13:]
    torch.testing.assert_close(found[1], alone, rtol=0, atol=1e-10)


@torch.no_grad()
def test_padding_between_tokens_is_refused_where_a_position_counts_it():
    """Positions of tokens skip padding; distances in scores do not."""
    ids, mask = tokens(2, 20), torch.ones(2, 20, dtype=torch.bool)
    mask[1, :3] = False
    model = decoder("full", position="learned")
    found = model(ids, mask, cache=model(ids, use_cache=True).cache).logits[1, 3:]
    alone = model(torch.cat((ids[1:], ids[1:, 3:]), 1)).logits[0, 20:]
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-10)
    model = decoder("full", position="t5")
    with pytest.raises(InputError, match=r"full with position='t5' counts it.* rows \[1\]"):
        model(ids, mask, cache=model(ids, use_cache=True).cache)


@torch.no_grad()
def test_prompts_that_begin_in_a_later_call(name):
    """Rows of padding: windows do not count them, grids from the first position do."""
    model, ids = decoder(name), tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[1, :13] = 0
    state = model(ids[:, :9], mask[:, :9], use_cache=True).cache
    if model.model.layers[0].attention.mechanism.traits.anchored:
        with pytest.raises(InputError, match=r"in one call; got padding in rows \[1\]"):
            model(ids[:, 9:], mask[:, 9:], cache=state)
        return
    found = model(ids[:, 9:], mask[:, 9:], cache=state).logits[1, 4:]
    torch.testing.assert_close(found, model(ids[1:, 13:]).logits[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
def test_left_padding_does_not_move_positions(position):
    assert_left_padding_changes_nothing(speaker("local", position=position))


@torch.no_grad()
def test_padded_rows_are_cleared_and_moved_like_others():
    model, ids = decoder("transformer_xl"), tokens(3, 20)
    mask = torch.arange(20) >= torch.tensor([0, 5, 5])[:, None]
    state = model(ids, attention_mask=mask, use_cache=True).cache
    rows = torch.tensor([True, False, False])
    whole = model(ids, cache=model.model.clear_rows(state, rows)).logits
    kept = model(ids, cache=state).logits
    torch.testing.assert_close(whole[1:], kept[1:], rtol=0, atol=1e-12)
    assert not torch.allclose(whole[0], kept[0])
    order = torch.tensor([2, 0, 1, 2])
    state.reorder_cache(order)
    moved = model(ids[order], cache=state).logits
    torch.testing.assert_close(moved, kept[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["conv", "dilated"])
@pytest.mark.parametrize("autoencoder", [False, True])
def test_auxiliary_losses_train_the_compression_only(kind, autoencoder):
    options = {"segment": 8, "memory": 8, "compressed_memory": 4, "ratio": 4}
    options |= {"compression": kind, "autoencoder": autoencoder}
    model = decoder("compressive", attention_options=options).train()
    output = model(tokens(), labels=tokens())
    output.auxiliary_loss.backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained
    assert all(".compression." in n for n in trained)
    assert output.loss > output.auxiliary_loss > 0
    assert model.eval()(tokens(), labels=tokens()).auxiliary_loss is None


def test_the_auxiliary_loss_trains_an_indexer_only():
    model = decoder("indexed", attention_options={"num_selected_keys": 6}).train()
    output = model(tokens(), labels=tokens())
    output.auxiliary_loss.backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {n for n, _ in model.named_parameters() if ".indexer." in n}
    assert output.loss > output.auxiliary_loss > 0
    model.zero_grad(set_to_none=True)
    (output := model(tokens(), labels=tokens())).loss.sub(output.auxiliary_loss).backward()
    assert all(
        p.grad is None or not p.grad.any() for n, p in model.named_parameters() if n in trained
    )


def test_auxiliary_loss_of_segments_is_that_of_the_whole():
    options = {"segment": 8, "memory": 8, "compressed_memory": 4, "ratio": 4, "compression": "conv"}
    dropouts = {"hidden_dropout_prob": 0.0, "attention_dropout": 0.0}
    model = decoder("compressive", attention_options=options, **dropouts).train()
    ids, state, losses = tokens(), None, []
    for part in ids.split(8, 1):
        output = model(part, cache=state, use_cache=True)
        state, losses = output.cache, [*losses, output.auxiliary_loss]
    # Nothing leaves the memory after the first segment, and as many rows after each later one.
    whole = model(ids, use_cache=False).auxiliary_loss
    torch.testing.assert_close(torch.stack(losses[1:]).mean(), whole, rtol=0, atol=1e-12)
    assert losses[0] == 0


def gradients_of_segments(model, detached):
    """Return gradients of two segments, whose state is detached between them or not."""
    model.zero_grad()
    state, total = None, 0
    for part in tokens().split(T // 2, 1):
        output = model(part, labels=part, cache=state, use_cache=True)
        state, total = output.cache, total + output.loss
        ended = model.model.clear_rows(state, torch.tensor([True, *[False] * (len(part) - 1)]))
        state = ended.detach() if detached else ended
    total.backward()
    return {key: x.grad.clone() for key, x in model.named_parameters() if x.grad is not None}


def test_recomputed_activations_pass_gradients_through_the_state_or_refuse_it(name):
    """Reentrant checkpointing would end the gradient at the state without a word."""

    def build():
        return speaker(name, hidden_dropout_prob=0.0, attention_dropout=0.0).train()

    plain, recomputed, reentrant = build(), build(), build()
    recompute_activations(recomputed, {"use_reentrant": False})
    recompute_activations(reentrant, {"use_reentrant": True})
    for detached in (True, False):
        known = gradients_of_segments(plain, detached)
        found = [gradients_of_segments(recomputed, detached)]
        if detached:
            found.append(gradients_of_segments(reentrant, detached))
        for own in found:
            torch.testing.assert_close(own, known, rtol=0, atol=1e-11)
    with pytest.raises(InputError, match="the state has no autograd history"):
        gradients_of_segments(reentrant, detached=False)


def test_any_configuration_makes_a_decoder(tmp_path):
    config = LongspanConfig(attention="local")
    model = LongspanForCausalLM(config)
    assert model.config.is_decoder
    assert not config.is_decoder
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embeddings.words.weight
    ids = tokens()
    torch.testing.assert_close(loaded.eval()(ids).logits, model.eval()(ids).logits)


def test_mechanisms_without_causal_form_are_refused():
    with pytest.raises(OptionError, match="causal form, which linformer does not have; use one"):
        LongspanForCausalLM(LongspanConfig(attention="linformer"))


def test_lengths_are_limited_by_learned_positions_only():
    ids = tokens(1, 60).repeat(1, 2)
    with pytest.raises(InputError, match="max_position_embeddings=64 tokens, got 120"):
        decoder("local", position="learned")(ids)
    assert decoder("local")(ids).logits.shape == (1, 120, 60)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"cache": (1, 2)}, "must be a LongspanCache, got tuple"),
        ({"cache": "other layers"}, "the state is of 1 layers, the model has 2"),
        ({"cache": "other batch"}, "the state is of a batch of 3, got 2 rows"),
    ],
)
def test_foreign_states_are_refused(inputs, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = decoder("local")
    if inputs["cache"] == "other layers":
        other = decoder("local", num_hidden_layers=1)
        inputs = {"cache": other(tokens(2), use_cache=True).cache}
    if inputs["cache"] == "other batch":
        inputs = {"cache": model(tokens(3), use_cache=True).cache}
    with pytest.raises(InputError, match=message):
        model(tokens(2), **inputs)


def decoding_models():
    """Return models that return a state, with the arguments of a first and of a second call."""
    both = LongspanForConditionalGeneration(LongspanConfig(decoder_start_token_id=1)).eval()
    source = {"input_ids": tokens(), "decoder_input_ids": tokens(length=3)}
    first, second = {"input_ids": tokens()}, {"input_ids": tokens(length=2)}
    model = decoder("local")
    return [
        (model, first, second),
        (model.model, first, second),
        (both, source, {"decoder_input_ids": tokens(length=2)}),
        (both.model, source, {"decoder_input_ids": tokens(length=2)}),
    ]


@pytest.mark.parametrize("number", range(4))
def test_state_has_both_names_of_transformers(number):
    """`past_key_values` before transformers 5.24, `cache` since."""
    model, first, second = decoding_models()[number]
    output = model(**first, use_cache=True)
    assert output.past_key_values is output.cache
    found = model(**second, past_key_values=output.cache)[0]
    assert torch.equal(found, model(**second, cache=output.cache)[0])
    with pytest.raises(InputError, match="past_key_values is another name of cache"):
        model(**second, past_key_values=output.cache, cache=output.cache)


def test_generation_continues_a_state_under_the_name_of_the_installed_transformers():
    model, ids = decoder("local"), tokens()
    state = model(ids[:, :-1], use_cache=True).cache
    whole = model.generate(ids, max_new_tokens=4, do_sample=False)
    found = model.generate(ids, max_new_tokens=4, do_sample=False, **{CACHE_NAME: state})
    assert torch.equal(found, whole)
    if CACHE_NAME != "cache":
        state = model(ids[:, :-1], use_cache=True).cache
        with pytest.raises(InputError, match="called past_key_values in `generate`"):
            model.generate(ids, max_new_tokens=4, cache=state)


def test_encoders_have_no_state():
    with pytest.raises(InputError, match="a state between calls requires is_decoder=True"):
        LongspanModel(LongspanConfig())(tokens(), use_cache=True)


def read_tokens(model, ids, **options):
    """Return greedy tokens, and the numbers of tokens that each call reads."""
    calls, run = [], model.forward

    def forward(*args, **kwargs):
        output = run(*args, **kwargs)
        calls.append(output.logits.shape[1])
        return output

    model.forward = forward
    try:
        return model.generate(ids, max_new_tokens=12, do_sample=False, **options), calls
    finally:
        del model.forward


def assistant(name, change):
    """Return `speaker(name)` with changed weights, which drafts four tokens at a time."""
    other = speaker(name)
    for parameter in other.parameters():
        parameter.data += change * torch.randn_like(parameter)
    drafts = {"assistant_confidence_threshold": 0.0, "num_assistant_tokens": 4}
    other.generation_config.update(**drafts)
    return other


def test_generation_with_drafts_equals_generation_without(name):
    """Rejected tokens of a draft are removed from the state of every mechanism."""
    model, ids = speaker(name), tokens(1, 9).repeat(1, 2)
    plain, _ = read_tokens(model, ids)
    for change in (0.0, 1.0):
        found, calls = read_tokens(model, ids, assistant_model=assistant(name, change))
        assert found.equal(plain)
        # Tokens of drafts were accepted, or others were rejected.
        assert sum(calls) > 18 + 12 if change else len(calls) < 8
    assert read_tokens(model, ids, prompt_lookup_num_tokens=3)[0].equal(plain)


def test_drafts_continue_a_prompt_that_begins_with_padding():
    model, ids = decoder("blockwise"), tokens(1, 12)
    mask = torch.arange(12)[None] >= 5
    options = {"attention_mask": mask.long(), "max_new_tokens": 9, "do_sample": False}
    plain = model.generate(ids, **options)
    assert plain.equal(model.generate(ids, prompt_lookup_num_tokens=3, **options))


def test_a_state_without_a_record_refuses_to_forget():
    model, ids = decoder("local"), tokens(1, 9)
    state = model(ids, use_cache=True).cache
    with pytest.raises(InputError, match=r"local\(.* or call activate_past_recording\(\)"):
        state.crop(-2)
    with pytest.raises(InputError, match=r"minus the number of tokens to remove, got 2"):
        state.crop(2)
    state.activate_past_recording()
    longer = model(tokens(1, 4), cache=state, use_cache=True).cache
    longer.crop(-3)
    assert longer.get_seq_length() == 10
    assert longer.next_positions.tolist() == [10]
