"""What the recipe of a run said, where its budget said something else."""

import dataclasses
from typing import TypeVar

from longspan.results.record import Failure, Result

T = TypeVar("T", bound=Result | Failure)


def as_asked(record: T) -> T:
    """The record with the options and the training that the recipe asked for.

    A record holds what ran. Under a budget of time, operations or memory that differs from the
    recipe, which `config_hash` names, in the number of steps or in a size of the mechanism;
    `budget["asked"]` keeps what was asked for then, by dotted name.
    """
    asked = record.budget.get("asked")
    if not isinstance(asked, dict):
        return record
    parts = {"options": dict(record.options), "train": dict(record.training)}
    for name, value in asked.items():
        part, _, field = str(name).partition(".")
        if part in parts:
            parts[part][field] = value
    return dataclasses.replace(record, options=parts["options"], training=parts["train"])
