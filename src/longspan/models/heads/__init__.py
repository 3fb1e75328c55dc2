"""Heads: one file for each kind of task, with its model, loss, operations and largest batch.

A task names the file of its head (`TaskInfo.head`), in which `HEAD` is the model class.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.models.heads.base import Head


def find_head(name: str) -> "type[Head]":
    """Return the model class of a file of this package.

    Raises:
        OptionError: there is no such head.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}").HEAD
    except (ModuleNotFoundError, AttributeError) as error:
        names = ", ".join(module.name for module in pkgutil.iter_modules(__path__))
        raise OptionError(
            f"there is no head {name!r}: expected a file of {__name__} with HEAD, one of {names}"
        ) from error
