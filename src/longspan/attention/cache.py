"""Cache of a causal mechanism between steps."""

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Cache:
    """State of a causal mechanism after the tokens seen so far.

    Attributes:
        length: number of tokens seen, padding included.
        shape: (B, H, D, E) of the inputs.
        state: tensors that the mechanism chooses, batch first. A step returns a new cache and
            does not modify the old one.
    """

    length: int
    shape: tuple[int, int, int, int]
    state: dict[str, Tensor]

    def detach(self) -> "Cache":
        """Return the cache without autograd history, as between segments in training."""
        return dataclasses.replace(self, state={n: x.detach() for n, x in self.state.items()})


def append_tokens(
    cache: Cache | None, new: dict[str, Tensor], key_mask: Tensor | None
) -> dict[str, Tensor]:
    """Append new tensors (B, H, S, ...) to the cached ones; add `real` if any token is masked."""
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
    """Return the cache with all tokens of the chosen rows turned into padding.

    Args:
        cache: cache of any mechanism.
        rows: True at the rows to clear, (B,).
        empty_state: value of a state tensor before any real token, by name; zero if absent.
    """
    state = dict(cache.state)
    if "k" in state:
        state.setdefault("real", torch.ones_like(state["k"][:, 0, :, 0], dtype=torch.bool))
    for name, x in state.items():
        chosen = rows.view(-1, *(1,) * (x.dim() - 1))
        state[name] = x.masked_fill(chosen, empty_state.get(name, 0))
    return dataclasses.replace(cache, state=state)
