"""Adapters of peft in swapped models, against the same models with merged weights."""

import pytest
import torch
from tiny_transformers import BERT, SIZES
from transformers import BertConfig, BertModel

import longspan
from longspan.attention import MECHANISMS
from longspan.errors import InputError

peft = pytest.importorskip("peft")
IDS = torch.randint(1, 40, (2, 30), generator=torch.Generator().manual_seed(3))
MASK = torch.arange(30) < torch.tensor([[30], [21]])
# Options of mechanisms whose own projections start as copies of the module's.
COPIES = {"longformer": {"global_projections": True}}


def swap(model, name, **options):
    torch.manual_seed(1)
    options = {**MECHANISMS[name].small_options, **COPIES.get(name, {}), **options}
    return longspan.swap(model, name, max_length=64, **options)


def adapt(model, is_trained=True, **options):
    """Return a model with adapters of all projections, as before or after their training."""
    torch.manual_seed(2)
    config = peft.LoraConfig(r=2, target_modules=r".*self\.(query|key|value)", **options)
    adapted = peft.get_peft_model(model, config).eval()
    return train(adapted) if is_trained else adapted


def train(adapted):
    torch.manual_seed(3)
    for name, x in adapted.named_parameters():
        if "lora_" in name:
            x.data.normal_(std=0.3)
    return adapted


def make():
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES, **BERT)).eval()


def outputs(model):
    return model(input_ids=IDS, attention_mask=MASK).last_hidden_state


def assert_near(found, expected):
    """Compare outputs that differ in the order of sums alone."""
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def adapted_before(name, is_trained):
    """Return a model with adapters that is swapped, by its outer model or by the inner one."""
    model = adapt(make(), is_trained)
    swap(model if is_trained else model.base_model.model, name)
    return train(model)


def adapted_after(name):
    model = make()
    swap(model, name)
    return adapt(model)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_adapters_equal_merged_weights(name, tmp_path):
    merged = adapt(make()).merge_and_unload()
    swap(merged, name)
    expected = outputs(merged)
    swapped = {x: y for x, y in merged.state_dict().items() if ".longspan." in x}
    made = adapted_before(name, True), adapted_before(name, False), adapted_after(name)
    for number, model in enumerate(made):
        own = model.base_model.model.state_dict()
        if number == 0:  # those that begin as copies of projections have the adapters
            torch.testing.assert_close({x: own[x] for x in swapped}, swapped)
        model.base_model.model.load_state_dict(swapped, strict=False)
        assert_near(outputs(model), expected)
        left = model.merge_and_unload()
        assert_near(outputs(left), expected)
        if number and name not in COPIES:
            continue  # its weights are saved in the same way
        left.save_pretrained(tmp_path / str(number))
        loaded = longspan.interop.load_swapped(tmp_path / str(number)).eval()
        assert_near(outputs(loaded), expected)


def test_peft_trains_mechanisms_that_are_named():
    model, plain = make(), make()
    swap(model, "linformer")
    expected = outputs(model)
    model = adapt(model, is_trained=False, modules_to_save=["mechanism"])
    torch.testing.assert_close(outputs(model), expected)
    assert not torch.allclose(outputs(plain), expected)
    outputs(model).square().sum().backward()
    found = [x.grad for n, x in model.named_parameters() if ".longspan." in n and x.requires_grad]
    assert len(found) == 2
    assert all(x.abs().max() > 0 for x in found)


def test_mechanisms_that_peft_trains_drop_weights():
    config = BertConfig(**SIZES, **{**BERT, "attention_probs_dropout_prob": 0.5})
    model = BertModel(config).eval()
    swap(model, "local")
    model = adapt(model, is_trained=False, modules_to_save=["mechanism"])
    assert outputs(model).equal(outputs(model))
    assert not outputs(model.train()).equal(outputs(model))
    assert outputs(model.eval()).equal(outputs(model))


def test_what_stands_in_the_place_of_a_mechanism_is_refused():
    """Without it, the module would compute exact attention."""
    model = make()
    swap(model, "local")
    model = adapt(model, modules_to_save=["longspan"])
    with pytest.raises(InputError, match="ModulesToSaveWrapper stands in the place of the mech"):
        outputs(model)
