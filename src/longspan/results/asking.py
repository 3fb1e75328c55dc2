"""What the recipe of a run said, where its budget said something else."""

from typing import Any

from longspan.results.record import Result


def asked(result: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options and the training as the recipe has them.

    A record holds what ran. Under a budget of time, operations or memory that differs from the
    recipe, which `config_hash` names: in the number of steps, or in a size of the mechanism.
    """
    changed = result.budget.get("asked", {})

    def restored(part: str, values: dict[str, Any]) -> dict[str, Any]:
        own = {name.removeprefix(part): x for name, x in changed.items() if name.startswith(part)}
        return {**values, **own}

    return restored("options.", result.options), restored("train.", result.training)
