"""Protocols, one file each; importing the package registers them."""

import importlib
import pkgutil

from longspan.arena.protocols.base import PROTOCOLS, Choice, Protocol, Recipe, get, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["PROTOCOLS", "Choice", "Protocol", "Recipe", "get", "register"]
