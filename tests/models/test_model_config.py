"""Model configuration: validation, defaults and serialization."""

import copy
import dataclasses
import json

import pytest
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig, PreTrainedConfig

from longspan.config.architecture import declared, option
from longspan.errors import InputError, OptionError, UnknownNameError
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.conversion.to_source import list_differences
from longspan.models.parts import decoder_config
from longspan.training.stage_weights import find_architecture_refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 66, "num_attention_heads": 4}, "hidden_size=66 .* num_attention_heads=4"),
        ({"hidden_size": 6, "num_attention_heads": 2, "position": "rotary"}, "even .* got 3; ch"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob must be in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout must be in"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be at least 0, got -1"),
        ({"max_position_embeddings": -5, "vocab_size": 0}, "vocab_size .* 0; max_position_.* -5"),
        ({"input_features": 0}, "input_features must be at least 1, got 0"),
        ({"attention_head_size": -4}, "attention_head_size must be at least 1, got -4"),
        ({"rotary_base": 1.0}, "rotary_base must be a finite number above 1, got 1.0"),
        ({"rotary_base": [1e4]}, "rotary_base must be one value or a list .*=2 values, got 1"),
        ({"norm": "post", "embedding_norm": True}, "embedding_norm=True is of pre-norm models"),
        ({"first_attention_norm": True}, "first_attention_norm=True requires embedding_norm=True"),
        ({"attention_head_size": 5, "position": "rotary"}, "an even head width, got 5"),
        ({"num_hidden_groups": 3}, "num_hidden_groups must be at most num_hidden_layers=2, got 3"),
        ({"num_hidden_groups": 0}, "num_hidden_groups must be at least 1, got 0"),
        ({"num_hidden_groups": 1, "attention": ["full"] * 2}, "=1 requires one attention for all"),
        ({"num_hidden_groups": 1, "embedding_norm": True}, "requires first_attention_norm=True"),
        (
            {
                **{"num_hidden_groups": 1, "attention": "longformer"},
                "attention_options": {"window": [2, 3]},
            },
            "requires one value of each option for all layers",
        ),
        (
            {"has_relative_attention_bias": True, "position": "relative"},
            "position='relative': both add numbers to scores",
        ),
        (
            {"has_relative_attention_bias": True, "attention": "linear"},
            "has_relative_attention_bias=True adds numbers to scores, which linear",
        ),
    ],
)
def test_invalid_values_are_rejected(fields, message):
    with pytest.raises(OptionError, match=message):
        LongspanConfig(**fields)


def test_option_of_the_mechanism_is_no_field():
    with pytest.raises(OptionError, match=r"give it as attention_options=\{'window': 3\}"):
        LongspanConfig(attention="local", window=3)
    with pytest.raises(OptionError, match=r"attention_options=\{'rank': 8\}"):
        LongspanConfig(attention=["local", "linformer"], rank=8)
    with pytest.raises(UnknownNameError, match="no field of LongspanConfig called 'rank'"):
        LongspanConfig(attention="local", rank=8)


def test_invalid_problem_type_is_rejected():
    """transformers 5.16 checks the value itself, first."""
    errors = (OptionError, StrictDataclassFieldValidationError)
    with pytest.raises(errors, match=r"problem_type.*several"):
        LongspanConfig(problem_type="several")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position": "rotari"}, "no position called 'rotari'; did you mean rotary"),
        ({"feed_forward": "gate"}, "no feed_forward called 'gate'; did you mean gated"),
        ({"norm": "middle"}, "no norm called 'middle'; there are: post, pre"),
        ({"decoder_start": "bos"}, "no decoder_start called 'bos'; there are: last, token"),
        ({"pooling": "sum"}, "no pooling called 'sum'"),
        ({"pair_head": "interact"}, "no pair_head called 'interact'; did you mean interaction"),
        ({"hidden_act": "gellu"}, "no hidden_act called 'gellu'; did you mean gelu"),
        ({"attention": "ful"}, "no mechanism called 'ful'; did you mean full"),
        ({"attention_options": {"window": 3}}, "no option of 'full' called 'window'"),
        ({"attention_backend": "torhc"}, "no backend of 'full' called 'torhc'; did you mean torch"),
        ({"hiden_size": 8}, "no field of LongspanConfig called 'hiden_size'; did you mean hidden"),
    ],
)
def test_unknown_names_are_rejected_with_suggestions(fields, message):
    with pytest.raises(UnknownNameError, match=message):
        LongspanConfig(**fields)


NOTES = {
    "my_note": 1,
    "tokenizer_class": "BertTokenizerFast",
    "task_specific_params": {"summarization": {"num_beams": 4}},
    "hiden_size": 8,
}


