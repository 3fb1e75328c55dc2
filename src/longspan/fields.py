"""Fields of configurations: each carries the sentence that help and docs print."""

import dataclasses
from typing import Any


def setting(help: str, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field with its explanation; without a default it must be given."""
    return dataclasses.field(default=default, metadata={"help": help})
