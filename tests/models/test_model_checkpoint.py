"""Saving and loading of models, and activation checkpointing."""

import runpy
from pathlib import Path

import pytest
import torch

import tiny
from longspan.attention import MECHANISMS
from longspan.models import (
    LongspanDualEncoder,
    LongspanEncoderDecoderModel,
    LongspanForCausalLM,
    LongspanForMaskedLM,
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanModel,
    LongspanPreTrainedModel,
    attention_layer,
)
from longspan.training.distributed.sharding import recompute_activations

IDS = torch.arange(1, 21).view(2, 10)


def load_and_call(folder):
    """Return the logits of a saved model, as a list."""
    conftest = Path(__file__).with_name("conftest.py")
    MECHANISMS["stateful"] = runpy.run_path(str(conftest))["Stateful"]
    torch.manual_seed(99)
    model = LongspanForSequenceClassification.from_pretrained(folder)
    return model.eval()(IDS).logits.tolist()


def perturb(model):
    """Change every saved value of the model from its initial value."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return model.eval()


def test_checkpoint_gives_the_same_logits_in_another_process(small, stateful, tmp_path):
    model = perturb(LongspanForSequenceClassification(small(attention=stateful, num_labels=3)))
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    found = torch.tensor(tiny.call_elsewhere(load_and_call, tmp_path))
    torch.testing.assert_close(found, model(IDS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_state_missing_from_checkpoint_is_initialized_by_mechanism(
    small, stateful, tmp_path, dtype
):
    model = perturb(LongspanModel(small()))
    model.to(dtype).save_pretrained(tmp_path)
    loaded, report = LongspanModel.from_pretrained(
        tmp_path, attention=stateful, output_loading_info=True
    )
    assert any("mechanism" in key for key in report["missing_keys"])
    fresh = LongspanModel(small(attention=stateful))
    for layer in range(2):
        mine = loaded.layers[layer].attention
        own = fresh.layers[layer].attention
        for name in ("gate", "saved", "unsaved", "mix.weight", "mix.bias"):
            path, _, leaf = name.rpartition(".")
            value = getattr(mine.mechanism.get_submodule(path), leaf)
            expected = getattr(own.mechanism.get_submodule(path), leaf)
            assert value.dtype == dtype
            assert value.equal(expected.to(dtype)), name
        assert mine.query.weight.equal(model.layers[layer].attention.query.weight)


def test_mechanisms_initialize_themselves(small, stateful):
    model = LongspanForSequenceClassification(small(attention=stateful))
    for i, layer in enumerate(model.model.layers):
        own = MECHANISMS[stateful](heads=2, layer=i)
        for name, tensor in own.state_dict().items():
            assert layer.attention.mechanism.state_dict()[name].equal(tensor), name


def test_mechanisms_are_built_once(small, stateful, monkeypatch):
    built, build = [], attention_layer.build_mechanism
    monkeypatch.setattr(attention_layer, "build_mechanism", lambda *a: built.append(1) or build(*a))
    LongspanForSequenceClassification(small(attention=stateful))
    assert len(built) == 2


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_mechanism_is_saved_and_loaded(small, name, tmp_path):
    model = LongspanForSequenceClassification(small(attention=name)).eval()
    model.save_pretrained(tmp_path)
    torch.manual_seed(5)
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)


LONGFORMER = {
    "attention": "longformer",
    "attention_options": {"window": 2, "first_global": True, "global_projections": True},
}


def global_and_local(model):
    """Return the parameters of the global projections, and those of the layers, in pairs."""
    for layer in model.layers:
        own = layer.attention.mechanism.projections
        for name in ("query", "key", "value"):
            for kind in ("weight", "bias"):
                yield (
                    getattr(getattr(own, name), kind),
                    getattr(getattr(layer.attention, name), kind),
                )


def test_global_projections_start_as_copies_and_are_loaded_as_saved(small, tmp_path):
    model = LongspanModel(small(**LONGFORMER))
    assert all(own.equal(local) for own, local in global_and_local(model))
    perturb(model).save_pretrained(tmp_path)
    loaded = LongspanModel.from_pretrained(tmp_path)
    for (own, local), (saved, _) in zip(
        global_and_local(loaded), global_and_local(model), strict=True
    ):
        assert own.equal(saved)
        assert not own.equal(local)


def test_global_projections_missing_from_checkpoint_are_copies_of_loaded_ones(small, tmp_path):
    perturb(LongspanModel(small(attention="local"))).save_pretrained(tmp_path)
    loaded = LongspanModel.from_pretrained(tmp_path, **LONGFORMER)
    pairs = list(global_and_local(loaded))
    assert all(own.equal(local) for own, local in pairs)
    assert all(local.abs().sum() > 0 for _, local in pairs)


def test_encoder_checkpoint_loads_into_model_with_head(small, tmp_path):
    encoder = perturb(LongspanModel(small()))
    encoder.save_pretrained(tmp_path)
    model = LongspanForPairClassification.from_pretrained(tmp_path, num_labels=5)
    torch.testing.assert_close(model.model(IDS).pooler_output, encoder(IDS).pooler_output)
    assert model(IDS, IDS).logits.isfinite().all()
    weight = model.classifier.hidden.weight
    assert weight.std().item() == pytest.approx(0.3, rel=0.2)


@pytest.mark.parametrize("attention", ["full", "local"])
def test_activation_checkpointing_changes_memory_only(small, attention):
    config = small(attention=attention, hidden_dropout_prob=0.2, attention_dropout=0.2)
    model = LongspanForSequenceClassification(config).double().train()
    ids, mask = torch.randint(1, 50, (3, 12)), torch.rand(3, 12) > 0.2
    runs, calls = [], []
    model.model.layers[0].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    for enabled in (False, True):
        if enabled:
            recompute_activations(model)
        model.zero_grad()
        torch.manual_seed(3)
        logits = model(ids, mask).logits
        logits.sin().sum().backward()
        runs.append([logits, *(p.grad.clone() for p in model.parameters())])
    # One call in the first run, two in the second: forward and recomputation in backward.
    assert len(calls) == 3
    for plain, checkpointed in zip(*runs, strict=True):
        torch.testing.assert_close(checkpointed, plain, atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("cls", [LongspanDualEncoder, LongspanEncoderDecoderModel])
def test_vocabulary_of_every_part_is_resized(small, tmp_path, cls, own):
    """Also where the parts do not share their words."""
    model = cls(small(shared_towers=not own, tie_word_embeddings=not own)).eval()
    is_dual = cls is LongspanDualEncoder
    more = ("query_", "document_") if is_dual else ("", "decoder_")
    names = [f"{x}input_ids" for x in more]
    before = model(**dict.fromkeys(names, IDS))[0]
    model.resize_token_embeddings(60)
    torch.testing.assert_close(model(**dict.fromkeys(names, IDS))[0], before)
    parts = [x for x in model.modules() if isinstance(x, LongspanPreTrainedModel)]
    assert {x.config.vocab_size for x in parts} == {60}
    model.save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path)
    found, expected = (x(**dict.fromkeys(names, IDS + 39))[0] for x in (loaded, model))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cls", [LongspanForMaskedLM, LongspanForCausalLM])
def test_vocabulary_of_language_models_is_resized_and_tied(small, tmp_path, cls, tied):
    model = cls(small(tie_word_embeddings=tied, embedding_size=8)).eval()
    before = model(IDS).logits
    model.resize_token_embeddings(60)
    words = model.model.embeddings.words.weight
    assert (model.lm_head.weight is words) is tied
    torch.testing.assert_close(model(IDS).logits[..., :50], before)
    assert model(IDS + 39).logits.shape[2] == 60
    model.save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path).eval()
    assert (loaded.lm_head.weight is loaded.model.embeddings.words.weight) is tied
    assert loaded.config.vocab_size == 60
    torch.testing.assert_close(loaded(IDS + 39).logits, model(IDS + 39).logits)
