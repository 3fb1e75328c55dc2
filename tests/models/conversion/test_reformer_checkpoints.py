"""transformers' Reformer in our classes and back: equal outputs, equal weights, refusals."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, ReformerConfig

from longspan.attention.ops.hashing import RotationHash
from longspan.errors import OptionError
from longspan.models import LongspanConfig, LongspanModel, convert, longify, to_transformers

LENGTH, VOCABULARY, WIDTH, SEED = 64, 40, 16, 3
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "attention_head_size": 5,
    "num_attention_heads": 2,
    "feed_forward_size": 24,
    "max_position_embeddings": LENGTH,
    "axial_pos_shape": [8, 8],
    "axial_pos_embds_dim": [4, 12],
    "attn_layers": ["local", "lsh", "lsh", "local"],
    "lsh_attn_chunk_length": 8,
    "local_attn_chunk_length": 4,
    "num_buckets": [4, 2],
    "num_hashes": 2,
    "hash_seed": SEED,
    **dict.fromkeys(("local_attention_probs_dropout_prob", "hidden_dropout_prob"), 0.0),
}
FORMS = {
    "both": {},
    "decoder": {"is_decoder": True},
    "lsh": {"attn_layers": ["lsh", "lsh"], "num_buckets": 6, "num_hashes": 3},
    "local": {"attn_layers": ["local"], "axial_pos_embds": False, "local_num_chunks_after": 1},
    "chunks": {"lsh_attn_chunk_length": 4, "local_attn_chunk_length": 6, "num_buckets": 4},
}
HEADS = {
    "ReformerModelWithLMHead": {"is_decoder": True},
    "ReformerForMaskedLM": {},
    "ReformerForSequenceClassification": {"num_labels": 3, "problem_type": "regression"},
    "ReformerForQuestionAnswering": {},
}
OURS = {"ReformerModelWithLMHead": "LongspanForCausalLM"}


def make(name="ReformerModel", form="both", **fields):
    """Return a model of transformers whose every parameter affects the outputs."""
    torch.manual_seed(0)
    config = ReformerConfig(**{**SIZES, **FORMS[form], **fields})
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        if hasattr(model, "lm_head") and model.lm_head.decoder.bias is None:
            # transformers before 5.24 leave it out of the logits.
            model.lm_head.bias.zero_()
        elif hasattr(model, "lm_head"):
            model.lm_head.bias.copy_(model.lm_head.decoder.bias)
    return model


def to_float64(model):
    """Return a model in float64, with hashes as transformers draws them in this type."""
    for module in model.double().modules():
        if isinstance(module, RotationHash):
            with torch.random.fork_rng():
                torch.manual_seed(SEED)
                module.rotations = torch.randn(module.rotations.shape, dtype=torch.float64)
    return model


def make_inputs(length=LENGTH, left=True):
    """Return ids and mask; rows are padded on the right, and inside or on the left."""
    torch.manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (4, length))
    mask = torch.ones_like(ids)
    mask[1, 2 * length // 3 :], mask[2, min(length, 3) :] = 0, 0
    if left:
        mask[3, : length // 3], mask[3, -3:-2] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def forward(model, inputs):
    """Call a model; transformers seeds the global generator."""
    with torch.no_grad(), torch.random.fork_rng():
        return model(**inputs, output_hidden_states=True)


def assert_equal_states(ours, theirs, inputs, atol=1e-8):
    """Compare the outputs, and before them the second stream, which transformers returns."""
    mine, other = forward(ours, inputs), forward(theirs, inputs)
    real = inputs["attention_mask"].bool()
    length = real.shape[1]
    pairs = zip(mine.hidden_states[:-1], other.hidden_states, strict=False)
    for a, b in pairs:
        torch.testing.assert_close(a[..., WIDTH:][real], b[:, :length][real], atol=atol, rtol=atol)
    a, b = mine.last_hidden_state, other.last_hidden_state
    torch.testing.assert_close(a[real], b[real], atol=atol, rtol=atol)
    assert len(mine.hidden_states) == len(other.hidden_states)


@pytest.mark.parametrize("form", FORMS)
def test_hidden_states_equal_source(form, tmp_path):
    theirs = make(form=form)
    theirs.save_pretrained(tmp_path)
    ours = convert(tmp_path).model
    assert type(ours) is LongspanModel
    to_float64(ours), theirs.double()
    for length in (1, 3, 5, 8, 9, 24, 30, 43, LENGTH - 4):
        # The positions of a decoder are the numbers of real tokens before them.
        inputs = make_inputs(length, left=form != "decoder")
        assert_equal_states(ours, theirs, inputs)
        whole = {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}
        assert_equal_states(ours, theirs, whole)


@pytest.mark.parametrize("form", ["both", "local"])
def test_hidden_states_equal_source_in_its_own_precision(form, tmp_path):
    theirs = make(form=form)
    theirs.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", out=tmp_path / "ours")
    ours = AutoModel.from_pretrained(tmp_path / "ours").eval()
    names = load_file(tmp_path / "ours" / "model.safetensors")
    assert not [name for name in names if "rotations" in name]
    for length in (24, 43):
        assert_equal_states(ours, theirs, make_inputs(length), atol=1e-4)


def test_gradients_equal_source(tmp_path):
    theirs = make()
    theirs.save_pretrained(tmp_path)
    ours = to_float64(convert(tmp_path).model).train()
    theirs = theirs.double().train()
    inputs = {"input_ids": make_inputs()["input_ids"]}
    cotangent = torch.randn(4, LENGTH, 2 * WIDTH, dtype=torch.float64)
    for model in (ours, theirs):
        with torch.random.fork_rng():
            (model(**inputs).last_hidden_state * cotangent).sum().backward()
    words = (ours.embeddings.words.weight, theirs.embeddings.word_embeddings.weight)
    torch.testing.assert_close(words[0].grad, words[1].grad, atol=1e-7, rtol=1e-7)
    rows = theirs.embeddings.position_embeddings.weights[0].grad[:, 0]
    torch.testing.assert_close(ours.embeddings.axial.rows.weight.grad, rows, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("name", HEADS)
def test_heads_equal_source_both_ways(name, tmp_path):
    theirs = make(name, **HEADS[name])
    theirs.save_pretrained(tmp_path / "source")
    made = convert(tmp_path / "source", out=tmp_path / "ours")
    ours = made.model
    assert type(ours).__name__ == OURS.get(name, name.replace("Reformer", "Longspan"))
    back = to_transformers(tmp_path / "ours", tmp_path / "back").model
    assert type(back) is type(theirs)
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("source", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, before[key]) for key, tensor in after.items())
    contents = [json.loads((tmp_path / x / "config.json").read_text()) for x in ("source", "back")]
    assert contents[1] == contents[0]
    inputs = make_inputs(43, left=False)
    real = inputs["attention_mask"].bool()
    expected = forward(theirs.double(), inputs)
    for model in (to_float64(ours), back.double()):
        found = forward(model, inputs)
        for key in [key for key in expected if key.endswith("logits")]:
            a, b = found[key], expected[key]
            per_token = a.shape[:2] == real.shape
            a, b = (a[real], b[real]) if per_token else (a, b)
            torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


def test_bias_of_the_logits_is_read_from_first_checkpoints(tmp_path):
    """Those of transformers before 5.24 have it as `lm_head.bias`; it is added to the logits."""
    make("ReformerForMaskedLM").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("lm_head.decoder.bias", None)
    weights["lm_head.bias"] = torch.arange(len(weights["lm_head.bias"])) / 9
    save_file(weights, tmp_path / "model.safetensors")
    model = convert(tmp_path).model
    logits, states = (x(make_inputs()["input_ids"])[0] for x in (model, model.model))
    expected = states @ weights["lm_head.decoder.weight"].T + weights["lm_head.bias"]
    torch.testing.assert_close(logits, expected)


def test_number_of_buckets_is_that_of_the_longest_input(tmp_path):
    theirs = make(form="lsh", num_buckets=None)
    theirs.save_pretrained(tmp_path)
    ours = to_float64(convert(tmp_path).model)
    assert_equal_states(ours, theirs.double(), make_inputs())  # transformers decides here
    assert theirs.config.num_buckets == ours.config.attention_options["buckets"][0] == 16


def test_many_buckets_are_a_product_of_hashes(tmp_path):
    fields = {"max_position_embeddings": 4096, "axial_pos_shape": [64, 64], "num_buckets": None}
    theirs = make(form="lsh", lsh_attn_chunk_length=4, **fields)
    theirs.save_pretrained(tmp_path)
    options = convert(tmp_path).model.config.attention_options
    ids = {"input_ids": torch.randint(3, VOCABULARY, (1, 4096))}
    with torch.no_grad(), torch.random.fork_rng():
        theirs(**ids)
    assert theirs.config.num_buckets == options["buckets"] == [32, 64]


def test_hashes_without_a_seed_are_drawn_once(tmp_path):
    theirs = make(form="lsh", hash_seed=None)
    theirs.save_pretrained(tmp_path)
    ours, inputs = convert(tmp_path).model, make_inputs()
    first, second = (forward(ours, inputs).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)
    assert ours.config.attention_options["seed"] == 0


def test_decoder_generates(tmp_path):
    make("ReformerModelWithLMHead", "decoder").save_pretrained(tmp_path)
    ours = convert(tmp_path).model
    ids = make_inputs(20)["input_ids"][:1]
    out = ours.generate(ids, max_new_tokens=1, do_sample=False)
    assert out[0, -1] == ours(ids).logits[0, -1].argmax()
    assert ours.generate(ids, max_new_tokens=20, do_sample=False).shape == (1, 40)


def test_longer_model_takes_other_mechanisms(tmp_path):
    theirs = make(form="local")
    theirs.save_pretrained(tmp_path)
    made = longify(tmp_path, max_length=3 * LENGTH, attention="local", options={"window": 4}).model
    table = made.embeddings.positions.weight
    assert torch.equal(table[LENGTH : 2 * LENGTH], table[:LENGTH])
    assert made(torch.randint(3, VOCABULARY, (1, 150))).last_hidden_state.isfinite().all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lsh_num_chunks_before": 2}, r"chunks before and after that of lsh .* got \(2, 0\)"),
        ({"is_decoder": True, "local_num_chunks_after": 1}, "True with local_num_chunks_after=1"),
        ({"attn_layers": ["full"]}, "attn_layers must be lsh or local, got .'full'."),
        ({"local_attn_chunk_length": 0}, "local_attn_chunk_length=0"),
    ],
    ids=str,
)
def test_source_of_another_form_is_refused(fields, message, tmp_path):
    make().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(OptionError, match=f"cannot be converted: .*{message}"):
        convert(tmp_path)


# A form that transformers has, but for one change.
LSH = {"chunk": 8, "hashes": 2, "buckets": [4], "scale": "none", "same_hashes": True, "grid": 8}
EXPRESSIBLE = {
    **{"vocab_size": VOCABULARY, "hidden_size": WIDTH, "max_position_embeddings": LENGTH},
    **{"residual": "reversible", "qkv_bias": False, "attention_output_bias": False},
    **{"pooling": "first", "position": "axial", "axial_shape": [8, 8], "axial_widths": [4, 12]},
    **{"attention": "reformer", "attention_options": LSH},
}


def test_model_of_this_form_is_expressed(tmp_path):
    ours = LongspanModel(LongspanConfig(**EXPRESSIBLE)).eval()
    back = to_transformers(ours, tmp_path / "back").model
    assert_equal_states(ours, back, make_inputs(43), atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "full", "attention_options": {}}, "every layer must be reformer or blockw"),
        ({"grid": 16}, "option grid of 'reformer' must be 8, got 16"),
        ({"grid": None, "wrap": True}, "option grid of 'reformer' must be 8, got None"),
        ({"buckets": 4}, r"option buckets of 'reformer' must be \[4\], got 4"),
        ({"same_hashes": False}, "option same_hashes of 'reformer' must be True, got False"),
        ({"scale": "root"}, "option scale of 'reformer' must be 'none', got 'root'"),
        ({"residual": "standard"}, "residual must be 'reversible', got 'standard'"),
        ({"qkv_bias": True}, "qkv_bias must be False, got True"),
        ({"position": "none", "axial_shape": None, "axial_widths": None}, "position must be 'lea"),
        ({"feed_forward": "gated"}, "feed_forward must be 'plain', got 'gated'"),
    ],
    ids=str,
)
def test_model_of_another_form_is_refused(fields, message, tmp_path):
    options = {key: x for key, x in fields.items() if key in {*LSH, "wrap"}}
    rest = {key: x for key, x in fields.items() if key not in options}
    changed = EXPRESSIBLE | {"attention_options": LSH | options} | rest
    model = LongspanModel(LongspanConfig(**changed))
    with pytest.raises(OptionError, match=message):
        to_transformers(model, tmp_path / "back", to="reformer")
