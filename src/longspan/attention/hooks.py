"""Methods of a mechanism: two to implement, and hooks with defaults.

Letters, masks and layout are those of `base`.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor, nn

from longspan.attention.cache import append_tokens
from longspan.attention.inputs import Inputs
from longspan.attention.refusals import call_refusals
from longspan.attention.traits import Traits


class MechanismHooks(nn.Module):
    """Methods and attributes that a mechanism defines; `Attention` calls them.

    Every mechanism defines `attend`, `reference` and `flops`. The other methods have defaults.

    Attributes:
        traits: properties with default options; an instance replaces what its options change.
        name: key in `MECHANISMS`.
        size_option: option that trades memory for reach, or None; see `register`.
        small_options: options for sequences of a few dozen tokens, for tests and pictures.
        picture_options: options of pictures beyond the small ones, where those show no difference
            from another mechanism.
        layered_options: options that take a list with one value for each layer, with the depth of
            such a list: 1, or 2 where a list of numbers is for the heads.
        causal: whether outputs depend only on earlier positions.
        built_for: heads, head_dim, value_dim (width of values) and max_length of the parameters,
            and the width of the layer's input; others are refused.
        loops_over_length: whether the number of operations grows with the length: a program of
            `torch.export` then serves one length.
        shared_state: names of state tensors that are equal for heads with the same keys and values.
        takes_groups: whether `attend` and `reference` take keys and values of G heads; if not, they
            are repeated for all H heads, in memory as well (a cache keeps G heads).
        empty_state: value of a state tensor before the first real token, by name; zero if absent.
        reads_padding: whether an option of the instance lets padded tokens influence others, as a
            public model does; inputs and outputs are then not zero at padding.
        redraw_every: training steps between two calls of `redraw`; None: no redraws.
        has_unused_parameters: whether some parameters may receive no gradient in a training step.
        has_auxiliary_loss: whether the options of the instance ask for an `auxiliary_loss`.
        max_global_tokens: largest number of global tokens per row; None: counted in each call.
        weight_dropout: probability with which a weight is dropped in training.
        sink_logits: parameter of the instance with `sink_logit=True` (`create_sink_logits`), else
            None.
        signature: name and options of `build`, or class and number of an instance made without it;
            a cache belongs to one signature.
    """

    traits: Traits
    name: ClassVar[str]
    size_option: ClassVar[str | None] = None
    small_options: ClassVar[dict[str, Any]] = {}
    picture_options: ClassVar[dict[str, Any]] = {}
    layered_options: ClassVar[dict[str, int]] = {}
    causal: bool = False
    built_for: Mapping[str, int] = MappingProxyType({})
    loops_over_length: bool = False
    shared_state: ClassVar[tuple[str, ...]] = ("k", "v")
    takes_groups: ClassVar[bool] = False
    empty_state: ClassVar[dict[str, float]] = {}
    reads_padding: bool = False
    redraw_every: int | None = None
    has_unused_parameters: bool = False
    has_auxiliary_loss: bool = False
    max_global_tokens: int | None = None
    weight_dropout: float = 0.0
    sink_logits: Tensor | None
    signature: str

    def attend(self, x: Inputs) -> Tensor:
        """Compute the output fast. Inputs are checked, and zero at padded positions."""
        raise TypeError(f"{type(self).__name__} does not define attend")

    def reference(self, x: Inputs) -> Tensor:
        """Compute the same function as plainly as possible."""
        raise TypeError(f"{type(self).__name__} does not define reference")

    def advance(self, x: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a step and the new state. Inputs are checked and zeroed like those of `attend`.

        The default keeps all keys and values (and queries, if the mechanism needs as many of them;
        and layer inputs), and calls `attend` on the whole sequence, so it needs no override to be
        right. Mechanisms with a smaller state override it, and those derived from a class whose
        `advance` does not call the `attend` that they change.

        Args:
            x: inputs of the T new tokens. `x.cache` is what the previous step left; None starts a
                sequence. `x.cache.state` holds the tensors that this method returned.

        Returns:
            Rows of the new tokens (B, H, T, E), and new tensors by name, batch first, which `step`
            puts into the next cache. They are new: the given cache stays as it is. Those named in
            `shared_state` have the heads of the keys in dimension 1. `append_tokens` makes the
            state of a mechanism that keeps tokens, with `grows` of one that keeps all of them;
            `clear_rows` describes what `reset` does. `traits.step_cost` and `traits.state_size`
            claim the growth of time and state.
        """
        new, source = {"k": x.k, "v": x.v}, x.layer_input
        if not self.traits.cross:
            new["q"] = x.q
        if source is not None:
            new["states"] = source.states[:, None]
        state = append_tokens(x.cache, new, x.key_mask, grows=True)
        if source is not None:
            source = dataclasses.replace(source, states=state["states"][:, 0])
        tokens = state.get("q", x.q), state["k"], state["v"], state.get("real")
        whole = Inputs(*tokens, layer_input=source, bias=x.bias, sink_logits=x.sink_logits)
        out = self.attend(whole)
        return out[:, :, out.shape[2] - x.q.shape[2] :], state

    def state_of(self, x: Inputs) -> dict[str, Tensor] | None:
        """Return the state after tokens with these keys and values; None: it depends on more.

        A step can then continue keys and values that another library has cached. They are zero at
        padded positions.
        """
        return None

    def attend_packed(self, x: Inputs) -> Tensor:
        """Compute `x.documents`, laid one after another in a row, with `traits.packed`.

        Inputs are those of `attend` with batch size 1, without masks of keys and queries, and
        without bias. Returns rows (1, H, N, E), each equal to that of its document alone.
        """
        raise TypeError(f"{type(self).__name__} does not define attend_packed")

    def refusals(self, x: Inputs) -> list[str]:
        """Return the reasons why these inputs are not supported. Mechanisms extend the list."""
        return call_refusals(self, x)

    def flops(self, T: int, head_dim: int) -> int:
        """Return the forward FLOPs of one head (a multiply-add counts as two)."""
        raise TypeError(f"{type(self).__name__} does not define flops")

    def pairs(self, T: int) -> int | tuple[int, ...] | None:
        """Return the attended pairs of one head, or of each if they differ; None: undefined."""
        return None

    def is_dense(self, T: int) -> bool:
        """Return whether T tokens attend to as many keys as full attention: no size is saved.

        The default counts `pairs`. Mechanisms without a count define it.
        """
        pairs = self.pairs(T)
        most = T * (T + 1) // 2 if self.causal else T * T
        return pairs is not None and (min(pairs) if isinstance(pairs, tuple) else pairs) >= most

    def redraw(self, seed: int) -> None:
        """Draw random tensors anew, between training steps. The default does nothing."""

    def release_shared(self) -> nn.Parameter | None:
        """Give up the parameter that all layers of a model share, and return it; None: none.

        A model calls this once on the mechanism of every layer, registers the parameter of the
        first as its own, and passes it to every call as `shared`.
        """
        return None

    def auxiliary_loss(self, x: Inputs) -> Tensor | None:
        """Return a loss from which parameters of the mechanism learn that the output cannot train.

        A model adds it to the loss of its task in training; its inputs are those of a call or step
        with `mask`. No gradient flows to q, k and v. The default returns None: there are no such
        parameters.
        """
        return None

    def copy_projections(self, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> None:
        """Start projections of the mechanism's own as copies of the layer's.

        A model calls this once on a new mechanism whose `traits.inputs` are "qkv". The default
        copies nothing.
        """

    @property
    def dropout(self) -> float:
        """Probability with which a weight is dropped now: zero outside training."""
        return self.weight_dropout if self.training else 0.0
