"""Pointer file of a run's checkpoints; readable without torch.

`last.json` names the last checkpoint, for resumption, and the best model. It is replaced
atomically, so a checkpoint counts from the moment the pointer names it.
"""

from pathlib import Path

from longspan.files import read_json

POINTER = "last.json"


def saved_step(run_dir: Path) -> int | None:
    """Return the step of the last checkpoint in a run's folder; None without a checkpoint.

    Raises:
        DataError: the pointer is not JSON.
    """
    pointer = run_dir / POINTER
    last = read_json(pointer).get("last") if pointer.exists() else None
    return None if last is None else int(last.removeprefix("step-"))
