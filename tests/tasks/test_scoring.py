"""Cross entropy of scored targets, compared with torch's over all positions."""

import pytest
import torch
import torch.nn.functional as F

from longspan.tasks.scoring import IGNORE, cross_entropy


@pytest.mark.parametrize("shape", [(6,), (3, 7), (2, 3, 5)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_losses_and_gradients_are_those_of_all_positions(shape, share):
    draws = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, 11, generator=draws, dtype=torch.float64)
    targets = torch.randint(0, 11, shape, generator=draws)
    targets[torch.rand(shape, generator=draws) < share] = IGNORE
    one, two = (logits.clone().requires_grad_() for _ in range(2))
    found = cross_entropy(one, targets)
    flat = F.cross_entropy(
        two.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="none"
    )
    torch.testing.assert_close(found, flat.view(shape))
    found.square().sum().backward()
    flat.square().sum().backward()
    torch.testing.assert_close(one.grad, two.grad)


def test_logits_of_positions_that_are_not_scored_are_not_read():
    logits = torch.full((1, 3, 4), torch.nan)
    logits[0, 1] = 0.0
    losses = cross_entropy(logits, torch.tensor([[IGNORE, 2, IGNORE]]))
    assert losses[0].tolist() == pytest.approx([0.0, 1.3862944, 0.0])
