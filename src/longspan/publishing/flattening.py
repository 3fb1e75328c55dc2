"""Modules of packages as files of one folder, with relative imports.

transformers copies one file of a model's folder, and the files that it names in lines of the form
`from .file import name`, to wherever it imports them (`transformers.dynamic_module_utils`). So all
files are in one folder, and every import of the packages becomes a line of that form.
"""

import ast
import importlib.util
import inspect
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from longspan.errors import OptionError
from longspan.files import SMALL, read_file

_WIDTH = 100


def flatten_modules(modules: Collection[str]) -> dict[str, str]:
    """Return the sources of modules and of all that they import from their packages, by module.

    An import from a package's `__init__` becomes one from the module that the name comes from, so
    what else an `__init__` imports or registers is left out. Imports for type checkers are removed.

    Args:
        modules: full names of modules.

    Raises:
        OptionError: the source of a module is not a file, or it imports a module as a name.
    """
    packages = frozenset(module.partition(".")[0] for module in modules)
    texts: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in texts:
            texts[module], imported = _flatten(module, packages)
            waiting += imported
    return texts


def flat_name(module: str) -> str:
    """Return the name of a module's file, without suffix."""
    return module.replace(".", "_")


def import_line(module: str, names: Collection[str], indent: str = "") -> list[str]:
    """Return the lines that import names from the file of a module."""
    head = f"{indent}from .{flat_name(module)} import"
    line = f"{head} {', '.join(names)}"
    if len(line) <= _WIDTH:
        return [line]
    return [f"{head} (", *(f"{indent}    {name}," for name in names), f"{indent})"]


def _flatten(module: str, packages: Collection[str]) -> tuple[str, set[str]]:
    """Return the source of a module with relative imports, and the modules that it imports."""
    lines = _source(module).splitlines()
    imported: set[str] = set()
    tree = ast.parse("\n".join(lines))
    unused = set(_type_checking_imports(tree))
    for node in sorted(_imports(tree), key=lambda node: node.lineno, reverse=True):
        sources = _named_sources(node, module, packages)
        if not sources:
            continue
        indent = " " * node.col_offset
        new = [f"{indent}pass"]
        if node not in unused:
            imported |= sources.keys()
            new = [
                x for source, names in sources.items() for x in import_line(source, names, indent)
            ]
        lines[node.lineno - 1 : node.end_lineno] = new
    return "\n".join(lines) + "\n", imported


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _type_checking_imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run in no program, which would name files that it does not need."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for statement in node.body:
                yield from _imports(statement)


def _named_sources(
    node: ast.Import | ast.ImportFrom, module: str, packages: Collection[str]
) -> dict[str, list[str]]:
    """Return the modules of the packages that an import reads, and what it names of each."""
    if isinstance(node, ast.Import):
        if any(alias.name.partition(".")[0] in packages for alias in node.names):
            raise _refusal(node, module)
        return {}
    source = node.module or ""
    if node.level:
        source = importlib.util.resolve_name("." * node.level + source, _package(module))
    if source.partition(".")[0] not in packages:
        return {}
    texts: dict[str, list[str]] = {}
    for alias in node.names:
        origin, name = _origin(source, alias.name)
        is_submodule = _is_package(origin) and _spec(f"{origin}.{name}") is not None
        if name == "*" or is_submodule:
            raise _refusal(node, module)
        known_as = alias.asname or alias.name
        text = name if name == known_as else f"{name} as {known_as}"
        texts.setdefault(origin, []).append(text)
    return texts


def _refusal(node: ast.AST, module: str) -> OptionError:
    return OptionError(
        f"{module}, line {getattr(node, 'lineno', 0)}: {ast.unparse(node)!r} imports a module, "
        "which code in one folder cannot; import names: from package.module import name"
    )


def _origin(module: str, name: str) -> tuple[str, str]:
    """Return the module that defines a name of a package, and its name there."""
    origin = _imported_names(module).get(name) if _is_package(module) else None
    return (module, name) if origin is None else _origin(*origin)


def _imported_names(package: str) -> dict[str, tuple[str, str]]:
    """Return the module and the name there of each name that a package's `__init__` imports."""
    origins: dict[str, tuple[str, str]] = {}
    tree = ast.parse(_source(package))
    # What a package imports when it is asked for, it declares for type checkers.
    for node in [*tree.body, *_type_checking_imports(tree)]:
        if isinstance(node, ast.ImportFrom) and node.module:
            source = importlib.util.resolve_name("." * node.level + node.module, package)
            origins |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    return origins


def _is_package(module: str) -> bool:
    spec = _spec(module)
    return spec is not None and spec.submodule_search_locations is not None


def _package(module: str) -> str:
    return module if _is_package(module) else module.rpartition(".")[0]


def _spec(module: str) -> ModuleSpec | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return loaded.__spec__
    return importlib.util.find_spec(module)


def _source(module: str) -> str:
    """Return the source of a module."""
    loaded, spec = sys.modules.get(module), _spec(module)
    file = inspect.getsourcefile(loaded) if loaded is not None else spec and spec.origin
    if not file or not Path(file).is_file():
        raise OptionError(f"{module} has no source file; define its classes in a Python file")
    return read_file(Path(file), SMALL).decode("utf-8")
