"""Families of source models by `model_type`; each file describes those of one form."""

import importlib
import pkgutil

from longspan.models.conversion.family import Family

_MODULES = [importlib.import_module(f"{__name__}.{x.name}") for x in pkgutil.iter_modules(__path__)]
_ALL: list[Family] = [family for module in _MODULES for family in module.FAMILIES]
FAMILIES: dict[str, Family] = {
    model_type: family
    for family in sorted(_ALL, key=lambda family: family.model_types)
    for model_type in family.model_types
}
