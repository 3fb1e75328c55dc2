"""Sources and requests that `longify` refuses: one clear reason each, and nothing written."""

import json
import shlex

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModel,
    DebertaV2Config,
    LlamaConfig,
    OPTConfig,
    RobertaConfig,
    XLMRobertaXLConfig,
)

import longspan
import short_sources
from longspan.errors import DataError, LongspanError, OptionError, UnknownNameError
from longspan.models import LongspanConfig, LongspanForMaskedLM, LongspanModel, longify
from longspan.models.conversion.families import FAMILIES
from longspan.models.conversion.source import describe_refusal

LENGTH, LONG = short_sources.LENGTH, 50
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}


def convert(folder, **options):
    return longify(folder, **{"attention": "full", "max_length": LONG, **options})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_length": LENGTH - 1}, OptionError, r"at least the 20 tokens of the source, got 19"),
        ({"attention": "locl"}, UnknownNameError, r"no mechanism called 'locl'"),
        ({"options": {"window": 3}}, UnknownNameError, r"'window'"),
        ({"positions": "rescale"}, UnknownNameError, r"learned positions called 'rescale'"),
        ({"freeze": "everything"}, UnknownNameError, r"freeze called 'everything'"),
        (
            {"freeze": "all-but-positions", "max_length": LENGTH},
            OptionError,
            r"trains the positions beyond the 20 of the source, and max_length=20 adds none",
        ),
        ({"attention": "synthesizer"}, OptionError, r"synthesizer has no query and key"),
        ({"revision": "main"}, OptionError, r"is a folder, which has no revision"),
        ({"attention": ["full"]}, OptionError, r"list of num_hidden_layers=2 values, got 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_request_is_refused(roberta, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        convert(roberta[1], out=tmp_path / "out", **options)
    assert [x.name for x in tmp_path.iterdir()] == ["source"]


def test_existing_folder_is_not_overwritten(roberta, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(OptionError, match="out exists; remove it"):
        convert(roberta[1], out=tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_failed_write_leaves_no_folder(roberta, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LongspanModel.__mro__[1], "save_pretrained", fail)
    with pytest.raises(LongspanError, match="No space left on device"):
        convert(roberta[1], out=tmp_path / "out")
    assert [x.name for x in tmp_path.iterdir()] == ["source"]


OTHERS = sorted(CONFIG_MAPPING.keys() - FAMILIES.keys() - {LongspanConfig.model_type})
TEXT = {kind for kind in OTHERS if CONFIG_MAPPING[kind] in MODEL_FOR_MASKED_LM_MAPPING}
KINDS = [kind if kind in TEXT else pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS]
KEPT = r"longspan.swap\(AutoModel.from_pretrained\(SOURCE\), MECHANISM\)"
NO_SWAP = "longspan.swap cannot replace its attention"


@pytest.mark.parametrize("kind", KINDS)
def test_every_other_kind_is_refused_by_name(kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    expected = f"has model_type '{kind}', which is not converted.*({KEPT}|{NO_SWAP}).*albert, bart"
    with pytest.raises(OptionError, match=expected):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("deberta-v2", f"disentangled attention\\); .* converted is bert; {NO_SWAP}"),
        ("llama", f"heads may share keys and values, .* converted is gpt2; .*{KEPT}"),
        ("umt5", "converted is bart"),
        ("vit", "it is no language model, and no family is near"),
        ("no_such_kind", "which transformers does not know; check config.json"),
    ],
)
def test_refused_kind_is_told_the_nearest_family(kind, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(OptionError, match=message):
        convert(tmp_path)


SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("config", "works"),
    [
        (LlamaConfig(**SMALL, intermediate_size=24, num_key_value_heads=1), True),
        (OPTConfig(**SMALL, ffn_dim=24, word_embed_proj_dim=16), True),
        (XLMRobertaXLConfig(**SMALL, intermediate_size=24), True),
        (DebertaV2Config(**SMALL, intermediate_size=24), False),
    ],
)
def test_swap_does_what_the_refusal_says(config, works):
    model = AutoModel.from_config(config).eval()
    assert ("longspan.swap(" in describe_refusal(config.model_type)) == works
    if works:
        assert longspan.swap(model, "local").swapped
        return
    with pytest.raises(LongspanError):
        longspan.swap(model, "local")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"is_decoder": True}, "is_decoder=True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"pad_token_id": None}, "pad_token_id=None"),
    ],
)
def test_source_that_is_no_plain_encoder_is_refused(roberta, field, message):
    path = roberta[1] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | field))
    with pytest.raises(OptionError, match=f"cannot be converted: {message}"):
        convert(roberta[1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mlp_bias": True}, "attention_bias=False, mlp_bias=True"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            "full_attention has rope_type='linear'",
        ),
    ],
)
def test_modernbert_of_another_form_is_refused(tmp_path, fields, message):
    short_sources.make("modernbert", **fields).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match=f"cannot be converted: {message}"):
        convert(tmp_path)


def test_rotary_positions_cannot_be_tiled_or_trained(tmp_path):
    short_sources.make("modernbert").save_pretrained(tmp_path)
    with pytest.raises(UnknownNameError, match="rotary positions called 'tile'"):
        convert(tmp_path, positions="tile")
    with pytest.raises(OptionError, match="trains learned positions, the source has rotary ones"):
        convert(tmp_path, freeze="all-but-positions")


def test_name_that_is_neither_folder_nor_repository_is_refused():
    with pytest.raises(DataError, match="is no folder, and cannot be downloaded"):
        convert("no//such//name")


