"""Conversion of short encoders: equal outputs, positions, and a row for each weight."""

from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    BertTokenizer,
)

import longspan
import short_sources
from longspan.attention import MECHANISMS
from longspan.models import LongspanForMaskedLM, LongspanModel, convert, longify
from longspan.models.positions import position_angles

LENGTH, LONG = short_sources.LENGTH, 50
# Attention to all pairs of a short input.
COVERING = {
    "full": {},
    "local": {"window": LENGTH},
    "longformer": {"window": LENGTH, "global_projections": True},
}
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}


def make_inputs(padding="right", length=LENGTH):
    """Return ids, mask and types of three rows, padded on a side."""
    torch.manual_seed(1)
    ids = torch.randint(5, short_sources.VOCABULARY, (3, length))
    mask = torch.ones_like(ids)
    for row, real in enumerate((length, length - 7, 1)):
        mask[row, slice(real, None) if padding == "right" else slice(0, length - real)] = 0
    if padding == "hidden":  # ordinary tokens, not padding
        mask[:], mask[1:, 4:9] = 1, 0
    ids[mask == 0] = 7 if padding == "hidden" else 1
    types = (torch.arange(length) >= length // 2).long().expand(3, length)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def of_model(model, inputs):
    """Leave out types, if the model has none."""
    kept = inputs if model.config.type_vocab_size else set(inputs) - {"token_type_ids"}
    return {name: inputs[name] for name in kept}


def assert_equal_outputs(ours, theirs, inputs, **tolerance):
    """Compare all states and the logits at real tokens."""
    inputs = of_model(ours, inputs)
    with torch.no_grad():
        mine = ours(**inputs, output_hidden_states=True)
        other = theirs(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].bool()
    assert len(mine.hidden_states) == len(other.hidden_states)
    pairs = [*zip(mine.hidden_states, other.hidden_states, strict=True)]
    if isinstance(ours, LongspanForMaskedLM):
        pairs.append((mine.logits, other.logits))
    for a, b in pairs:
        torch.testing.assert_close(a[real], b[real], **(tolerance or TOLERANCE))


@pytest.mark.parametrize("padding", ["right", "left", "hidden"])
def test_converted_model_equals_source_in_float64(source, padding):
    theirs, folder = source
    theirs.double().save_pretrained(folder)
    ours = convert(folder).model
    # ModernBERT's rotations are rounded to float32.
    rounding = 1e-5 if ours.config.position == "rotary" else 1e-10
    assert_equal_outputs(ours, theirs, make_inputs(padding), atol=rounding, rtol=rounding)


@pytest.mark.parametrize("attention", COVERING)
@pytest.mark.parametrize("padding", ["right", "left", "hidden"])
def test_outputs_equal_source(source, attention, padding):
    theirs, folder = source
    made = longify(folder, attention=attention, options=COVERING[attention], max_length=LONG)
    assert type(made.model) is LongspanForMaskedLM
    assert_equal_outputs(made.model, theirs, make_inputs(padding))


def test_outputs_of_model_without_head_equal_source(source, tmp_path):
    theirs = source[0].base_model
    theirs.save_pretrained(tmp_path / "base")
    ours = longify(tmp_path / "base", attention="full", max_length=LONG).model
    assert type(ours) is LongspanModel
    inputs = of_model(ours, make_inputs())
    assert_equal_outputs(ours, theirs, inputs)
    first = theirs(**inputs).last_hidden_state[:, 0]
    torch.testing.assert_close(ours(**inputs).pooler_output, first, **TOLERANCE)


def test_written_folder_loads_with_auto_classes(roberta, tmp_path):
    theirs, folder = roberta
    out = tmp_path / "parents" / "long"
    made = longify(folder, attention="local", options={"window": LENGTH}, max_length=LONG, out=out)
    assert_equal_outputs(AutoModelForMaskedLM.from_pretrained(out).eval(), theirs, make_inputs())
    assert_equal_outputs(AutoModel.from_pretrained(out), theirs.base_model, make_inputs())
    assert [x.name for x in out.parent.iterdir()] == ["long"]
    text = " ".join(["7", "8"] * 40)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.model_max_length == made.tokenizer.model_max_length == LONG
    before = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(text).input_ids == before(text).input_ids
    assert len(tokenizer(text, truncation=True).input_ids) == LONG


def test_tokenizer_of_its_own_class_is_carried_over(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    short_sources.make("bert", pad_token_id=0).save_pretrained(source)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "long", "doc", "##ument", "##s"]
    BertTokenizer(vocab={word: i for i, word in enumerate(words)}).save_pretrained(source)
    longify(source, attention="full", max_length=LONG, out=out)
    before, after = (AutoTokenizer.from_pretrained(x) for x in (source, out))
    assert type(after) is type(before)
    assert before("Long documents", "doc").data == after("Long documents", "doc").data
    assert after("Long documents").input_ids == [2, 5, 6, 7, 8, 3]
    assert len(after("long " * 99, truncation=True).input_ids) == LONG


def test_dtype_of_source_is_kept(roberta):
    model, folder = roberta
    model.to(torch.bfloat16).save_pretrained(folder)
    made = longify(folder, attention="longformer", max_length=LONG).model
    assert {x.dtype for x in made.parameters()} == {torch.bfloat16}


NORM = "encoder.layer.0.output.LayerNorm.weight"


@pytest.mark.parametrize("most", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("one", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_are_joined_without_loss_and_named(roberta, most, one):
    """float32 norms beside float16 matrices, or one bfloat16 tensor, cost no digit."""
    model, folder = roberta
    model.to(most)
    norm = model.roberta.get_submodule(NORM.removesuffix(".weight"))
    norm.weight.data = norm.weight.data.to(one)
    model.save_pretrained(folder)
    made = longify(folder, attention="longformer", max_length=LONG)
    joined = torch.promote_types(most, one)
    assert {x.dtype for x in made.model.parameters()} == {joined}
    before, after = model.state_dict(), made.model.state_dict()
    for row in (
        x for x in made.weights if x.action.startswith("copied") and "rows" not in x.action
    ):
        tensor = before[row.source]
        assert torch.equal(after[row.target], tensor.to(joined))
        change = f", {str(tensor.dtype)[6:]} to {str(joined)[6:]}"
        assert row.action == "copied" + (change if tensor.dtype != joined else "")


def position_tables(source, **options):
    """Return the learned rows of a source, and the table of its conversion."""
    model, folder = source
    old = model.base_model.embeddings.position_embeddings.weight.detach()[-LENGTH:]
    made = longify(folder, attention="full", max_length=LONG, **options).model
    return old, made.model.embeddings.positions.weight.detach()


@pytest.mark.parametrize("name", ["bert", "roberta", "electra"])
def test_tiled_positions_repeat_learned_ones(name, tmp_path):
    model = short_sources.make(name)
    model.save_pretrained(tmp_path)
    old, new = position_tables((model, tmp_path))
    assert torch.equal(new, torch.cat((old, old, old))[:LONG])


def test_kept_positions_are_followed_by_new_ones(roberta):
    old, new = position_tables(roberta, positions="keep")
    assert torch.equal(new[:LENGTH], old)
    assert new[LENGTH:].std() == pytest.approx(0.02, rel=0.2)
    assert torch.equal(position_tables(roberta, positions="keep")[1], new)
    assert not torch.equal(position_tables(roberta, positions="keep", seed=1)[1], new)


def test_interpolated_positions_follow_numpy(roberta):
    old, new = position_tables(roberta, positions="interpolate")
    places = np.linspace(0, LENGTH - 1, LONG)
    expected = [np.interp(places, np.arange(LENGTH), column) for column in old.T.numpy()]
    np.testing.assert_allclose(new.T, expected, atol=1e-6)


def test_rescaled_rotations_span_the_new_length(tmp_path):
    """The slowest rotation is slower by the factor of the length, in layers without a window."""
    model = short_sources.make("modernbert")
    model.save_pretrained(tmp_path)
    made = {
        method: longify(tmp_path, attention="full", max_length=LONG, positions=method).model
        for method in ("keep", "rescale")
    }
    assert made["keep"].config.rotary_base == [160_000, 10_000, 160_000]
    bases = made["rescale"].config.rotary_base
    assert bases[1] == 10_000
    width = made["keep"].config.head_dim
    for base in (bases[0], bases[2]):
        old, new = (
            position_angles(torch.ones(1, 1).long(), width, dtype=torch.float64, base=x)
            for x in (160_000.0, base)
        )
        assert new[..., 0] == old[..., 0] == 1
        assert float(new[..., -1] * LONG) == pytest.approx(float(old[..., -1] * LENGTH))
    # A model that rotates as the source does: equal beyond the length of the source as well.
    with torch.no_grad():
        long = make_inputs(length=LONG)
        del long["token_type_ids"]
        real = long["attention_mask"].bool()
        expected = model(**long).logits[real]
        assert torch.allclose(made["keep"](**long).logits[real], expected, **TOLERANCE)
        assert not torch.allclose(made["rescale"](**long).logits[real], expected, **TOLERANCE)


def test_layers_with_a_window_keep_it(tmp_path):
    short_sources.make("modernbert").save_pretrained(tmp_path)
    config = longify(tmp_path, attention="linformer", max_length=LONG).model.config
    assert config.attention == ["linformer", "local", "linformer"]
    assert config.attention_options == [{}, {"window": 3}, {}]
    listed = longify(tmp_path, attention=["full"] * 3, max_length=LONG).model.config
    assert listed.attention == ["full"] * 3


def test_modernbert_with_biases_equals_source(tmp_path):
    biased = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
    theirs = short_sources.make("modernbert", **dict.fromkeys(biased, True))
    theirs.save_pretrained(tmp_path)
    made = longify(tmp_path, attention="full", max_length=LONG)
    assert type(made.model) is LongspanForMaskedLM
    assert_equal_outputs(made.model, theirs, make_inputs())


def test_positions_of_same_length_are_copied(roberta):
    _, folder = roberta
    rows = longify(folder, attention="full", max_length=LENGTH).weights
    (row,) = [x for x in rows if x.target == "model.embeddings.positions.weight"]
    assert row.action == "copied, without the first 2 (padding)"


# Names of weights are those of the source, whatever the mechanism, which has others of its own.
OTHERS = sorted(
    x for x, c in MECHANISMS.items() if c.traits.inputs != "v" and x not in ("full", "longformer")
)
SOURCES = [
    *((kind, name) for kind in short_sources.SOURCES for name in ("full", "longformer")),
    *(("roberta", name) for name in OTHERS),
]


@pytest.mark.parametrize(("source", "attention"), SOURCES, indirect=["source"])
def test_table_accounts_for_every_weight(source, attention):
    _, folder = source
    made = longify(folder, attention=attention, max_length=LONG)
    saved = {x: tuple(y.shape) for x, y in load_file(folder / "model.safetensors").items()}
    sources = [row.source for row in made.weights if row.source]
    targets = {row.target: row for row in made.weights if row.target}
    # Each once, and the matrix of ModernBERT's projections once for each part.
    parts = {"Wqkv": 3, "Wi": 2}
    assert Counter(sources) == {name: parts.get(name.split(".")[-2], 1) for name in saved}
    state = made.model.state_dict()
    assert targets.keys() == state.keys()
    assert len(targets) == sum(row.target is not None for row in made.weights)
    for name, row in targets.items():
        assert row.shape == tuple(state[name].shape)
        if row.action == "copied":
            assert row.shape == saved[row.source]
    for row in made.weights:
        own = row.target is not None and (".mechanism." in row.target or "shared" in row.target)
        assert row.action != "new" or own


def test_global_projections_start_from_local_ones(roberta):
    model, folder = roberta
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()  # as in many checkpoints: equal biases have different origins
    model.save_pretrained(folder)
    options = {"global_projections": True}
    made = longify(folder, attention="longformer", options=options, max_length=LONG)
    projections = made.model.model.layers[1].attention
    own = projections.mechanism.projections
    for part in ("query", "key", "value"):
        assert torch.equal(getattr(own, part).weight, getattr(projections, part).weight)
        assert torch.equal(getattr(own, part).bias, getattr(projections, part).bias)
    actions = {row.target: row.action for row in made.weights}
    name = "model.layers.1.attention"
    for part in ("query", "key", "value"):
        for kind in ("weight", "bias"):
            started = actions[f"{name}.mechanism.projections.{part}.{kind}"]
            assert started == f"started from {name}.{part}.{kind}"


def test_unused_projections_and_heads_are_dropped_with_reason(tmp_path):
    model = short_sources.make("bert")
    state = model.state_dict()
    state["bert.pooler.dense.weight"] = torch.ones(16, 16)
    state["cls.seq_relationship.bias"] = torch.ones(2)
    model.save_pretrained(tmp_path)
    del state["cls.predictions.decoder.bias"]
    save_file({x: y.contiguous().clone() for x, y in state.items()}, tmp_path / "model.safetensors")
    rows = longify(tmp_path, attention="reformer", max_length=LONG).weights
    dropped = {row.source: row.action for row in rows if row.target is None}
    key = "bert.encoder.layer.{}.attention.self.key.{}"
    keys = {key.format(i, x) for i in (0, 1) for x in ("weight", "bias")}
    assert dropped == {
        **dict.fromkeys(keys, "dropped: the mechanism has no such projection"),
        "bert.pooler.dense.weight": "dropped: the pooled state is that of the first token",
        "cls.seq_relationship.bias": "dropped: next-sentence head, which is not used",
        "cls.predictions.decoder.weight": "dropped: equals the word embeddings, to which it is "
        "tied",
    }


def test_names_of_first_checkpoints_and_shards_are_read(tmp_path):
    model = short_sources.make("bert")
    model.save_pretrained(tmp_path / "new", max_shard_size="4KB")
    assert (tmp_path / "new" / "model.safetensors.index.json").is_file()
    model.save_pretrained(tmp_path / "old")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): x
        for name, x in load_file(tmp_path / "old" / "model.safetensors").items()
    }
    assert any("gamma" in name for name in old)
    save_file(old, tmp_path / "old" / "model.safetensors")
    for name in ("new", "old"):
        made = longify(tmp_path / name, attention="full", max_length=LONG).model
        assert_equal_outputs(made, model, make_inputs())


def test_output_matrix_of_its_own_is_not_tied(tmp_path):
    model = short_sources.make("bert", tie_word_embeddings=False)
    words = model.get_input_embeddings().weight
    assert not torch.equal(model.get_output_embeddings().weight, words)
    model.save_pretrained(tmp_path / "source")
    longify(tmp_path / "source", attention="full", max_length=LONG, out=tmp_path / "out")
    ours = LongspanForMaskedLM.from_pretrained(tmp_path / "out")
    assert_equal_outputs(ours, model, make_inputs())


def test_output_matrix_that_differs_from_the_embeddings_is_not_tied(tmp_path):
    """transformers unties them as well, whatever config.json states."""
    short_sources.make("bert").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    own = torch.randn_like(weights["bert.embeddings.word_embeddings.weight"])
    save_file({**weights, "cls.predictions.decoder.weight": own}, path)
    made = longify(tmp_path, attention="full", max_length=LONG)
    assert torch.equal(made.model.lm_head.weight, own)
    assert not made.model.config.tie_word_embeddings
    assert_equal_outputs(made.model, BertForMaskedLM.from_pretrained(tmp_path), make_inputs())


def test_head_with_another_activation_is_dropped(tmp_path):
    short_sources.make("roberta", hidden_act="relu").save_pretrained(tmp_path)
    made = longify(tmp_path, attention="full", max_length=LONG)
    assert type(made.model) is LongspanModel
    reasons = {x.action for x in made.weights if (x.source or "").startswith("lm_head.")}
    assert reasons == {"dropped: the head's activation is gelu, that of the layers relu"}


def test_list_of_mechanisms_gives_each_layer_its_own(roberta):
    theirs, folder = roberta
    options = [{"window": LENGTH}, {}]
    made = longify(folder, attention=["local", "full"], options=options, max_length=LONG).model
    assert [x.attention.mechanism.name for x in made.model.layers] == ["local", "full"]
    assert_equal_outputs(made, theirs, make_inputs())


def test_top_level_name_is_the_function():
    assert longspan.longify is longify


def test_global_random_state_is_not_touched(roberta):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    longify(roberta[1], attention="bigbird", max_length=LONG, positions="keep")
    assert torch.equal(torch.rand(1), expected)
