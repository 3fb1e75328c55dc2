"""Options of a model's mechanism in evaluation that differ from those of its training."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from longspan.attention import Attention
from longspan.attention.other_options import OtherOptions
from longspan.errors import OptionError
from longspan.models.config_checks import layered_refusals
from longspan.tasks.base import HELD_OUT, Split


class EvaluationOptions:
    """Other options of every layer of a model, for evaluations on validation and test."""

    def __init__(self, model: nn.Module, mechanism: str, changes: Mapping[str, Any]):
        """Check the options.

        Args:
            model: model, wrapped or not.
            mechanism: name of the mechanism whose options they are.
            changes: options with other values than in training; empty: all are those of training.

        Raises:
            UnknownNameError: the mechanism has no such option.
            OptionError: a value is invalid, a list has not one value for each layer, or an option
                changes a parameter or a buffer.
        """
        layers = [
            module
            for module in model.modules()
            if changes and isinstance(module, Attention) and module.name == mechanism
        ]
        # Each layer checks the value of its own place alone.
        if reasons := layered_refusals(mechanism, changes, len(layers)) if layers else []:
            raise OptionError(f"evaluation: {'; '.join(reasons)}")
        self._layer_options = [OtherOptions(attention, changes) for attention in layers]

    @contextlib.contextmanager
    def applied(self, split: Split) -> Iterator[None]:
        """Apply the options inside the context, unless the split is that of training."""
        with contextlib.ExitStack() as stack:
            for options in self._layer_options if split in HELD_OUT else ():
                stack.enter_context(options.applied())
            yield
