"""Random blocks of BigBird's published code, and of its version in transformers.

Source of the rules: bigbird/core/attention.py of https://github.com/google-research/bigbird
(Zaheer et al. 2020), and `BigBirdBlockSparseAttention` of transformers.
"""

import torch
from torch import Tensor

EARLY, EARLY_LENGTHS = 1024, (1024, 2048, 3072, 4096)  # see `published_parts`
_TRANSFORMERS_EARLY_LENGTHS = (1024, 3072, 4096)


def published_parts(row: int, blocks: int, block: int, count: int) -> list[tuple[int, list[int]]]:
    """Return the ranges from which BigBird's published code draws the random blocks of a row.

    Args:
        row: number of the block of queries.
        blocks: blocks of the text, N.
        block: length of a block.
        count: random blocks, r.

    Returns:
        Draws and choices: all of the first 1024 tokens, if the text has 1024, 2048, 3072 or 4096;
        else all of the first 2r + 5 blocks, if N > 2r + 5; else half of the draws from the first
        r + 5 blocks and half from the rest, if N > r + 5; else all from everywhere. The last block
        of a part is excluded, and so are its second to last for row 1, and block 1 for the row that
        is its second to last.
    """
    near = (0, row - 1, row, row + 1)
    if blocks * block in EARLY_LENGTHS and 2 * block < EARLY:
        early = range(min(EARLY // block, blocks - 1))
        return [(count, [J for J in early if J not in near])]
    if blocks > 2 * count + 5:
        parts = [(count, 0, 2 * count + 5)]
    elif blocks > count + 5:
        parts = [(count // 2, 0, count + 5), (count - count // 2, count + 5, blocks)]
    else:
        parts = [(count, 0, blocks)]
    ranges = []
    for share, start, end in parts:
        out = {*near, end - 2} if row == 1 else {*near, 1} if row == end - 2 else near
        ranges.append((share, [J for J in range(start, end - 1) if J not in out]))
    return ranges


def published_ranges(row: Tensor, blocks: Tensor, block: int, left: Tensor) -> tuple[Tensor, ...]:
    """Return `published_parts` as low, high and left of `pick_blocks`."""
    r = len(left)
    many, some = blocks > 2 * r + 5, blocks > r + 5
    end = torch.where(many, 2 * r + 5, torch.where(some, r + 5, blocks))
    rest = torch.where(some & ~many, r - r // 2, 0)  # number of draws from the second part
    second = left <= rest
    start, end = torch.where(second, end, 0), torch.where(second, blocks, end)
    low = start.clamp(min=1) + ((row == end - 2) & (start < 2))
    high = end - 1 - (row == 1).long()
    remaining = torch.where(second, left, left - rest)
    if 2 * block < EARLY:
        early = torch.zeros_like(blocks, dtype=torch.bool)
        for length in EARLY_LENGTHS:
            early = early | (blocks * block == length)
        low = torch.where(early, 1, low)
        high = torch.where(early, (blocks - 1).clamp(max=EARLY // block), high)
        remaining = torch.where(early, left, remaining)
    return low, high, remaining


def draws_early(length: int, block: int) -> bool:
    """Return whether transformers takes the early blocks for an input of so many tokens."""
    return -(-length // block) * block in _TRANSFORMERS_EARLY_LENGTHS


def draw_transformers_blocks(
    seed: int, heads: int, max_length: int, block: int, count: int
) -> tuple[Tensor, Tensor]:
    """Draw the random blocks of one layer as transformers does in training, bit for bit.

    transformers seeds numpy's global generator with the index of the layer; this function leaves
    that generator alone. In evaluation transformers takes block 0, `count` times.

    Args:
        seed: index of the layer.
        heads: number of heads.
        max_length: maximum length of the model, `max_position_embeddings`.
        block: length of a block.
        count: random blocks per block of queries, r.

    Returns:
        Blocks (H, rows, r), -1 for none, for most lengths; and those for inputs padded to 1024,
        3072 or 4096 tokens: of the first 1024, which may repeat the window and the last block.
    """
    import numpy as np  # which torch alone does not require

    rows, whole = -(-max_length // block), max_length // block
    usual, early = np.full((2, heads, rows, count), -1)
    # Choices are among the first 2r + 5 blocks; shorter inputs attend to all.
    choices = [published_parts(row, 2 * count + 6, EARLY, count)[0][1] for row in range(rows)]
    random = np.random.RandomState(seed)
    for row in range(1, rows):
        for head in range(heads):
            order = random.permutation(2 * count + 5)
            usual[head, row] = [J for J in order if J in choices[row]][:count]
    choices = [_early_choices(row, whole, block) for row in range(rows)]
    random = np.random.RandomState(seed)
    for head in range(heads):
        for row in range(1, whole - 1):
            picks = random.permutation(choices[row])[:count]
            early[head, row, : len(picks)] = picks
    return torch.tensor(usual), torch.tensor(early)


def _early_choices(row: int, blocks: int, block: int) -> list[int]:
    """Return the choices among the first 1024 tokens; the rows N - 3 and N - 2 keep their window.

    N is the number of blocks of the maximum length, not that of the input.
    """
    last = EARLY // block - 1 if 2 * block < EARLY else blocks - 1
    inner = range(1, min(last, blocks - 2) + 1)
    if row > 2 and row in (blocks - 3, blocks - 2):
        return list(inner)
    return [J for J in inner if abs(J - row) > 1]
