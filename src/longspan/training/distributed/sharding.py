"""Models and optimizers across processes: DDP, FSDP and context parallel, and whole state dicts."""

from collections import Counter

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
from longspan.config import TrainingConfig
from longspan.errors import OptionError
from longspan.models import LongspanModel
from longspan.training.distributed.group import ProcessGroup


def check_config(config: TrainingConfig, group: ProcessGroup) -> None:
    """Refuse a configuration that the process group cannot train.

    Raises:
        OptionError: the message lists every reason.
    """
    reasons = []
    if config.batch_size < group.num_shards:
        reasons.append(
            f"training.batch_size must be >= {group.num_shards}, the number of processes, got "
            f"{config.batch_size}; start fewer processes, or use --parallel context"
        )
    if group.parallelism == "fsdp" and config.precision == "fp16":
        reasons.append("fsdp does not support precision fp16; use bf16 or --parallel ddp")
    if reasons:
        raise OptionError("; ".join(reasons))


def recompute_activations(model: PreTrainedModel, options: dict[str, bool] | None = None) -> None:
    """Recompute activations in the backward pass, under the name that transformers has for it.

    Args:
        model: model to change.
        options: arguments of `torch.utils.checkpoint`; None: transformers' own.
    """
    # activation_checkpointing_enable replaced gradient_checkpointing_enable in transformers 5.23.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)(options)


def wrap_model(model: PreTrainedModel, accelerator: Accelerator, group: ProcessGroup) -> nn.Module:
    """Prepare a model for training in all processes; fsdp replaces its parameters.

    Raises:
        OptionError: the mechanism does not support context parallelism.
    """
    if group.parallelism == "fsdp":
        _shard_model(model, group)
        return accelerator.prepare_model(model, evaluation_mode=True)
    if group.parallelism == "context":
        for part in parts_in_shards(model):
            part.enable_context_parallel(None)
    # Buffers hold random features and the like, which are equal in all processes already.
    buffers = [name for name, _ in model.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, buffers)
    if any(
        module.has_unused_parameters for module in model.modules() if isinstance(module, Attention)
    ):
        # Only then: the search for unused parameters walks the graph in every step.
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    return accelerator.prepare(model)


def parts_in_shards(model: PreTrainedModel) -> list[LongspanModel]:
    """Return the Transformers whose positions are sharded: all but the decoder behind an encoder.

    That one computes a target in every process, from the states that its encoder gathers.
    """
    parts = [x for x in model.modules() if isinstance(x, LongspanModel)]
    return [x for x in parts if not (model.config.is_encoder_decoder and x.config.is_decoder)]


def _shard_model(model: PreTrainedModel, group: ProcessGroup) -> None:
    """Shard every parameter over the processes; parameters are gathered layer by layer."""
    mesh = init_device_mesh(group.device.type, (group.world_size,))
    layer_types = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in layer_types]
    owners = Counter(parameter for layer in layers for parameter in set(layer.parameters()))
    # Parameters shared between layers can only be gathered with the whole model.
    if max(owners.values(), default=1) == 1:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def gather_tensors(tensors: dict[str, Tensor], group: ProcessGroup) -> dict[str, Tensor]:
    """Return whole tensors on the CPU of the main process, and nothing in the others.

    All processes must call it.
    """
    gathered = {}
    for name, x in tensors.items():
        whole = x.full_tensor() if isinstance(x, DTensor) else x
        if group.is_main:
            gathered[name] = whole.detach().contiguous().cpu()
    return gathered


def gather_weights(model: PreTrainedModel, group: ProcessGroup) -> dict[str, Tensor]:
    """Return whole weights as `gather_tensors` does, each of several tied ones once."""
    tied = model.all_tied_weights_keys
    untied = {name: x for name, x in model.state_dict().items() if name not in tied}
    return gather_tensors(untied, group)


def load_weights(model: PreTrainedModel, weights: dict[str, Tensor]) -> None:
    """Load whole weights of `gather_weights` into a model, sharded or not."""
    state = model.state_dict()
    tied = model.all_tied_weights_keys.items()
    weights = weights | {name: weights[source] for name, source in tied if source in weights}
    model.load_state_dict(
        {name: _shard_like(x, state[name]) if name in state else x for name, x in weights.items()}
    )


def flatten_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state by name: `<index of the parameter>.<name of the state>`."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{key}": x for index, slot in state.items() for key, x in slot.items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load whole state tensors into an optimizer, whose parameters may be sharded."""
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        index, key = name.split(".", 1)
        parameter = parameters[int(index)]
        local_state = _shard_like(x, parameter) if x.shape == parameter.shape else x
        state.setdefault(int(index), {})[key] = local_state
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _shard_like(x: Tensor, other: Tensor) -> Tensor:
    """Shard a tensor, of which every process holds a whole copy, like another tensor."""
    if not isinstance(other, DTensor):
        return x
    mesh, placements = other.device_mesh, other.placements
    return distribute_tensor(x.to(other.device), mesh, placements, src_data_rank=None)
