"""Checkpoints of sentence-transformers: pooling, length, normalization, nested folders."""

import json

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer

import short_sources
from longspan.arena import RunChoices
from longspan.arena.documents.start import open_start
from longspan.errors import DataError, OptionError
from longspan.models import LongspanDualEncoder, LongspanModel, convert, longify

TYPE = "sentence_transformers.models."
MODES = {"mean": "mean_tokens", "max": "max_tokens", "first": "cls_token", "last": "lasttoken"}


def save(folder, flags=("pooling_mode_mean_tokens",), nested="", others=("Normalize",), **options):
    """Save a checkpoint of a RoBERTa, and return it without its head."""
    theirs = short_sources.make("roberta").base_model.double()
    theirs.save_pretrained(folder / nested)
    short_sources.save_tokenizer(folder / nested)
    names = ["Transformer", "Pooling", *others]
    paths = [nested, *(f"{i}_{name}" for i, name in enumerate(names[1:], 1))]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": TYPE + name}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    pooling = {"word_embedding_dimension": 16, "pooling_mode_weightedmean_tokens": False}
    write(folder / "modules.json", modules)
    write(folder / "1_Pooling" / "config.json", pooling | dict.fromkeys(flags, True))
    write(folder / nested / "sentence_bert_config.json", {"max_seq_length": 9} | options)
    return theirs.eval()


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def make_inputs():
    ids = torch.randint(5, 40, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    return ids.masked_fill(mask == 0, 1), mask


@torch.no_grad()
@pytest.mark.parametrize("nested", ["", "0_Transformer"])
@pytest.mark.parametrize("pooling", MODES)
def test_embeddings_equal_pooled_states(pooling, nested, tmp_path):
    theirs = save(tmp_path / "source", (f"pooling_mode_{MODES[pooling]}",), nested)
    made = convert(tmp_path / "source", out=tmp_path / "out")
    assert type(made.model) is LongspanModel
    ids, mask = make_inputs()
    states = theirs(ids, attention_mask=mask).last_hidden_state
    expected = {
        "mean": torch.stack((states[0].mean(0), states[1, :7].mean(0))),
        "max": torch.stack((states[0].amax(0), states[1, :7].amax(0))),
        "first": states[:, 0],
        "last": torch.stack((states[0, 11], states[1, 6])),
    }[pooling]
    found = made.model(ids, attention_mask=mask).pooler_output
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    encoder = LongspanDualEncoder.from_pretrained(tmp_path / "out").eval()
    normalized = encoder.encode_query(ids, mask)
    torch.testing.assert_close(normalized, F.normalize(expected, dim=-1), atol=1e-10, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.model_max_length == made.tokenizer.model_max_length == 9


def test_longer_model_keeps_the_pooling_and_has_its_own_length(tmp_path):
    save(tmp_path, nested="0_Transformer", others=())
    made = longify(tmp_path, max_length=50, attention="local")
    assert (made.model.config.pooling, made.model.config.similarity) == ("mean", "dot")
    assert made.tokenizer.model_max_length == 50


def test_mode_and_length_of_version_6_are_read(tmp_path):
    """It writes the name of the mode, and the length into the configuration of the tokenizer."""
    save(tmp_path, max_seq_length=None)
    AutoTokenizer.from_pretrained(tmp_path, model_max_length=8).save_pretrained(tmp_path)
    assert convert(tmp_path).tokenizer.model_max_length == 8
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "cls", "include_prompt": True})
    assert convert(tmp_path).model.config.pooling == "first"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flags": ("pooling_mode_sum",)}, "has the pooling sum, expected one of mean, max, cls"),
        (
            {"flags": ("pooling_mode_mean_tokens", "pooling_mode_cls_token")},
            "has the pooling mean and cls",
        ),
        ({"flags": ()}, "has the pooling None"),
        ({"others": ("Dense", "Normalize")}, "lists Transformer, Pooling, Dense, Normalize; exp"),
        ({"do_lower_case": True}, "has do_lower_case=True"),
    ],
)
def test_module_without_counterpart_is_refused(change, message, tmp_path):
    save(tmp_path, **change)
    with pytest.raises(OptionError, match=message):
        convert(tmp_path)


def test_prompts_outside_the_pooling_are_refused(tmp_path):
    save(tmp_path)
    content = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    write(tmp_path / "1_Pooling" / "config.json", content)
    with pytest.raises(OptionError, match="has include_prompt=False"):
        convert(tmp_path)


def test_malformed_files_are_refused(tmp_path):
    save(tmp_path, max_seq_length="9")
    with pytest.raises(DataError, match="max_seq_length='9', expected a positive number"):
        convert(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    write(tmp_path / "modules.json", [modules[0] | {"path": "../x"}, *modules[1:]])
    with pytest.raises(DataError, match=r"lists \.\./x, expected a folder inside"):
        convert(tmp_path)
    write(tmp_path / "modules.json", {"0": 1})
    with pytest.raises(DataError, match=r"modules.json lists no modules"):
        convert(tmp_path)


def test_nested_folders_are_downloaded(tmp_path, monkeypatch):
    """The second call asks for the folders that `modules.json` lists."""
    from longspan.models.conversion import source

    save(tmp_path, nested="0_Transformer")
    calls = []

    def download(name, allow_patterns, ignore_patterns=None, **options):
        calls.append((allow_patterns, ignore_patterns))
        return str(tmp_path)

    monkeypatch.setattr(source, "snapshot_download", download)
    assert convert("owner/name").model.config.pooling == "mean"
    assert len(calls) == 2
    assert {"0_Transformer/model*.safetensors", "1_Pooling/*.json"} <= set(calls[1][0])


def test_stored_conversion_is_that_of_the_configuration_and_the_modules(tmp_path):
    """It was found by the weights alone, and had no pooling."""
    folder = tmp_path / "source"

    def start():
        return open_start(str(folder), "listops", RunChoices(), tmp_path / "cache")[0].config

    save(folder, ("pooling_mode_cls_token",), "0_Transformer")
    assert (start().pooling, start().similarity) == ("first", "cosine")
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_max_tokens": True})
    assert start().pooling == "max"
    path = folder / "0_Transformer" / "config.json"
    write(path, json.loads(path.read_text()) | {"layer_norm_eps": 0.125})
    assert start().layer_norm_eps == 0.125
    assert len([*(tmp_path / "cache" / "checkpoints").iterdir()]) == 3
