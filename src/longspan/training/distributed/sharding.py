"""A model made ready to train, over several processes, and its tensors whole again for files."""

from collections import Counter
from typing import cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from longspan.attention import Attention
from longspan.errors import OptionError
from longspan.models import LongspanModel
from longspan.training.config import TrainConfig
from longspan.training.distributed.group import Processes


def check(config: TrainConfig, group: Processes) -> None:
    """Refuse a recipe that these processes cannot follow.

    Raises:
        OptionError: the message lists every reason.
    """
    reasons = []
    if config.batch < group.num_shards:
        reasons.append(
            f"train.batch={config.batch} has no row for each of {group.num_shards} processes; "
            "start fewer, or share positions out with --parallel context"
        )
    if group.parallelism == "fsdp" and config.precision == "fp16":
        reasons.append("a sharded model does not train in fp16; use bf16 or --parallel ddp")
    if reasons:
        raise OptionError("; ".join(reasons))


def recompute(model: PreTrainedModel) -> None:
    """Recompute activations in the backward pass, by the name that transformers has for it."""
    newer = getattr(model, "activation_checkpointing_enable", None)
    (newer or model.gradient_checkpointing_enable)()


def spread(model: PreTrainedModel, engine: Accelerator, group: Processes) -> nn.Module:
    """The model ready to train with the others; its parameters are replaced where it is sharded.

    Raises:
        OptionError: the mechanism does not let positions be shared out.
    """
    if group.parallelism == "fsdp":
        shard(model, group)
        return engine.prepare_model(model, evaluation_mode=True)
    if group.parallelism == "context":
        cast(LongspanModel, model.base_model).split_over(None)
    # What mechanisms draw is the same in all processes: there is nothing to send.
    buffers = [name for name, _ in model.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, buffers)
    if any(module.idle for module in model.modules() if isinstance(module, Attention)):
        # Looking for them costs a walk through the graph of each step.
        engine.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    return engine.prepare(model)


def shard(model: PreTrainedModel, group: Processes) -> None:
    """Give each process a part of every parameter, gathered layer by layer when it is needed."""
    mesh = init_device_mesh(group.device.type, (group.world_size,))
    kinds = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    owners = Counter(parameter for layer in layers for parameter in set(layer.parameters()))
    # What layers share can be gathered with the whole model only.
    if max(owners.values(), default=1) == 1:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(tensors: dict[str, Tensor], group: Processes) -> dict[str, Tensor]:
    """Sharded tensors put together, on the CPU of the main process; empty for the others.

    All processes call it together.
    """
    found = {}
    for name, x in tensors.items():
        full = x.full_tensor() if isinstance(x, DTensor) else x
        if group.is_main:
            found[name] = full.detach().contiguous().cpu()
    return found


def like(x: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, of which every process holds a copy, spread as `other` is."""
    if not isinstance(other, DTensor):
        return x
    mesh, places = other.device_mesh, other.placements
    return distribute_tensor(x.to(other.device), mesh, places, src_data_rank=None)


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put whole weights into a model that may be sharded."""
    there = model.state_dict()
    model.load_state_dict({n: like(x, there[n]) if n in there else x for n, x in weights.items()})


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by name: `<number of the parameter>.<name of the state>`."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{key}": x for index, slot in state.items() for key, x in slot.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put whole tensors into an optimiser whose parameters may be sharded."""
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        index, key = name.split(".", 1)
        parameter = parameters[int(index)]
        held = like(x, parameter) if x.shape == parameter.shape else x
        state.setdefault(int(index), {})[key] = held
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
