"""Code of a model beside its weights, for `trust_remote_code=True`.

All classes are loaded from one file, `modeling_longspan.py`, which imports the mechanisms that the
configuration names, and so registers them among the classes of this code alone: an installed
longspan is neither needed nor affected.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from longspan import __version__
from longspan.attention.registry import KERNELS, MECHANISMS
from longspan.errors import OptionError
from longspan.publishing.flattening import flat_name, flatten_modules, import_line

ENTRY = "modeling_longspan"
_HEADER = "# longspan {version}, Apache-2.0: {what}."
_DOCUMENTATION = '"""Longspan models, for which longspan need not be installed."""\n'
_LOOP = """
# transformers saves the file of a class with the files that it imports; this one imports all.
for _class in ({classes},):
    _class.__module__ = __name__
"""


def write_remote_code(model: PreTrainedModel, folder: Path) -> dict[str, str]:
    """Write the Python files that a model needs; return the `auto_map` of its configuration.

    The files are those of its classes, of the mechanisms that its configuration or the default one
    names, of the kernels that these may run, and of everything that they import from their
    packages.

    Raises:
        OptionError: a class cannot be imported from a file.
    """
    classes = auto_classes(model)
    parts = list(dict.fromkeys([*_mechanism_parts(model.config), *classes.values()]))
    for part in parts:
        _check_importable(part)
    texts = flatten_modules({part.__module__: None for part in parts})
    files = {flat_name(module): f"{_header(module)}{text}" for module, text in texts.items()}
    files[ENTRY] = _entry(parts, list(dict.fromkeys(classes.values())))
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return {name: f"{ENTRY}.{cls.__name__}" for name, cls in classes.items()}


def auto_classes(model: PreTrainedModel) -> dict[str, type]:
    """Return the configuration and the models that transformers' Auto classes load, by Auto class.

    They are those registered for the configuration. A model that no Auto class loads takes the
    place of the base model in `AutoModel`.
    """
    config = type(model.config)
    classes: dict[str, type] = {"AutoConfig": config}
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None)
        if isinstance(auto, type) and mapping is not None and config in mapping:
            classes[name] = mapping[config]
    if type(model) not in classes.values():
        classes["AutoModel"] = type(model)
    return classes


def _mechanism_parts(config: Any) -> list[Any]:
    """Return the mechanisms that a configuration or the default one names, and their kernels.

    A kernel that is not automatic is left out, unless the configuration names it.
    """
    names = {*_strings(config.to_dict()), *_strings(type(config)().to_dict())}
    mechanisms = [cls for name, cls in MECHANISMS.items() if name in names]
    kernels = [item for cls in mechanisms for item in KERNELS.get(cls, {}).items()]
    used = [kernel.run for name, kernel in kernels if kernel.automatic or name in names]
    return [*mechanisms, *used]


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)


def _entry(parts: list[Any], classes: list[type]) -> str:
    """Return the file that transformers imports the classes from."""
    by_module: dict[str, list[str]] = {}
    for part in parts:
        by_module.setdefault(part.__module__, []).append(part.__name__)
    lines = [line for module, names in by_module.items() for line in import_line(module, names)]
    loop = _LOOP.format(classes=", ".join(cls.__name__ for cls in classes))
    head = _HEADER.format(version=__version__, what="generated")
    return "\n".join([head, _DOCUMENTATION, *lines]) + "\n" + loop


def _header(module: str) -> str:
    """Return the first line of a module's file; modules of plug-ins have none."""
    if not module.startswith("longspan."):
        return ""
    return _HEADER.format(version=__version__, what=f"{module}, with relative imports") + "\n"


def _check_importable(part: Any) -> None:
    """Refuse a class or function that other files cannot import by name."""
    if part.__module__ == "__main__" or part.__qualname__ != part.__name__:
        raise OptionError(
            f"{part.__qualname__} is defined in a script or inside a function; move it to the top "
            "level of a module, and import it from there"
        )
