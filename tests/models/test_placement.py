"""Models across devices and processes: device maps, offloading, FSDP."""

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from longspan.attention import MECHANISMS
from longspan.models import LongspanForConditionalGeneration, LongspanForMaskedLM, LongspanModel

# Random features, a parameter that layers share, projections of their own, and plain ones.
NAMES = ("performer", "linformer", "longformer", "local")
IDS = torch.randint(1, 50, (2, 19), generator=torch.Generator().manual_seed(1))


def config_of(small, name, **fields):
    options = dict(MECHANISMS[name].small_options)
    if name == "longformer":
        options["global_projections"] = True
    return small(attention=name, attention_options=options, **fields)


@pytest.fixture
def saved(small, tmp_path):
    """Function that saves a masked language model and returns it with the folder."""

    def save(name):
        model = LongspanForMaskedLM(config_of(small, name)).eval()
        model.save_pretrained(tmp_path / "model")
        return model, tmp_path / "model"

    return save


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_device_map_loads_the_model(saved, name):
    model, folder = saved(name)
    for device_map in ("cpu", "auto", {"": "cpu"}):
        loaded = LongspanForMaskedLM.from_pretrained(folder, device_map=device_map)
        torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_layers_on_disk_give_the_outputs_of_the_model(saved, name, tmp_path):
    model, folder = saved(name)
    parts = {"model.embeddings": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
    parts |= {"model.norm": "cpu", "transform": "cpu", "lm_head": "cpu"}
    if model.model.shared_parameter is not None:
        parts["model.shared_parameter"] = "cpu"
    loaded = LongspanForMaskedLM.from_pretrained(
        folder, device_map=parts, offload_folder=tmp_path / "offloaded"
    )
    layer = loaded.model.layers[1]
    assert {x.device.type for x in layer.parameters()} == {"meta"}
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)


@pytest.fixture
def mesh(tmp_path):
    """Mesh of one process."""
    if distributed.is_initialized():
        pytest.skip("the process belongs to a group")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", NAMES)
def test_sharded_layers_train_like_the_model(small, name, mesh):
    """FSDP replaces the parameters of each layer, then those of the model."""
    model = LongspanModel(config_of(small, name))
    model(IDS).last_hidden_state.sin().sum().backward()
    expected = {key: x.grad for key, x in model.named_parameters()}
    model.zero_grad()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(IDS).last_hidden_state.sin().sum().backward()
    for key, x in model.named_parameters():
        found = None if x.grad is None else x.grad.full_tensor()
        torch.testing.assert_close(found, expected[key])
    torch.optim.AdamW(model.parameters()).step()
    assert model(IDS).last_hidden_state.isfinite().all()


def test_a_sharded_encoder_decoder_trains_and_generates(small, mesh):
    """The word embeddings belong to both parts and to the logits."""
    config = small(decoder_start_token_id=1, is_encoder_decoder=True, attention="local")
    model = LongspanForConditionalGeneration(config)
    model(IDS, labels=IDS[:, :9]).loss.backward()
    expected = {key: x.grad for key, x in model.named_parameters()}
    model.zero_grad()
    for part in (model.model.encoder, model.model.decoder):
        for layer in part.layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(IDS, labels=IDS[:, :9]).loss.backward()
    for key, x in model.named_parameters():
        torch.testing.assert_close(x.grad.full_tensor(), expected[key])
    model.unshard()
    generated = model.eval().generate(IDS, max_new_tokens=3, num_beams=2, do_sample=False)
    assert generated.shape[0] == 2
