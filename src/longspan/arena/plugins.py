"""Plug-ins: files and modules outside the package that register mechanisms, tasks and protocols.

A plug-in is a Python file, a module, or a protocol in TOML. Importing it registers what it defines;
a plug-in that fails registers nothing. Packages name a module in the entry-point group
`longspan.plugins`: commands, worker processes and Ray nodes import these modules too.

```python
from longspan.arena import arena, grid, load_plugin, load_protocol

load_plugin("gated_local.py")
experiments, left_out = grid(load_protocol("mine.toml").name)
```
"""

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from longspan.arena.protocols import PROTOCOLS, Protocol, files, register
from longspan.arena.protocols.files import register_imports
from longspan.arena.provenance import register_source_file
from longspan.attention import MECHANISMS
from longspan.attention.registry import KERNELS
from longspan.config.run import PARTS
from longspan.entry_points import plugin_entry_points
from longspan.errors import DataError, LongspanError, OptionError, PluginError
from longspan.files import SMALL, read_file
from longspan.metrics import METRICS
from longspan.tasks import TASKS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # of mechanisms and tasks
TOML = ".toml"
SUFFIXES = (".py", TOML)
# Registries whose names are parts of paths and settings, by kind.
_NAMED: dict[str, dict] = {"mechanism": MECHANISMS, "task": TASKS, "protocol": PROTOCOLS}


class Plugin(NamedTuple):
    """A plug-in as it was loaded.

    Attributes:
        source: absolute path of a file, or name of a module.
        content: content of the file; None for a module.
    """

    source: str
    content: bytes | None


_LOADED: dict[str, Plugin] = {}
_COPIES: list[tempfile.TemporaryDirectory] = []  # removed when the process exits


def loaded_plugins() -> tuple[Plugin, ...]:
    """Return the plug-ins of this process, in the order in which they were loaded."""
    return tuple(_LOADED.values())


def load_plugin(source: str) -> Plugin:
    """Import a plug-in; one that is loaded already is returned.

    Args:
        source: path of a Python file or of a protocol in TOML, or name of a module.

    Raises:
        PluginError: it does not exist, fails, or registers an invalid or taken name; the message
            names the file and the line.
    """
    if Path(source).suffix not in SUFFIXES and os.sep not in source:
        return _load(Plugin(source, None), source)  # a module
    path = Path(source).absolute()
    if path.suffix not in SUFFIXES:
        raise PluginError(f"{source} is no plug-in; use a .py or .toml file, or a module's name")
    try:
        content = read_file(path, SMALL)
    except OSError as error:
        raise PluginError(f"{source} cannot be read ({error.strerror or error})") from error
    except DataError as error:
        raise PluginError(str(error)) from error
    return _load(Plugin(str(path), content), source, path)


def load_protocol(source: str) -> Protocol:
    """Load a protocol from a TOML file, or from a Python file that registers one.

    Raises:
        PluginError: see `load_plugin`; or the file registers no protocol, or several of which none
            has the file's name.
    """
    path = Path(load_plugin(source).source)
    by_name = {x.name: x for x in PROTOCOLS.values() if x.file == path}
    if not by_name:
        raise PluginError(
            f"{source} registers no protocol; call longspan.arena.protocols.register in it"
        )
    if len(by_name) > 1 and path.stem not in by_name:
        raise PluginError(
            f"{source} registers several protocols; pass --import {source} and --protocol with one "
            f"of {', '.join(by_name)}"
        )
    return by_name[path.stem] if path.stem in by_name else next(iter(by_name.values()))


def load_entry_points() -> None:
    """Import the plug-ins of installed packages.

    Raises:
        PluginError: see `load_plugin`; the message names the package.
    """
    for point in plugin_entry_points():
        try:
            load_plugin(point.module)
        except PluginError as error:
            package = point.dist.name if point.dist else "?"
            raise PluginError(
                f"{error}; the package {package} names this plug-in: repair or uninstall it"
            ) from error


def restore_plugins(plugins: Iterable[Plugin], cache: Path) -> None:
    """Load the plug-ins of another process, in that process's version.

    A file that has changed since, or that is absent on this machine, is loaded from a copy.
    Protocols in TOML are last: they may name what the others register, and the imports in the
    cache.

    Args:
        plugins: plug-ins of that process.
        cache: folder of built data sets.

    Raises:
        PluginError: see `load_plugin`.
    """
    protocols = [x for x in plugins if x.content is not None and Path(x.source).suffix == TOML]
    for plugin in plugins:
        if plugin not in protocols:
            _restore(plugin)
    if any(plugin.source not in _LOADED for plugin in protocols):
        register_imports(cache)
    for plugin in protocols:
        _restore(plugin)


def _restore(plugin: Plugin) -> None:
    """Load a plug-in of another process."""
    if plugin.content is None or plugin.source in _LOADED:
        _load(plugin, plugin.source)
        return
    path = _existing_file(plugin) or _copy(plugin)
    _load(plugin, path.name, path)


def _existing_file(plugin: Plugin) -> Path | None:
    """Return the file of a plug-in if its content is that of the plug-in."""
    path = Path(plugin.source)
    with contextlib.suppress(OSError, DataError):
        if read_file(path, SMALL) == plugin.content:
            return path
    return None


def _copy(plugin: Plugin) -> Path:
    """Write the file of a plug-in into a temporary folder."""
    folder = tempfile.TemporaryDirectory(prefix="longspan-plugin-")
    _COPIES.append(folder)
    path = Path(folder.name) / Path(plugin.source).name
    path.write_bytes(plugin.content or b"")
    return path


