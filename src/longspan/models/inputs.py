"""Types and masks of a model's inputs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from longspan.attention import MECHANISMS
from longspan.errors import InputError
from longspan.shapes import Bool, Float, Int, Mask

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig

TokenIds = Int[Tensor, "B T"]
# T tokens, or with a cache all so far.
TokenMask = Mask[Tensor, "B _"]


class TextInputs(NamedTuple):
    """Inputs of a batch of texts, as `LongspanModel.forward` takes them."""

    input_ids: Int[Tensor, "..."] | None = None
    attention_mask: Mask[Tensor, "..."] | None = None
    global_attention_mask: Mask[Tensor, "..."] | None = None
    token_type_ids: Int[Tensor, "..."] | None = None
    position_ids: Int[Tensor, "..."] | None = None
    inputs_embeds: Float[Tensor, "..."] | None = None
    input_values: Float[Tensor, "..."] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the texts, (B, T), or (B, C, T) with C candidates each; empty without texts."""
        if self.input_ids is not None:
            return tuple(getattr(self.input_ids, "shape", ()))
        values = self.inputs_embeds if self.input_values is None else self.input_values
        return tuple(getattr(values, "shape", ()))[:-1]

    @property
    def real_parts(self) -> Bool[Tensor, "B C"] | None:
        """True at candidates, or windows, with real tokens; None: all of them."""
        return None if self.attention_mask is None else self.attention_mask.bool().any(-1)

    def map(self, change: Callable[[Tensor], Tensor]) -> "TextInputs":
        """Return the inputs, each of them changed.

        Raises:
            InputError: one of them is no tensor.
        """
        for name, x in self._asdict().items():
            if x is not None and not isinstance(x, Tensor):
                raise InputError(f"{name} must be a tensor, got {type(x).__name__}")
        return TextInputs(*(None if x is None else change(x) for x in self))

    def flatten_parts(self, kind: str) -> "TextInputs":
        """Return inputs (B, C, T, ...), C parts in each row, as a batch (B C, T, ...).

        Args:
            kind: name of the parts in messages, such as candidates.

        Raises:
            InputError: the inputs do not have one shape (B, C, T).
        """
        for name, x in self._asdict().items():
            got = tuple(getattr(x, "shape", ())) or type(x).__name__
            if x is not None and (len(self.shape) != 3 or got[:3] != self.shape):
                raise InputError(
                    f"{name} must have one shape (B, C, T), of C {kind} in each of B rows, in all "
                    f"inputs, got {got}"
                )
        return self.map(lambda x: x.flatten(0, 1))


def to_boolean_mask(name: str, mask: Tensor | None, inputs: Tensor, seen: int = 0) -> Tensor | None:
    """Convert a caller's mask to booleans (B, T).

    Args:
        name: name of the mask in messages.
        mask: booleans or numbers 0 and 1, of the new tokens or of all.
        inputs: new tokens.
        seen: number of tokens before them.

    Raises:
        InputError: the mask has other values, or its shape is not (B, T).
    """
    if mask is None:
        return None
    B, T = inputs.shape[:2]
    shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    if seen and shape == (B, seen + T):
        mask = mask[:, seen:]
    elif shape != (B, T):
        either = f" or {(B, seen + T)}" if seen else ""
        raise InputError(f"{name} must have the shape of the inputs, {(B, T)}{either}, got {shape}")
    _check_mask_values(name, mask)
    return mask.bool()


def _check_mask_values(name: str, mask: Tensor) -> None:
    """Raise InputError for a mask with values other than 0 and 1, as far as it can be read.

    On a device, integers are not read, as that would wait for it. Masks of real numbers are, as
    those that are added to scores have the opposite meaning.
    """
    if mask.dtype == torch.bool or not is_readable(mask):
        return
    if mask.device.type != "cpu" and not mask.is_floating_point():
        return
    other = mask[(mask != 0) & (mask != 1)]
    if len(other):
        raise InputError(
            f"{name} must be boolean or 0 and 1 (1 = yes), got {other[0].item():g}; mark global "
            "tokens in global_attention_mask, not by 2; compare masks that are added to scores "
            "with zero, mask == 0"
        )


def is_readable(x: Tensor) -> bool:
    """Return whether a tensor has values now: no tracing, no transforms, no meta device."""
    if x.device.type == "meta" or type(x) is not Tensor:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    return not torch._C._are_functorch_transforms_active()


def drop_full_mask(mask: Tensor | None) -> Tensor | None:
    """Return None for a mask without padding, whose application would change nothing.

    Only where its values are at hand, on CPU.
    """
    if mask is None or mask.device.type != "cpu" or not is_readable(mask):
        return mask
    return None if mask.all() else mask


