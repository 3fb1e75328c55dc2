"""Random projections for feature maps: orthogonal in blocks, free of the sign bias of QR."""

import torch
from torch import Tensor


def gaussian_orthogonal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Draw `rows` directions, each N(0, I), orthogonal within every block of `columns` rows.

    Directions are Haar distributed: the signs of QR's diagonal are undone, otherwise the first
    coordinates lean to one side and exp(w.x) is biased. Norms are drawn apart (chi of `columns`
    degrees), so every row alone is exactly Gaussian. Choromanski et al. 2021, section 3.

    Returns:
        float64 matrix (rows, columns).
    """
    blocks = []
    for _ in range(-(-rows // columns)):
        gaussian = torch.randn(columns, columns, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(gaussian)
        signs = torch.where(r.diagonal() < 0, -1.0, 1.0)
        # Rows of a Haar matrix are Haar as well; q * signs fixes its columns.
        blocks.append(q * signs)
    directions = torch.cat(blocks)[:rows]
    norms = torch.randn(rows, columns, generator=generator, dtype=torch.float64).norm(dim=1)
    return directions * norms[:, None]
