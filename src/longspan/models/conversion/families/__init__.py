"""Families of source models, one file each, by `model_type`."""

import importlib
import pkgutil

from longspan.models.conversion.family import Family

FAMILIES: dict[str, Family] = {
    model_type: family
    for module in pkgutil.iter_modules(__path__)
    for family in (importlib.import_module(f"{__name__}.{module.name}").FAMILY,)
    for model_type in family.model_types
}
