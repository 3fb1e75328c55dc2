"""State of a language model between the batches of a stream, and its form in checkpoints.

Rows of a batch continue those of the last one (`Batch.continues`). Every process keeps the state of
its own rows, microbatch by microbatch.
"""

import json
import logging
from typing import Any, cast

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.attention import Cache
from longspan.models import LongspanCache, LongspanForCausalLM
from longspan.models.layer_cache import LayerCache, RowGroup
from longspan.tasks import Batch, Task
from longspan.training.distributed.group import ProcessGroup, RowShard

logger = logging.getLogger(__name__)

PREFIX = "stream."  # before the rank of a process, in the names of tensors of checkpoints
_DESCRIPTION = "description"


class StreamState:
    """State of a model between batches; nothing for a model that keeps none."""

    def __init__(self, model: nn.Module, task: Task):
        """Start without a state.

        Args:
            model: model, possibly wrapped.
            task: task, which decides whether the model keeps a state.
        """
        self.model = cast(PreTrainedModel, getattr(model, "module", model))
        self.is_decoder = isinstance(self.model, LongspanForCausalLM)
        self.keeps = self.is_decoder and task.keeps_state(self.model.config.attention_names)
        self.states: dict[int, LongspanCache] = {}  # by the first row of the microbatch

    def shard(self, group: ProcessGroup, rows: int, first_rows: int) -> RowShard:
        """Return this process's rows of an evaluation's batch.

        A process keeps its rows if a later batch has fewer rows than the first one.

        Args:
            group: processes that share the batches.
            rows: rows of the batch.
            first_rows: rows of the first batch.
        """
        (shard,) = group.shard_rows(first_rows if self.keeps else rows)
        if shard.rows.start >= rows:
            return RowShard(slice(0, 1), 0)
        return RowShard(slice(shard.rows.start, min(shard.rows.stop, rows)), shard.weight)

    def arguments(self, batch: Batch, shard: RowShard) -> dict[str, Any]:
        """Return the arguments of the model that continue its state for some rows of a batch."""
        if not self.is_decoder:
            return {}
        if not self.keeps or batch.continues is None:
            return {"use_cache": False}
        past = self.states.pop(shard.rows.start, None) if shard.weight else None
        continues = batch.continues[shard.rows]
        if past is None or not continues.any():
            return {"cache": None, "use_cache": True}
        device = next(self.model.parameters()).device
        if past.layers[0].batch_size > len(continues):
            past.reorder_cache(torch.arange(len(continues), device=device))
        if not continues.all():
            past = self.model.model.clear_rows(past, ~continues.to(device))
        return {"cache": past, "use_cache": True}

    def store(self, shard: RowShard, output: Any) -> None:
        """Store the state after a call, if it returns one, without its autograd history."""
        state = getattr(output, "cache", None)
        if self.keeps and shard.weight and state is not None:
            self.states[shard.rows.start] = state.detach()

    def gather(self, group: ProcessGroup) -> dict[str, Tensor]:
        """Return the states of all processes as tensors of a checkpoint, by name.

        All processes must call it. Each state is the content of a safetensors file, since states of
        different processes have different shapes.
        """
        if not self.keeps:
            return {}
        state_bytes = _to_bytes(self.states)
        sizes = [int(x) for x in group.all_gather(torch.tensor([len(state_bytes)]))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(state_bytes)] = torch.frombuffer(bytearray(state_bytes), dtype=torch.uint8)
        gathered = zip(group.all_gather(padded), sizes, strict=True)
        return {f"{PREFIX}{rank}": x[:size].clone() for rank, (x, size) in enumerate(gathered)}

    def restore(self, tensors: dict[str, Tensor], group: ProcessGroup) -> None:
        """Remove the states from the tensors of a checkpoint, and restore those of this process.

        Under another number of processes the rows are divided otherwise, and begin without a state.
        """
        saved = {name: tensors.pop(name) for name in list(tensors) if name.startswith(PREFIX)}
        if not self.keeps:
            return
        if len(saved) != group.world_size:
            logger.warning(
                "the checkpoint has the state of %d processes, the run has %d: documents continue "
                "without the state before",
                len(saved),
                group.world_size,
            )
            return
        device = next(self.model.parameters()).device
        self.states = _from_bytes(saved[f"{PREFIX}{group.rank}"].numpy().tobytes(), device)


def _to_bytes(states: dict[int, LongspanCache]) -> bytes:
    """Return states by first row as the content of a safetensors file."""
    tensors: dict[str, Tensor] = {}
    described: dict[str, Any] = {}
    for start, cache in states.items():
        layers = []
        for number, layer in enumerate(cache.layers):
            state = cast(LayerCache, layer.state)
            layers.append(_describe(state))
            for name, x in state.state.items():
                tensors[f"{start}.{number}.{name}"] = x.detach().cpu().contiguous()
        positions = cast(Tensor, cache.next_positions)
        tensors[f"{start}.positions"] = positions.cpu()
        described[str(start)] = layers
    text = json.dumps(described).encode()
    tensors[_DESCRIPTION] = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
    # Tensors that share storage cannot be saved together.
    return safetensors.torch.save({name: x.clone() for name, x in tensors.items()})


def _describe(state: LayerCache) -> dict[str, Any]:
    """Return what the state of a layer is besides its tensors; its rows are one group."""
    cache = cast(Cache, state.groups[0].cache)
    return {
        "signature": cache.signature,
        "length": cache.length,
        "shape": list(cache.shape),
        "dtype": str(cache.dtype).removeprefix("torch."),
        "groups": cache.groups,
        "names": list(cache.state),
        "convolved": len(state.tokens),
        "reach": state.reach,
    }


def _from_bytes(content: bytes, device: torch.device) -> dict[int, LongspanCache]:
    """Return the states that `_to_bytes` wrote."""
    tensors = {name: x.to(device) for name, x in safetensors.torch.load(content).items()}
    described = json.loads(tensors.pop(_DESCRIPTION).cpu().numpy().tobytes())
    states = {}
    for start, layers in described.items():
        cache = LongspanCache(len(layers))
        cache.next_positions = tensors[f"{start}.positions"]
        for number, fields in enumerate(layers):
            prefix, names = f"{start}.{number}", fields.pop("names")
            convolved, reach = fields.pop("convolved", 0), fields.pop("reach", 0)
            held = Cache(
                **{
                    **fields,
                    "shape": tuple(fields["shape"]),
                    "dtype": getattr(torch, fields["dtype"]),
                    "state": {name: tensors[f"{prefix}.{name}"] for name in names},
                }
            )
            tokens = tuple(tensors[f"{prefix}.convolution.{i}"] for i in range(convolved))
            groups = (RowGroup(cache=held),)
            cache.layers[number].state = LayerCache(groups, held.length, tokens, reach)
        states[int(start)] = cache
    return states
