"""What a causal mechanism keeps between steps: whole tokens, or sums of its own choice."""

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Cache:
    """What a causal mechanism keeps of the tokens it has seen, to go on from there.

    Attributes:
        length: tokens seen, padded ones too.
        shape: (B, H, D, E) of the inputs; a cache serves no other.
        state: tensors of the mechanism's own choice, the batch first. They are the caller's: a
            step returns a new cache and leaves the old one as it was.
    """

    length: int
    shape: tuple[int, int, int, int]
    state: dict[str, Tensor]

    def detach(self) -> "Cache":
        """The same without its history, as between the segments of a training sequence."""
        return dataclasses.replace(self, state={n: x.detach() for n, x in self.state.items()})


def append_tokens(
    cache: Cache | None, new: dict[str, Tensor], key_mask: Tensor | None
) -> dict[str, Tensor]:
    """The cached tensors (B, H, S, ...) followed by the new ones, and `real` if any was masked."""
    old = {} if cache is None else cache.state
    state = {n: torch.cat([old[n], x], 2) if n in old else x for n, x in new.items()}
    if key_mask is None and "real" not in old:
        return state
    T, S = new["k"].shape[2], state["k"].shape[2]
    ones = new["k"].new_ones(new["k"].shape[0], max(T, S - T), dtype=torch.bool)
    before = old.get("real", ones[:, : S - T])
    state["real"] = torch.cat([before, ones[:, :T] if key_mask is None else key_mask], 1)
    return state


def clear_rows(cache: Cache, rows: Tensor, empty_state: dict[str, float]) -> Cache:
    """The cache as if all tokens of the chosen rows had been padding.

    Args:
        cache: of any mechanism.
        rows: True at the rows that forget, (B,).
        empty_state: what a state tensor holds before any real token, by name; zeros where not named.
    """
    state = dict(cache.state)
    if "k" in state:
        state.setdefault("real", torch.ones_like(state["k"][:, 0, :, 0], dtype=torch.bool))
    for name, x in state.items():
        chosen = rows.view(-1, *(1,) * (x.dim() - 1))
        state[name] = x.masked_fill(chosen, empty_state.get(name, 0))
    return dataclasses.replace(cache, state=state)
