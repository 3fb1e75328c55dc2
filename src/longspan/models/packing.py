"""Rows of several documents, one after another, as `DataCollatorWithFlattening` makes them.

A document begins where the position does not grow, in a batch without a mask. Its tokens see no
other document: the Transformer reads the documents as a padded batch, and its states go back to
their rows. So every mechanism, convolution and summary token has it.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, cast

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.models.inputs import TextInputs, default_global_mask, is_readable
from longspan.shapes import Bool

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig

Inputs = ParamSpec("Inputs")

_TRACED = (
    "position_ids restart: rows of several documents cannot be compiled, as their number is "
    "unknown; call the model without torch.compile, or pad the documents and pass attention_mask"
)


def has_documents(texts: TextInputs) -> bool:
    """Return whether rows hold several documents.

    A traced call, which has no values, asserts on its device that they do not.

    Args:
        texts: inputs of the batch.
    """
    positions, shape = texts.position_ids, texts.shape[:2]
    if texts.attention_mask is not None or not isinstance(positions, Tensor):
        return False
    others = (x for x in texts._replace(position_ids=None) if isinstance(x, Tensor))
    if positions.shape not in (shape, (1, *shape[1:])) or any(x.shape[:2] != shape for x in others):
        return False  # the model refuses them
    if positions.shape[1] == 1:
        return False
    restarts = positions.diff(dim=1) <= 0
    if torch.compiler.is_compiling():
        torch._assert_async(~restarts.any(), _TRACED)
        return False
    return is_readable(positions) and bool(restarts.any())


def document_starts(positions: Tensor) -> Tensor:
    """Return True at the first token of each document of rows with these positions (B or 1, T)."""
    first = torch.ones_like(positions[:, :1], dtype=torch.bool)
    return torch.cat((first, positions.diff(dim=1) <= 0), 1)


@dataclasses.dataclass(frozen=True)
class DocumentPlaces:
    """Places of the documents of a batch (B, T).

    Attributes:
        places: index of each token among the B T tokens (documents, longest), any at padding.
        real: True at tokens that are no padding (documents, longest).
        shape: (B, T).
    """

    places: Tensor
    real: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, positions: Tensor, shape: tuple[int, int]) -> "DocumentPlaces":
        """Return the documents of rows with these positions (B, T) or (1, T)."""
        starts = document_starts(positions).expand(shape).flatten().nonzero()[:, 0]
        lengths = torch.cat((starts, starts.new_tensor([shape[0] * shape[1]]))).diff()
        offsets = torch.arange(int(lengths.max()), device=starts.device)
        real = offsets < lengths[:, None]
        return cls(torch.where(real, starts[:, None] + offsets, 0), real, shape)

    def split(self, x: Tensor) -> Tensor:
        """Return values of the tokens (B, T, ...) by document (documents, longest, ...)."""
        return x.flatten(0, 1)[self.places]

    def join(self, x: Tensor) -> Tensor:
        """Return values (documents, longest, ...) in the rows of their documents (B, T, ...)."""
        return x[self.real].unflatten(0, self.shape)


def mark_global_tokens(config: "LongspanConfig", texts: TextInputs) -> Bool[Tensor, "B T"] | None:
    """Return the global tokens that the configuration names, of each document; None: no mask.

    Args:
        config: configuration of the model.
        texts: inputs of the batch.

    Raises:
        InputError: there are no token ids in which to find the separator.
    """
    if config.default_global_tokens == "none" or not has_documents(texts):
        return default_global_mask(config, texts)
    documents = DocumentPlaces.of(
        cast(Tensor, texts.position_ids), cast(tuple[int, int], texts.shape)
    )
    padded = texts._replace(position_ids=None).map(documents.split)
    if padded.input_ids is not None:  # what stands at padding is no separator
        padded = padded._replace(input_ids=padded.input_ids.masked_fill(~documents.real, -1))
    marked = default_global_mask(config, padded)
    return None if marked is None else documents.join(marked)


def refuse_documents(texts: TextInputs, what: str) -> None:
    """Refuse rows of several documents, where a row has one of something.

    Args:
        texts: inputs of the batch.
        what: its name in the message.

    Raises:
        InputError: rows hold several documents.
    """
    if has_documents(texts):
        raise InputError(
            "position_ids restart, so that rows hold several documents, but each row has "
            f"{what}; pad the documents and pass attention_mask"
        )


def splits_documents(forward: Callable[Inputs, Any]) -> Callable[Inputs, Any]:
    """Let the `forward` of a Transformer read rows of several documents."""
    names = list(inspect.signature(forward).parameters)

    @functools.wraps(forward)
    def call(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Any:
        values: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        texts = TextInputs(*(values.get(name) for name in TextInputs._fields))
        if has_documents(texts):
            return _read_documents(forward, values, texts)
        return forward(*args, **kwargs)

    return call


def _read_documents(forward: Callable, values: dict[str, Any], texts: TextInputs) -> Any:
    """Compute the states of rows of several documents.

    Args:
        forward: computes those of padded documents.
        values: its arguments by name.
        texts: inputs of the batch, without a mask.

    Returns:
        Its states are those of the rows; `pooler_output` has one row a document.

    Raises:
        InputError: an argument is given that such rows cannot have, or an input is malformed.
    """
    model = values["self"]
    asked = values.get("output_attentions")
    unsupported = {
        "cache": values.get("cache") is not None,
        "use_cache": values.get("use_cache"),
        "encoder_hidden_states": values.get("encoder_hidden_states") is not None,
        "output_attentions": model.config.output_attentions if asked is None else asked,
    }
    if refused := [name for name, wanted in unsupported.items() if wanted]:
        raise InputError(
            "position_ids restart, so that rows hold several documents, which cannot be combined "
            f"with {', '.join(refused)}; pad the documents and pass attention_mask"
        )
    shape = cast(tuple[int, int], texts.shape[:2])
    positions = cast(Tensor, texts.position_ids).expand(shape)
    documents = DocumentPlaces.of(positions, shape)
    padded = texts._replace(position_ids=positions).map(documents.split)
    padded = padded._replace(attention_mask=documents.real)
    output = forward(**{**values, **padded._asdict(), "use_cache": False, "return_dict": True})
    states = output.hidden_states
    output.last_hidden_state = documents.join(output.last_hidden_state)
    output.hidden_states = states and tuple(documents.join(x) for x in states)
    return model.as_requested(output, values.get("return_dict"))
