"""Generation of the texts that a task scores, from the encoder's states of an evaluation."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from longspan.shapes import Int
from longspan.training.distributed.group import ProcessGroup


@torch.no_grad()
def generate_tokens(
    model: nn.Module,
    inputs: dict[str, Tensor],
    output: Any,
    generation: dict[str, Any],
    group: ProcessGroup,
) -> Int[Tensor, "B U"]:
    """Return the tokens that an encoder-decoder generates, without the start token.

    The encoder is not run again: beams read the states of the forward pass before, which were
    computed in the precision of the run.

    Args:
        model: model in evaluation mode.
        inputs: its arguments in the forward pass.
        output: output of the forward pass.
        generation: fields of `GenerationConfig`.
        group: processes that share the batches.
    """
    unwrapped_model = cast(Any, getattr(model, "module", model))
    sequences = unwrapped_model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state),
        attention_mask=inputs["attention_mask"],
        generation_config=GenerationConfig(**generation),
        # Sharded parameters are gathered by all processes, which must take equally many steps.
        synced_gpus=group.parallelism == "fsdp",
    )
    return sequences[:, 1:]
