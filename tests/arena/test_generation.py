"""Text generation from folders and runs: vocabularies, streaming, seeds, refusals."""

import shutil

import numpy as np
import pytest
import torch

import tiny
from causal_checkpoints import PROMPT, ToyBytes, make_model, save_folder, save_run
from longspan.arena import RunPaths, generate
from longspan.config import DecodingConfig
from longspan.errors import DataError, OptionError, UnknownNameError
from longspan.models import (
    LongspanConfig,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanForSequenceClassification,
    LongspanModel,
)
from longspan.tasks import register

IDS = [byte + 1 for byte in PROMPT.encode()]
SHORT = DecodingConfig(max_new_tokens=24, seed=3)


@pytest.fixture
def paths(tmp_path):
    return RunPaths(cache=tmp_path / "cache", device="cpu")


@pytest.fixture
def folder(tmp_path):
    return save_folder(tmp_path / "model")


@pytest.fixture
def stream(registries):
    register(ToyBytes)


def as_text(ids):
    return (np.array(ids) - 1).astype(np.uint8).tobytes().decode(errors="replace")


@pytest.fixture(params=["folder", "record", "directory", "best model"])
def checkpoint(request, tmp_path, paths, stream):
    """Checkpoint of one model in each of its forms."""
    if request.param == "folder":
        return save_folder(tmp_path / "model")
    record = save_run(tmp_path, paths.cache)
    directory = tmp_path / "work" / "run"
    return {"record": record, "directory": directory}.get(request.param, directory / "best-000001")


def test_every_form_of_a_checkpoint_generates_the_same(checkpoint, paths):
    greedy = DecodingConfig(max_new_tokens=24, greedy=True)
    found = generate(checkpoint, PROMPT, config=greedy, paths=paths)
    expected = make_model().generate(torch.tensor([IDS]), max_new_tokens=24, do_sample=False)
    assert found.ids == expected[0, len(IDS) :].tolist()
    assert found.prompt_tokens == len(IDS)
    assert (found.steps, found.has_ended) == (23, False)
    assert min(found.prompt_seconds, found.seconds, found.state_bytes) > 0


def test_text_of_a_run_is_that_of_its_task(tmp_path, paths, stream):
    pieces = []
    record = save_run(tmp_path, paths.cache)
    found = generate(record, PROMPT, config=SHORT, paths=paths, on_text=pieces.append)
    assert found.text == as_text(found.ids)
    assert "".join(pieces) == found.text
    assert len(pieces) > 6
    assert all(pieces)


def test_ids_are_continued_like_their_text(folder, paths):
    found = generate(folder, IDS, config=SHORT, paths=paths)
    assert found.ids == generate(folder, PROMPT, config=SHORT, paths=paths).ids
    assert isinstance(found.text, str)


def test_ids_need_no_vocabulary(tmp_path, paths):
    bare, pieces = save_folder(tmp_path / "bare", tokenizer=False), []
    found = generate(bare, IDS, config=SHORT, paths=paths, on_text=pieces.append)
    assert found.text is None
    assert [int(x) for x in "".join(pieces).split(",")] == found.ids
    with pytest.raises(OptionError, match="bare has no tokenizer, and is of no run on a task of"):
        generate(bare, PROMPT, paths=paths)


def test_end_token_is_no_text(tmp_path, paths):
    model = make_model()
    ids = generate(save_folder(tmp_path / "a", model), PROMPT, config=SHORT, paths=paths).ids
    end = ids[10]
    model.generation_config.eos_token_id = end
    found = generate(save_folder(tmp_path / "b", model), PROMPT, config=SHORT, paths=paths)
    assert found.has_ended
    assert found.ids == ids[: ids.index(end) + 1]
    prefix = ids[: ids.index(end)]
    shorter = DecodingConfig(max_new_tokens=len(prefix), seed=3)
    whole = generate(save_folder(tmp_path / "c"), PROMPT, config=shorter, paths=paths)
    assert (whole.ids, found.text) == (prefix, whole.text)


def sample(folder, global_seed):
    torch.manual_seed(global_seed)
    return generate(folder, PROMPT, config=SHORT, paths=RunPaths(device="cpu")).ids


def test_samples_are_the_same_in_another_process(folder, paths):
    own = sample(folder, 8)
    assert tiny.call_elsewhere(sample, folder, 9) == own
    other = DecodingConfig(max_new_tokens=24, seed=4)
    assert generate(folder, PROMPT, config=other, paths=paths).ids != own


OTHERS = {
    "LongspanForMaskedLM": LongspanForMaskedLM,
    "LongspanForSequenceClassification": LongspanForSequenceClassification,
    "LongspanModel": LongspanModel,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_refused(name, tmp_path, paths):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    OTHERS[name](LongspanConfig(vocab_size=257, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(OptionError) as error:
        generate(tmp_path, IDS, paths=paths)
    assert str(error.value) == (
        f"{tmp_path} is of {name}; longspan generate continues texts with LongspanForCausalLM, a "
        "decoder trained to predict the next token"
    )


def test_encoder_decoder_is_referred_to_predict(tmp_path, paths):
    config = LongspanConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        is_encoder_decoder=True, decoder_start_token_id=1,
    )  # fmt: skip
    LongspanForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="longspan predict writes the texts of a run of it"):
        generate(tmp_path, IDS, paths=paths)


def test_missing_weights_are_refused(folder, paths):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"lacks 1 weights of LongspanForCausalLM, such as lm_head"):
        generate(folder, PROMPT, paths=paths)


def test_unknown_task_of_a_run_needs_its_plugin(tmp_path, paths):
    record = save_run(tmp_path, paths.cache)
    with pytest.raises(UnknownNameError, match="'toy_bytes', which is not registered here; pass"):
        generate(record, PROMPT, paths=paths)
    assert generate(record, IDS, config=SHORT, paths=paths).text is None


def test_other_data_than_that_of_the_run_is_refused(tmp_path, paths, stream, monkeypatch):
    record = save_run(tmp_path, paths.cache)
    shutil.rmtree(paths.cache)
    monkeypatch.setattr(ToyBytes, "encode", lambda *_: np.array([7], np.uint16))
    with pytest.raises(DataError, match=r"was trained on data \w{12}, but the data here is \w{12}"):
        generate(record, PROMPT, paths=paths)


def test_checkpoint_that_is_none_is_refused(tmp_path, paths):
    with pytest.raises(DataError, match="gone is no folder; name the record"):
        generate(tmp_path / "gone", PROMPT, paths=paths)
