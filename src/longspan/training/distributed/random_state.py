"""Random states of all processes of a run, as tensors of a checkpoint."""

import torch

from longspan.training.distributed.group import RANK_SEED_STRIDE, ProcessGroup

SEED = "rng"  # prefix of the names


def gather_random_state(group: ProcessGroup) -> dict[str, torch.Tensor]:
    """Return torch's random states of all processes by name; the main process has no number."""
    held = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        held["cuda"] = torch.cuda.get_rng_state()
    return {
        _name(device, rank): x
        for device, state in held.items()
        for rank, x in enumerate(group.all_gather(state))
    }


def restore_random_state(tensors: dict[str, torch.Tensor], group: ProcessGroup) -> None:
    """Remove the random states from `tensors` and restore this process's own."""
    states = {name: tensors.pop(name) for name in list(tensors) if name.startswith(f"{SEED}.")}
    torch.set_rng_state(states[_name("cpu", 0)])
    if _name("cpu", group.rank) not in states:
        # The run had fewer processes: derive a stream from that of the main process.
        drawn = int(torch.randint(2**62, ()))
        torch.manual_seed((drawn + group.rank * RANK_SEED_STRIDE) % 2**63)
        return
    torch.set_rng_state(states[_name("cpu", group.rank)])
    cuda = states.get(_name("cuda", group.rank))
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)


def _name(device: str, rank: int) -> str:
    return f"{SEED}.{device}" + (f".{rank}" if rank else "")
