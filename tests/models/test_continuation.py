"""Continuations: greedy tokens, prompts read in pieces, samples, refusals."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from test_causal import speaker

from longspan.attention import MECHANISMS
from longspan.attention.cache import MOST_UNUSED
from longspan.config import DecodingConfig
from longspan.errors import InputError, OptionError, RunError
from longspan.models import Continuation

CAUSAL = sorted(name for name, cls in MECHANISMS.items() if cls.traits.causal)
PROMPT = torch.randint(1, 60, (40,), generator=torch.Generator().manual_seed(2)).numpy()


@pytest.fixture(params=CAUSAL)
def name(request):
    return request.param


def decoder(name="local", **changes):
    return speaker(name, **{"num_hidden_layers": 2, **changes})


def tokens_of(model, prompt=PROMPT, **settings):
    return list(Continuation(model, prompt, DecodingConfig(**settings)))


def test_greedy_tokens_are_those_of_transformers(name):
    model = decoder(name)
    expected = model.generate(torch.from_numpy(PROMPT)[None], max_new_tokens=12, do_sample=False)
    expected = expected[0, len(PROMPT) :].tolist()
    assert len(set(expected)) > 2  # no constant text
    assert tokens_of(model, greedy=True, max_new_tokens=12, prefill_chunk_size=7) == expected


def test_pieces_of_a_prompt_equal_one_call(name):
    """The state is compared by the logits that follow from it."""
    model, next_tokens = speaker(name), torch.arange(1, 13)[None]
    with torch.no_grad():
        ids = torch.cat((torch.from_numpy(PROMPT)[None], next_tokens), 1)
        whole = model(ids, use_cache=False).logits[0, len(PROMPT) - 1 :]
    one_call = None
    # Single tokens are the business of `step`, whatever the model.
    for size in (len(PROMPT), 7, 39, *([1] if name == "compressive" else [])):
        run = Continuation(
            model, PROMPT, DecodingConfig(max_new_tokens=13, prefill_chunk_size=size)
        )
        with torch.no_grad():
            after = model(next_tokens, cache=run.state).logits[0]
        found = torch.cat((run._scores.double(), after))
        one_call = found if one_call is None else one_call
        assert run.state.get_seq_length() == len(PROMPT)
        torch.testing.assert_close(found, one_call, rtol=0, atol=1e-6)
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-5)


def test_each_call_reads_at_most_one_chunk():
    model, read = decoder(), []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(args[0].shape[1]), with_kwargs=True
    )
    tokens_of(model, max_new_tokens=3, prefill_chunk_size=16)
    assert read == [16, 16, 8, 1, 1]  # the last new token is not read


def test_state_of_a_window_does_not_grow_with_the_prompt():
    def state_bytes(model, tokens):
        run = Continuation(model, np.resize(PROMPT, tokens), DecodingConfig(prefill_chunk_size=64))
        return run.state.num_bytes

    window, full = decoder("local"), decoder("full")
    assert state_bytes(window, 1280) == state_bytes(window, 320)
    assert state_bytes(full, 1280) == pytest.approx(4 * state_bytes(full, 320), rel=1 / MOST_UNUSED)


def test_bytes_of_the_state_are_those_of_its_keys_and_values():
    model = decoder("full")
    with torch.no_grad():
        state = model(torch.from_numpy(PROMPT)[None], use_cache=True).cache
    # Keys and values of 40 tokens in 32 dimensions of eight bytes, in each of two layers.
    assert state.num_bytes == 2 * 2 * 40 * 32 * 8
    shared = [layer.state.groups[0].cache.state for layer in state.layers]
    shared[1]["k"] = shared[0]["k"][:, :, :1]  # a view of a storage that is counted already
    assert state.num_bytes == 3 * 40 * 32 * 8


def test_samples_depend_on_their_seed_alone():
    model = decoder()
    torch.manual_seed(5)
    first = tokens_of(model, seed=3, max_new_tokens=30)
    torch.manual_seed(6)
    before = torch.random.get_rng_state()
    assert tokens_of(model, seed=3, max_new_tokens=30) == first
    assert torch.random.get_rng_state().equal(before)
    assert tokens_of(model, seed=4, max_new_tokens=30) != first


class Fixed(torch.nn.Module):
    """Replace the logits of a model by the logarithms of given probabilities."""

    def __init__(self, probabilities):
        super().__init__()
        logs = [math.log(p) for p in probabilities]
        self.logits = torch.tensor(logs + [-math.inf] * (60 - len(logs)), dtype=torch.float64)

    def forward(self, x):
        return self.logits.expand(*x.shape[:-1], -1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        ({"top_k": 2}, [0.625, 0.375]),
        ({"top_p": 0.9}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95]),
        ({"top_k": 2, "top_p": 0.6}, [1.0]),  # 0.625 of what top_k leaves
        ({"top_p": 1.0, "top_k": 100}, [0.5, 0.3, 0.15, 0.05]),
        ({"greedy": True}, [1.0]),
    ],
    ids=str,
)
def test_tokens_have_the_frequencies_of_their_distribution(settings, expected):
    model = decoder("linear", num_hidden_layers=1)
    model.lm_head = Fixed([0.5, 0.3, 0.15, 0.05])
    run, count = Continuation(model, PROMPT, DecodingConfig(**settings)), 2000
    found = Counter(run._draw() for _ in range(count))
    assert set(found) <= set(range(len(expected)))
    for token, share in enumerate(expected):
        error = math.sqrt(share * (1 - share) / count)
        assert abs(found[token] / count - share) <= 4 * error


@pytest.mark.parametrize("ends", [7, [3, 7]])
def test_end_token_ends_the_text(ends):
    model = decoder()
    whole = tokens_of(model, greedy=True, max_new_tokens=24)
    end = whole[5]
    model.generation_config.eos_token_id = end if isinstance(ends, int) else [59, end]
    run = Continuation(model, PROMPT, DecodingConfig(greedy=True, max_new_tokens=24))
    found = list(run)
    assert found == whole[: whole.index(end) + 1]
    assert run.has_ended
    assert run.steps == len(found) - 1
    expected = model.generate(
        torch.from_numpy(PROMPT)[None], max_new_tokens=24, do_sample=False, pad_token_id=0
    )
    assert found == expected[0, len(PROMPT) :].tolist()


def test_text_without_end_token_has_not_ended():
    run = Continuation(decoder(), PROMPT, DecodingConfig(max_new_tokens=4))
    assert len(list(run)) == 4
    assert not run.has_ended


def test_last_new_token_needs_no_position():
    model = decoder(position="learned")
    assert len(tokens_of(model, max_new_tokens=25)) == 25  # 40 + 25 - 1 = 64
    with pytest.raises(InputError) as error:
        tokens_of(model, max_new_tokens=26)
    assert str(error.value) == (
        "a prompt of 40 tokens with 26 new ones needs 65 positions, the model has 64; shorten the "
        "prompt to 39 tokens, or set max_new_tokens to 25 or less"
    )
    with pytest.raises(InputError, match=r"has 64; shorten the prompt to 63 tokens$"):
        tokens_of(model, np.resize(PROMPT, 90), max_new_tokens=2)
    with pytest.raises(InputError, match=r"has 64; shorten both$"):
        tokens_of(model, np.resize(PROMPT, 90), max_new_tokens=90)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt has no tokens"),
        ([3, 60], r"of the prompt must be in 0..59, got 3..60; encode it with the checkpoint's"),
        ([-1, 3], r"of the prompt must be in 0..59, got -1..3"),
        ([0.5], "token ids must be integers, got float64"),
    ],
    ids=str,
)
def test_unusable_prompts_are_refused(prompt, message):
    with pytest.raises(InputError, match=message):
        Continuation(decoder(), np.array(prompt), DecodingConfig())


def test_nan_is_refused():
    model = decoder()
    torch.nn.init.constant_(model.lm_head.weight, math.nan)
    for greedy in (True, False):
        with pytest.raises(RunError, match="the model predicts NaN"):
            tokens_of(model, greedy=greedy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature must be > 0, got 0; for the most probable tokens, set"),
        ({"temperature": -1.0}, "temperature must be > 0, got -1"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, "top_p must be > 0 and at most 1, got 0"),
        ({"top_p": 1.5}, "top_p must be > 0 and at most 1, got 1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"prefill_chunk_size": 0}, "prefill_chunk_size must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"greedy": True, "top_k": 4}, "greedy decoding samples nothing; omit temperature"),
        ({"greedy": True, "temperature": 0.5}, "greedy decoding samples nothing"),
        ({"top_k": 0, "top_p": 2.0}, "top_k must be at least 1, got 0; top_p must be > 0"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(OptionError, match=message):
        DecodingConfig(**settings)