def to_global_mask(config: "LongspanConfig", mask: Tensor | None, inputs: Tensor) -> Tensor | None:
    """Convert a caller's mask of the global tokens to booleans (B, T).

    Raises:
        InputError: the mask is malformed, or no layer has global tokens.
    """
    if mask is not None and not (config.supports_global_tokens and config.num_hidden_layers):
        able = ", ".join(name for name, cls in MECHANISMS.items() if cls.traits.global_tokens)
        names = " and ".join(dict.fromkeys(config.attention_names))
        raise InputError(
            f"global_attention_mask is not supported by {config.num_hidden_layers} layers of "
            f"{names}; use one of {able}, or leave out the mask"
        )
    return to_boolean_mask("global_attention_mask", mask, inputs)


def default_global_mask(config: "LongspanConfig", texts: TextInputs) -> Bool[Tensor, "B T"] | None:
    """Return the global tokens of texts without a mask of them, or None.

    The rules of `default_global_tokens` are those of transformers' Longformer. A text without a
    separator has no global tokens.

    Raises:
        InputError: the rule needs the separator, and there are no token ids.
    """
    rule = config.default_global_tokens
    values = texts.inputs_embeds if texts.input_values is None else texts.input_values
    inputs = values if texts.input_ids is None else texts.input_ids
    if rule == "none" or not isinstance(inputs, Tensor) or inputs.dim() < 2:
        return None  # the model refuses other inputs
    places = torch.arange(inputs.shape[1], device=inputs.device).expand(inputs.shape[:2])
    if rule == "first":
        return places == 0
    if texts.input_ids is None:
        raise InputError(
            f"default_global_tokens={rule!r} finds the separator in input_ids, which are missing; "
            "pass global_attention_mask"
        )
    is_separator = texts.input_ids.eq(cast(int, config.sep_token_id))
    first = is_separator.int().argmax(1, keepdim=True)
    # Two separators stand between the parts of a text.
    is_global = places < first if rule == "before_separator" else places > first + 1
    return is_global & is_separator.any(1, keepdim=True)


def select_inputs(
    config: "LongspanConfig",
    input_ids: Tensor | None,
    input_values: Tensor | None,
    embeds: Tensor | None,
    token_types: Tensor | None,
) -> Tensor:
    """Return the one kind of input that a model takes, or the embeddings of it.

    Args:
        config: configuration of the model.
        input_ids: token ids, or None.
        input_values: continuous inputs, or None.
        embeds: embeddings, or None.
        token_types: types of the tokens, which are checked alone, or None.

    Raises:
        InputError: none or several are given, one that the model does not take, or one of another
            shape or dtype.
    """
    features = config.input_features
    selected = input_ids if features is None else input_values
    name, width = ("input_ids", None) if features is None else ("input_values", features)
    inputs = [x for x in (input_ids, input_values, embeds) if x is not None]
    if len(inputs) != 1 or inputs[0] is not (embeds if selected is None else selected):
        raise InputError(
            f"this model takes {name} or inputs_embeds only (input_features={features})"
        )
    if selected is None:
        name, width = "inputs_embeds", config.embedding_width
    x: Any = inputs[0]
    if width is None:
        check_integers(name, x)
    elif not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != width:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} must have shape (B, T, {width}), got {got}")
    if token_types is not None:
        check_integers("token_type_ids", token_types, x.shape[:2])
    return inputs[0]


def check_integers(name: str, x: Any, *shapes: tuple[int, int]) -> None:
    """Check that an argument is a tensor of integers (B, T), without broadcasting.

    Args:
        name: name of the argument in messages.
        x: the argument.
        shapes: shapes that it may have; none: any (B, T).

    Raises:
        InputError: it is not.
    """
    got, remedy = type(x).__name__, ""
    if isinstance(x, Tensor):
        fits = any(x.shape == shape for shape in shapes) if shapes else x.dim() == 2
        if fits and x.dtype in (torch.int32, torch.int64):
            return
        got = f"{x.dtype} of shape {tuple(x.shape)}"
        remedy = f"; {name}[None] is a batch of one text" if x.dim() == 1 else ""
    expected = " or ".join(str(tuple(shape)) for shape in dict.fromkeys(shapes)) or "(B, T)"
    raise InputError(f"{name} must be a tensor of int64, {expected}, got {got}{remedy}")


def prepend(mask: Tensor, value: bool) -> Tensor:
    """Add a first column of one value."""
    return torch.cat((torch.full_like(mask[:, :1], value), mask), dim=1)