@pytest.mark.parametrize("cls", [LongspanConfig, AutoConfig])
def test_fields_of_others_survive_saving_and_loading(small, tmp_path, logged, cls):
    config = small()
    for name, value in NOTES.items():
        setattr(config, name, value)
    LongspanModel(config).save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in NOTES} == NOTES
    assert f"LongspanConfig has not: {', '.join(sorted(NOTES))}" in logged.text
    assert loaded.hidden_size == config.hidden_size
    loaded.save_pretrained(tmp_path / "again")
    again = cls.from_pretrained(tmp_path / "again", pooling="first")
    assert again.to_diff_dict() == {**loaded.to_diff_dict(), "pooling": "first"}
    assert copy.deepcopy(again).my_note == 1
    assert LongspanModel.from_pretrained(tmp_path).config.my_note == 1


def test_loading_without_fields_of_others_says_nothing(small, tmp_path, logged):
    LongspanModel(small()).save_pretrained(tmp_path)
    LongspanConfig.from_pretrained(tmp_path)
    assert not logged.records


def test_model_checks_values_assigned_after_construction(small):
    config = small()
    config.num_attention_heads = 3
    with pytest.raises(OptionError, match="num_attention_heads=3"):
        LongspanModel(config)


def test_attention_head_size_is_independent_of_hidden_size(small):
    config = small(hidden_size=30, num_attention_heads=4, attention_head_size=6)
    assert (config.head_dim, config.all_head_size) == (6, 24)
    assert (small().head_dim, small().all_head_size) == (8, 16)
    attention = LongspanModel(config).layers[0].attention
    shapes = {
        name: tuple(x.weight.shape)
        for name, x in attention.named_children()
        if hasattr(x, "weight")
    }
    assert shapes == {"query": (24, 30), "key": (24, 30), "value": (24, 30), "output": (30, 24)}


def test_saved_configuration_loads_equal(small, tmp_path):
    config = small(attention="local", attention_options={"window": 5}, norm="post", num_labels=7)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is LongspanConfig
    assert loaded.num_labels == 7
    assert loaded.to_diff_dict() == config.to_diff_dict()
    assert loaded.attention_options == {"window": 5}
    assert "attention_dropout" in json.loads((tmp_path / "config.json").read_text())


def test_configurations_do_not_share_options(small):
    first, second = small(), small()
    first.attention_options["window"] = 3
    assert second.attention_options == {}


@pytest.mark.parametrize(("pooling", "maximum"), [("mean", 40), ("cls", 41), ("first", 40)])
def test_sequence_length_includes_summary_and_is_bounded(small, pooling, maximum):
    config = small(pooling=pooling)
    assert config.sequence_length(40) == config.max_sequence_length == maximum
    with pytest.raises(InputError, match=r"max_position_embeddings=40 tokens, got 41; truncate"):
        config.sequence_length(41)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("longformer", {"window": [4, 4, 4]}, "window of longformer .* 2 layers, got 3"),
        ("dilated", {"dilation": [[1, 2]]}, "dilation of dilated .* 2 layers, got 1"),
        ("linformer", {"rank": [4, 4, 4]}, "rank of linformer .* 2 layers, got 3"),
    ],
)
def test_lists_of_another_number_of_layers_are_refused(name, options, reason):
    with pytest.raises(OptionError, match=reason):
        LongspanConfig(attention=name, attention_options=options)


def test_a_dilation_for_each_head_is_no_list_of_layers():
    LongspanConfig(num_hidden_layers=3, attention="dilated", attention_options={"dilation": [1, 2]})


def test_a_new_field_is_known_to_all_that_read_declarations():
    """One declaration gives choices, bounds, architecture, differences and the decoder's fields."""

    @strict
    class Newer(LongspanConfig):
        shade: str = option("dark", choices=("dark", "light"), weights=True, decoder=True)
        depth: int = option(3, bounds=(1, 9), effect="none", in_decoder=4)

    config = Newer(is_encoder_decoder=True, decoder_overrides={"shade": "light"})
    decoder = decoder_config(config)
    assert (config.shade, decoder.shade, config.depth, decoder.depth) == ("dark", "light", 3, 4)
    with pytest.raises(UnknownNameError, match="no shade called 'pale'; there are: dark, light"):
        Newer(shade="pale")
    with pytest.raises(OptionError, match="depth must be at most 9, got 10"):
        Newer(depth=10)
    assert find_architecture_refusals(Newer(), Newer(shade="light", depth=5)) == [
        "shade is 'dark' there, 'light' here"
    ]
    assert list_differences(Newer(), Newer(shade="light", depth=5), ()) == [
        "shade must be 'light', got 'dark'"
    ]


def test_every_field_is_declared_by_option():
    names = {x.name for x in dataclasses.fields(LongspanConfig)} - {
        x.name for x in dataclasses.fields(PreTrainedConfig)
    }
    assert names <= declared(LongspanConfig, "effect").keys()
