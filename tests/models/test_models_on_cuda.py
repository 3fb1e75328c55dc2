"""Models on CUDA equal those on the CPU. Run with `-m gpu`."""

import copy

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.models import LongspanForCausalLM, LongspanForMaskedLM

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
IDS = torch.randint(1, 50, (2, 32), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(32) < torch.tensor([[32], [20]])).long()
CAUSAL = [name for name, cls in MECHANISMS.items() if cls.traits.causal]


def model_of(small, name, cls=LongspanForMaskedLM, **fields):
    options = dict(MECHANISMS[name].small_options)
    return cls(small(attention=name, attention_options=options, **fields))


@pytest.mark.parametrize("name", MECHANISMS)
def test_loss_and_gradients_equal_the_cpu(small, name):
    model = model_of(small, name)
    results = []
    for place in ("cpu", DEVICE):
        own = copy.deepcopy(model).to(place)
        loss = own(IDS.to(place), attention_mask=MASK.to(place), labels=IDS.to(place)).loss
        loss.backward()
        grads = {x: y.grad.cpu() for x, y in own.named_parameters() if y.grad is not None}
        results.append((loss.cpu(), grads))
    (loss, grads), (cuda_loss, cuda_grads) = results
    torch.testing.assert_close(cuda_loss, loss, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cuda_grads, grads, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", MECHANISMS)
def test_training_in_bfloat16_lowers_the_loss(small, name):
    model = model_of(small, name).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for _ in range(30):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(IDS.to(DEVICE), attention_mask=MASK.to(DEVICE), labels=IDS.to(DEVICE)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_equals_the_cpu(small, name):
    model = model_of(small, name, LongspanForCausalLM).eval().double()
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(IDS[:, :20], **options)
    found = model.to(DEVICE).generate(IDS[:, :20].to(DEVICE), **options)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["full", "performer", "bigbird", "linformer"])
def test_checkpoints_move_between_devices(small, name, tmp_path):
    model = model_of(small, name).eval().to(DEVICE)
    model.save_pretrained(tmp_path)
    for place in ("cpu", DEVICE):
        loaded = LongspanForMaskedLM.from_pretrained(tmp_path, device_map=place).eval()
        with torch.no_grad():
            found = loaded(IDS.to(place)).logits.to(DEVICE)
            torch.testing.assert_close(found, model(IDS.to(DEVICE)).logits, rtol=1e-3, atol=1e-3)
