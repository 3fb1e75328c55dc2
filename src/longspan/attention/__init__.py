"""Efficient attention mechanisms behind one interface.

Importing the package imports every file in `mechanisms/` and `kernels/`, which registers them.
A mechanism elsewhere registers itself with the same decorator when its file is imported.
"""

import importlib
import pkgutil

from longspan.attention import kernels, mechanisms
from longspan.attention.base import Attention, Cache, Inputs, LayerInput, RelativeBias, Traits
from longspan.attention.build import build, options_of
from longspan.attention.recurrence import recurrence
from longspan.attention.registry import MECHANISMS, backends, register, register_kernel

for _package in (mechanisms, kernels):
    for _module in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)

__all__ = [
    "MECHANISMS",
    "Attention",
    "Cache",
    "Inputs",
    "LayerInput",
    "RelativeBias",
    "Traits",
    "backends",
    "build",
    "options_of",
    "recurrence",
    "register",
    "register_kernel",
]