def _load(plugin: Plugin, name: str, path: Path | None = None) -> Plugin:
    """Load a plug-in; one that fails leaves the registries as they were.

    Args:
        plugin: the plug-in.
        name: its name in messages.
        path: file to load; None: a module.
    """
    if plugin.source in _LOADED:
        return _LOADED[plugin.source]
    with _explain_errors(name, path), _restored_on_error() as before:
        if path is None:
            file = _import_module(plugin.source)
        elif path.suffix == TOML:
            file = path
            register(files.read_protocol(path, plugin.content or b""))
        else:
            file = _execute(path, plugin.content or b"")
        _check_names(before)
        for new in PROTOCOLS.keys() - before["protocol"].keys():
            PROTOCOLS[new] = dataclasses.replace(PROTOCOLS[new], file=file)
            if file is not None:
                register_source_file(f"protocol {new}", file, protocol=new)
    if file is not None and file.suffix != TOML:
        register_source_file(f"plug-in {file.stem}", file)
    _LOADED[plugin.source] = plugin
    return plugin


def _execute(path: Path, content: bytes) -> Path:
    """Run a Python file as a module, and return its path."""
    # Modules beside the file are importable, after all installed ones.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    other = sys.modules.get(path.stem)
    if other is not None and other.__name__ == path.stem and _file_of(other) == path:
        return path  # another plug-in has imported it
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    module = ModuleType(f"longspan_plugin_{path.stem}_{digest}")
    module.__file__ = str(path)
    names = [module.__name__]
    if _is_found_by_name(path):
        names.append(path.stem)  # a plug-in that imports this one must not run it again
    sys.modules.update(dict.fromkeys(names, module))
    try:
        # The import system might run the bytecode of an earlier version of the file.
        exec(compile(content, str(path), "exec"), vars(module))
    except BaseException:
        for name in names:
            del sys.modules[name]
        raise
    return path


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file)


def _is_found_by_name(path: Path) -> bool:
    """Return whether `import` finds this file by its name, and no other module has the name."""
    other = sys.modules.get(path.stem)
    if path.stem in sys.stdlib_module_names or (other is not None and _file_of(other) != path):
        return False
    importlib.invalidate_caches()
    spec = importlib.machinery.PathFinder.find_spec(path.stem)
    return spec is not None and spec.origin == str(path)


def _import_module(name: str) -> Path | None:
    """Import a module, and return its file."""
    try:
        file = importlib.import_module(name).__file__
    except ModuleNotFoundError as error:
        # A module that the plug-in itself lacks is an error of the plug-in.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        hint = f"did you mean {name}.py?" if Path(f"{name}.py").is_file() else "install it"
        raise PluginError(f"there is no module {name!r}; {hint}") from error
    return None if file is None else Path(file)


@contextlib.contextmanager
def _restored_on_error() -> Iterator[dict[str, dict]]:
    """Yield copies of the registries by kind; restore them if an error is raised."""
    registries: dict[str, dict] = {**_NAMED, "metric": METRICS}
    before = {kind: dict(registry) for kind, registry in registries.items()}
    kernels = {cls: dict(by_name) for cls, by_name in KERNELS.items()}
    try:
        yield before
    except BaseException:
        registries["kernel"], before["kernel"] = KERNELS, kernels
        for kind, registry in registries.items():
            registry.clear()
            registry.update(before[kind])
        raise


def _check_names(before: Mapping[str, Mapping]) -> None:
    """Check that each new name means one thing, and can be part of a path and of a setting."""
    for kind, registry in _NAMED.items():
        owners = {name: x for x, names in _NAMED.items() if x != kind for name in names}
        owners |= dict.fromkeys(PARTS, "part of a configuration")
        for name in registry.keys() - before[kind].keys():
            form = files.NAME if kind == "protocol" else NAME
            if not form.fullmatch(name):
                raise OptionError(
                    f"the name of a {kind} must consist of letters, digits, '_' and '-', got "
                    f"{name!r}"
                )
            if name in owners:
                raise OptionError(
                    f"{kind} {name!r} has the name of a {owners[name]}; choose another name"
                )


@contextlib.contextmanager
def _explain_errors(name: str, path: Path | None) -> Iterator[None]:
    """Raise every error of a plug-in as one line with its file and line."""
    try:
        yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        kind = "protocol" if path is not None and path.suffix == TOML else "plug-in"
        place = _place(name, path, error)
        raise PluginError(f"{kind} {place}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    if isinstance(error, LongspanError):
        return str(error)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return ": ".join([type(error).__name__, *text.splitlines()[:1]])


def _place(name: str, path: Path | None, error: BaseException) -> str:
    """Return the file of a plug-in, and the line of it where an error was raised."""
    frames = [(x.filename, x.lineno) for x in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    if path is not None:
        lines = [line for file, line in frames if file == str(path)]
        return f"{name}, line {lines[-1]}" if lines else name
    roots = _module_files(name)
    places = [x for x in frames if roots and x[0].startswith(roots)]
    return f"{name} ({places[-1][0]}, line {places[-1][1]})" if places else name


def _module_files(name: str) -> tuple[str, ...]:
    """Return the file or the folders of a module's package."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is not None:
            return tuple(spec.submodule_search_locations or [str(spec.origin)])
    return ()
