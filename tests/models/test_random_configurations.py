"""Random combinations of fields: padding, rows of documents, states and stored models."""

import itertools
import random

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.errors import OptionError, UnknownNameError
from longspan.models import LongspanForCausalLM, LongspanForMaskedLM

T = 24
# Values that a field has in a quarter of the configurations, one of them.
FIELDS = {
    "attention_head_size": [2, 4],
    "embedding_size": [5, 8],
    "type_vocab_size": [2],
    "scale_embedding": [True],
    "feed_forward": ["gated"],
    "linear_bias": [False],
    "short_convolution": [2, 4],
    "output_norm": ["rms"],
    "output_gate": ["silu", "sigmoid"],
    "position": ["learned", "sinusoidal", "rotary", "t5", "relative", "none"],
    "has_relative_attention_bias": [True],
    "num_hidden_groups": [1],
    "norm": ["post"],
    "norm_type": ["rms_norm"],
    "residual": ["reversible"],
    "embedding_norm": [True],
    "first_attention_norm": [True],
    "pooling": ["cls", "first"],
    "default_global_tokens": ["first"],
    "tie_word_embeddings": [False],
    "adaptive_cutoffs": [[7]],
}


def draw_model(seed, small):
    """Return a model whose random fields fit one another."""
    draw = random.Random(seed)
    while True:
        causal, layers = draw.random() < 0.5, draw.choice([1, 2, 3])
        names = [name for name, cls in MECHANISMS.items() if cls.traits.causal or not causal]
        attention = draw.choices(names, k=layers)
        if draw.random() < 0.7:
            attention = attention[:1] * layers
        fields = {
            "attention": attention,
            "attention_options": [dict(MECHANISMS[x].small_options) for x in attention],
            "is_decoder": causal,
            "num_hidden_layers": layers,
            **{x: draw.choice(y) for x, y in FIELDS.items() if draw.random() < 0.25},
        }
        if len(set(attention)) == 1:
            fields |= {x: fields[x][0] for x in ("attention", "attention_options")}
        cls = LongspanForCausalLM if causal else LongspanForMaskedLM
        try:
            return cls(small(**fields)).double().eval()
        except (OptionError, UnknownNameError):
            continue


configurations = pytest.mark.parametrize(
    "seed", [*range(30), *(pytest.param(x, marks=pytest.mark.slow) for x in range(30, 300))]
)


@pytest.fixture
def case(seed, small):
    """Return a model and inputs of three rows, some of their tokens global."""
    model = draw_model(seed, small)
    config, inputs = model.config, {"input_ids": torch.randint(1, 50, (3, T))}
    if config.type_vocab_size:
        inputs["token_type_ids"] = torch.randint(0, 2, (3, T))
    if config.supports_global_tokens and config.default_global_tokens == "none" and seed % 4:
        inputs["global_attention_mask"] = torch.rand(3, T) < 0.2
    if config.is_decoder:
        inputs["use_cache"] = False
    return model, inputs


def take(inputs, row, piece=slice(None)):
    """Return the inputs of some tokens of one row."""
    return {x: y[row : row + 1, piece] if torch.is_tensor(y) else y for x, y in inputs.items()}


def assert_near(found, expected, what):
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9, msg=lambda x: f"{what}: {x}")


@configurations
@torch.no_grad()
def test_padded_rows_equal_rows_alone(case):
    model, inputs = case
    for start, end in ((0, T - 5), (3, T))[: 1 + model.config.is_decoder]:
        mask = torch.ones(3, T, dtype=torch.bool)
        mask[0], mask[0, start:end] = False, True
        found = model(**inputs, attention_mask=mask).logits
        expected = model(**take(inputs, 0, slice(start, end))).logits[0]
        assert_near(found[0, start:end], expected, f"tokens {start} to {end}")
        assert_near(found[1], model(**take(inputs, 1)).logits[0], "another row")


@configurations
@torch.no_grad()
def test_documents_of_a_row_equal_documents_alone(case):
    model, inputs = case
    ends = (0, 7, 8, 20, T)
    row = take(inputs, 0)
    places = [torch.arange(end - start) for start, end in itertools.pairwise(ends)]
    row["position_ids"] = torch.cat(places)[None]
    found = model(**row).logits[0]
    for start, end in itertools.pairwise(ends):
        expected = model(**take(inputs, 0, slice(start, end))).logits[0]
        assert_near(found[start:end], expected, f"document {start} to {end}")


@configurations
@torch.no_grad()
def test_steps_equal_the_whole(case, seed):
    model, inputs = case
    if not model.config.is_decoder or "global_attention_mask" in inputs:
        pytest.skip("no state")
    ids, types, cache, parts = inputs["input_ids"], inputs.get("token_type_ids"), None, []
    ends = (0, *sorted(random.Random(seed).sample(range(1, T), 6)), T)
    for start, end in itertools.pairwise(ends):
        more = {} if types is None else {"token_type_ids": types[:, start:end]}
        output = model(ids[:, start:end], cache=cache, use_cache=True, **more)
        cache, parts = output.cache, [*parts, output.logits]
    assert_near(torch.cat(parts, 1), model(**inputs).logits, "steps")


@configurations
def test_recomputed_activations_and_stored_models_change_nothing(case, tmp_path):
    model, inputs = case
    expected = model(**inputs).logits.detach()
    model.train()
    gradients = []
    for recompute in (False, True):
        model.zero_grad()
        if recompute:
            model.gradient_checkpointing_enable()
        torch.manual_seed(3)
        model(**inputs).logits.square().sum().backward()
        gradients.append({x: y.grad for x, y in model.named_parameters() if y.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, x in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], x, rtol=1e-7, atol=1e-8, msg=name)
    model.save_pretrained(tmp_path)
    stored = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert_near(stored(**inputs).logits.detach(), expected, "stored")
