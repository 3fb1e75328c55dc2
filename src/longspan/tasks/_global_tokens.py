"""Global tokens of documents: which tokens attend to all others is an option of the task."""

import dataclasses
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from longspan.bounds import LONGEST
from longspan.config import setting, settings
from longspan.data.store import Examples
from longspan.shapes import Bool
from longspan.tasks._encoded_text import EncodedTextTask, EncodingOptions
from longspan.tasks.batching import Batch

PassageLength = Annotated[int, Field(ge=1, lt=LONGEST)]


@settings
class GlobalTokenOptions(EncodingOptions):
    """Encoding of the texts, and their global tokens."""

    global_tokens: Literal["none", "first"] | PassageLength = setting(
        "tokens that attend to all others and all others to them, for mechanisms with such tokens: "
        "none; the first one of a text (Longformer); or a number: the first one of each passage of "
        "so many tokens (Xiong et al. 2022)",
        "none",
    )


class GlobalTokenTask(EncodedTextTask):
    """A task over texts that marks global tokens."""

    options: GlobalTokenOptions

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data: global tokens are marked in batches."""
        options = super().data_options()
        del options["global_tokens"]
        return options

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens of a text."""
        return int(self._is_global(self.length).sum())

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some examples as a batch with its global tokens marked."""
        batch = super().collate(examples, rows, draw)
        if self.options.global_tokens == "none":
            return batch
        masks = {"global_mask": batch.key_mask, "global_mask_b": batch.key_mask_b}
        marked = {
            name: mask & self._is_global(mask.shape[1])
            for name, mask in masks.items()
            if mask is not None
        }
        return dataclasses.replace(batch, **marked)

    def _is_global(self, length: int) -> Bool[torch.Tensor, " T"]:
        """Return which positions of a text are global."""
        chosen, positions = self.options.global_tokens, torch.arange(length)
        if chosen == "none":
            return torch.zeros(length, dtype=torch.bool)
        return positions == 0 if chosen == "first" else positions % chosen == 0