def test_remedy_for_pickled_weights_keeps_the_head(source, monkeypatch, tmp_path):
    theirs, folder = source
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    short_sources.save_tokenizer(folder)
    expected = r"weights in pytorch_model.bin only, expected model.safetensors: "
    with pytest.raises(DataError, match=expected) as error:
        convert(folder)
    command = shlex.split(str(error.value).splitlines()[-1])
    assert command[:2] == ["python", "-c"]
    monkeypatch.chdir(tmp_path)
    exec(command[2], {})
    made = convert(tmp_path / "FOLDER")
    assert type(made.model) is LongspanForMaskedLM
    assert made.tokenizer is not None
    ids = torch.arange(5, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(made.model(ids).logits, theirs(ids).logits, **TOLERANCE)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(DataError, match=r"holds no model.safetensors"):
        convert(folder)


def edit(folder, change):
    """Change the saved weights."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


MISSING = "roberta.encoder.layer.1.output.dense.bias"


def test_missing_weight_is_refused_unless_named(roberta):
    _, folder = roberta
    edit(folder, lambda weights: weights.pop(MISSING))
    with pytest.raises(DataError, match=r"lacks encoder.layer.1.output.dense.bias; .* --new"):
        convert(folder)
    rows = convert(folder, new=["*.feed_forward.output.bias"]).weights
    (row,) = [x for x in rows if x.action == "new"]
    assert row.target == "model.layers.1.feed_forward.output.bias"
    edit(folder, lambda weights: weights.pop("roberta.embeddings.word_embeddings.weight"))
    renewed = {row.target for row in convert(folder, new=["*"]).weights if row.action == "new"}
    assert renewed == {row.target, "model.embeddings.words.weight"}


@pytest.mark.parametrize("pattern", ["roberta.adapter.weight", "adapter.*"])
def test_left_over_weight_is_refused_unless_named(roberta, pattern):
    _, folder = roberta
    edit(folder, lambda weights: weights.update({"roberta.adapter.weight": torch.ones(2)}))
    with pytest.raises(DataError, match=r"has roberta.adapter.weight, .* --drop"):
        convert(folder)
    rows = convert(folder, drop=[pattern]).weights
    (row,) = [x for x in rows if x.source == "roberta.adapter.weight"]
    assert row.action == "dropped: named by the caller"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor([float("nan")] * 16), r"has 16 of 16 values that are not finite; .* --new"),
        (torch.tensor([1.0] * 15 + [float("inf")]), r"has 1 of 16 values that are not finite"),
        (torch.ones(16, dtype=torch.int8), r"has dtype torch.int8, expected .*float32.*dequantize"),
        (torch.ones(16).to(torch.float8_e4m3fn), r"has dtype torch.float8_e4m3fn, expected"),
    ],
)
def test_weight_that_is_no_finite_number_is_refused(roberta, tmp_path, value, message):
    """Of a source and of a model of ours; one that is dropped does no harm."""
    edit(roberta[1], lambda weights: weights.update({MISSING: value}))
    with pytest.raises(DataError, match=f"{MISSING} {message}"):
        convert(roberta[1])
    dropped = convert(roberta[1], drop=[MISSING], new=["*.1.feed_forward.output.bias"])
    assert all(x.isfinite().all() for x in dropped.model.parameters())
    dropped.model.save_pretrained(tmp_path / "own")
    name = "model.layers.1.feed_forward.output.bias"
    edit(tmp_path / "own", lambda weights: weights.update({name: value}))
    with pytest.raises(DataError, match=f"{name} {message}"):
        convert(tmp_path / "own")


def test_dropped_head_gives_model_without_it(roberta):
    made = convert(roberta[1], drop=["lm_head.*"])
    assert type(made.model) is LongspanModel


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("roberta.embeddings.LayerNorm.weight", (8,), r"has shape \(8,\), .* expected \(16,\)"),
        (
            "roberta.embeddings.position_embeddings.weight",
            (9, 16),
            "position table has 9 rows, config.json states 22",
        ),
    ],
)
def test_weight_of_another_shape_is_refused(roberta, name, shape, message):
    edit(roberta[1], lambda weights: weights.update({name: torch.ones(shape)}))
    with pytest.raises(DataError, match=message):
        convert(roberta[1])


def test_damaged_weights_and_missing_shard_are_refused(roberta):
    model, folder = roberta
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"model.safetensors cannot be read .* download it again"):
        convert(folder)
    path.unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"]["lacking"] = next(iter(listed["weight_map"].values()))
    index.write_text(json.dumps(listed))
    with pytest.raises(DataError, match=r"lacks lacking, which model.safetensors.index.json lists"):
        convert(folder)
    sorted(folder.glob("model-*.safetensors"))[0].unlink()
    with pytest.raises(DataError, match="cannot be read"):
        convert(folder)
    index.write_text("{}")
    with pytest.raises(DataError, match="has no weight_map"):
        convert(folder)


def test_tokenizer_of_another_vocabulary_is_refused(roberta):
    short_sources.save_tokenizer(roberta[1], size=short_sources.VOCABULARY + 3)
    with pytest.raises(DataError, match="its largest id is 42, vocab_size is 40"):
        convert(roberta[1])


def test_tokenizer_with_another_padding_is_refused(tmp_path):
    short_sources.make("bert", pad_token_id=0).save_pretrained(tmp_path)
    short_sources.save_tokenizer(tmp_path)
    with pytest.raises(DataError, match="its pad_token_id is 1, that of the model 0"):
        convert(tmp_path)


def test_source_without_tokenizer_is_converted_without(tmp_path):
    short_sources.make("electra").save_pretrained(tmp_path)
    assert convert(tmp_path).tokenizer is None


def test_config_without_model_type_is_refused(tmp_path):
    RobertaConfig().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(OptionError, match="model_type None"):
        convert(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(DataError, match=r"config.json does not exist"):
        convert(tmp_path)
