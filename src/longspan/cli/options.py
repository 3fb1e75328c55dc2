"""Options that commands share, each declared once: a command takes data classes of options."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from rich.markup import escape
from typer.models import ArgumentInfo, OptionInfo

from longspan.cli.common import print_note, set_quiet
from longspan.cli.parsing import parse_changes, split_integers, split_names
from longspan.cli.usage import EXAMPLES
from longspan.config import Budget, parse_budget
from longspan.entry_points import plugin_entry_points
from longspan.errors import DataError, OptionError, check_name
from longspan.launch import is_launch

if TYPE_CHECKING:
    from longspan.arena import RunPaths

DEFAULT_PROTOCOL = "lra-small"  # of commands on one task
RUNS = Path("runs")  # folder of all commands that name none
T = TypeVar("T")


def option(text: str, shown: str | None = None, *, flag: str | None = None, **settings: Any) -> Any:
    """Return the declaration of an option.

    Args:
        text: help.
        shown: text of its default; None: the default itself.
        flag: its flag; None: the name of its field.
        **settings: further arguments of `typer.Option`.
    """
    flags = () if flag is None else (flag,)
    return typer.Option(*flags, help=text, show_default=shown or True, **settings)


def argument(text: str, shown: str | None = None, **settings: Any) -> Any:
    """Return the declaration of an argument; see `option`."""
    return typer.Argument(help=text, show_default=shown or True, **settings)


def field(text: str, shown: str | None = None, *, default: Any = None, **settings: Any) -> Any:
    """Return the default of a parameter or of a field of a class.

    Args:
        text: help.
        shown: text of its default; None: the default itself.
        default: value without the option; `dict`: an empty one.
        **settings: further arguments of `option`.
    """
    value: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return dataclasses.field(**value, metadata={"option": option(text, shown, **settings)})


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(cls: type[T]) -> type[T]:
    """Make a frozen data class of options, which a command takes as one parameter (decorator)."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class Read(NamedTuple):
    """Conversion of what is typed into the value that a command receives.

    Attributes:
        convert: function of what is typed, None if nothing, and the flag for messages.
        typed: type of what is typed; `list[str]` of a repeatable option.
    """

    convert: Callable[[Any, str], Any]
    typed: Any = str | None


class App(typer.Typer):
    """Typer application whose commands take data classes of options, --import and --quiet."""

    def __init__(self, path: str = "", **settings: Any):
        """Store the words before the commands, such as "data"; commands without arguments help."""
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(no_args_is_help=True, context_settings=names, **settings)
        self.path = path

    def command(self, name: str | None = None, **settings: Any) -> Callable[[T], T]:
        """Register a command with its examples (decorator); the function stays as it is."""

        def add(function: T) -> T:
            command = cast("Callable", function)
            words = f"{self.path} {name or command.__name__.replace('_', '-')}".strip()
            start = f"  longspan {words.removesuffix(' TASK')}"
            epilog = "\n".join(["Examples:", *(escape(f"{start} {x}") for x in EXAMPLES[words])])
            super(App, self).command(name, epilog=epilog, **settings)(expand(command))
            return function

        return add


def expand(command: Callable) -> Callable:
    """Return a command with an option for each field of the data classes that it takes.

    Options of the command stand before those that it shares with others. A field without a
    declaration is an option with the help of its setting.
    """
    signature, hints = inspect.signature(command), _hints(command)
    groups: dict[str, Any] = {k: x for k, x in hints.items() if dataclasses.is_dataclass(x)}
    command_options: dict[str, Any] = {
        name: (hints[name], *_value(parameter.default))
        for name, parameter in signature.parameters.items()
        if name not in groups
    }
    shared = {
        x.name: (_hints(cls).get(x.name, x.type), *_value(x))
        for cls in groups.values()
        for x in dataclasses.fields(cls)
    }
    last = {name: command_options.pop(name) for name in ("as_json",) if name in command_options}
    common: dict[str, Any] = {"imports": (Imports, None, {}), "quiet": (Quiet, False, {})}
    declared = {**command_options, **shared, **last, **common}
    pairs = {name: _declare(name, *x) for name, x in declared.items()}
    parameters = [parameter for parameter, _ in pairs.values()]

    def run(**values: Any) -> None:
        del values["imports"], values["quiet"]
        values = {name: pairs[name][1](value) for name, value in values.items()}
        records = {
            name: cls(**{field.name: values.pop(field.name) for field in dataclasses.fields(cls)})
            for name, cls in groups.items()
        }
        command(**values, **records)

    paragraphs = inspect.cleandoc(str(command.__doc__)).split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(x.split()) for x in paragraphs)
    run.__name__, run.__module__ = command.__name__, __name__
    run.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run.__annotations__ = {x.name: x.annotation for x in parameters}
    return run


def _value(default: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the default of a parameter or a field, and what is declared with it."""
    is_field = isinstance(default, dataclasses.Field)
    return (default.default, default.metadata) if is_field else (default, {})


def _hints(owner: Any) -> dict[str, Any]:
    return get_type_hints(owner, include_extras=True)


def _declare(
    name: str, annotation: Any, default: Any, metadata: Any
) -> tuple[inspect.Parameter, Callable[[Any], Any]]:
    """Return the parameter that typer sees, with the type of what is typed, and its conversion.

    Without `Read`, typer has converted the value. The conversion refuses an empty text, such as
    that of an unset variable, which is not an omitted option.
    """
    plain, *marks = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
    if "option" in metadata:
        marks.append(metadata["option"])
    elif "help" in metadata:
        marks.append(option(f"{metadata['help'][0].upper()}{metadata['help'][1:]}."))
    reads = [x for x in marks if isinstance(x, Read)]
    info = next((copy.copy(x) for x in marks if not isinstance(x, Read)), None)
    flag = name.upper() if isinstance(info, ArgumentInfo) else f"--{name.replace('_', '-')}"
    if isinstance(info, OptionInfo):
        # Typer takes the first flag for the default. A boolean without one has --no-NAME too.
        flag = info.default = flag if info.default is ... else str(info.default)
    if reads:
        plain, default = reads[0].typed, None

    def read(value: Any) -> Any:
        if reads:
            return reads[0].convert(value, flag)
        if value == "":
            raise OptionError(f"{flag} is empty; give a value, or omit it")
        return value

    parameter = inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is dataclasses.MISSING else default,
        annotation=plain if info is None else Annotated[plain, info],
    )
    return parameter, read


def _load_plugins(sources: list[str] | None) -> list[str] | None:
    """Load the plug-ins of installed packages, then those of --import."""
    if sources or plugin_entry_points():
        from longspan.arena.plugins import load_entry_points, load_plugin

        load_entry_points()
        for source in sources or ():
            load_plugin(source)
    return sources


def name_protocol(context: typer.Context, text: str | None) -> str | None:
    """Return the name of a protocol; a file is loaded, which may name the imports in the cache."""
    if text is None or Path(text).suffix not in (".py", ".toml"):
        return text
    from longspan.arena import load_protocol
    from longspan.arena.protocols.files import register_imports
    from longspan.files import cache_folder

    # A Python file may register a task itself: an import of that name is left out.
    if Path(text).suffix == ".toml":
        register_imports(context.params.get("cache") or cache_folder())
    return load_protocol(text).name


Text = str | None
Names = Annotated[list[str] | None, Read(split_names)]
Integers = Annotated[list[int] | None, Read(split_integers)]
Pairs = Annotated[dict[str, Any], Read(parse_changes, list[str] | None)]

# Eager: protocol files and all other values may name what a plug-in registers, or the cache holds.
Imports = Annotated[
    list[str] | None,
    option(
        "Plug-in to import: a Python file, a module or a protocol file. Repeatable.",
        flag="--import",
        callback=_load_plugins,
        is_eager=True,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print the result alone.", callback=set_quiet, is_eager=True
    ),
]
Json = Annotated[bool, option("Print JSON.", flag="--json")]
Data = Annotated[Path | None, option("Folder of source files, such as IMDB's.", "$LONGSPAN_DATA")]
Device = Annotated[Text, option("cpu, to ignore an accelerator.")]
Mechanisms = Annotated[Names, option("Comma-separated mechanisms.", "all")]
Tasks = Annotated[Names, option("Comma-separated tasks.", "all")]
Record = Annotated[Path, argument("Record of a run, RUNS/PROTOCOL/TASK/NAME.json.")]
Records = Annotated[list[Path], argument("Records of runs, or folders of them.")]
SplitName = Annotated[str, option("train, validation or test.")]
BatchSize = Annotated[int | None, option("Examples per batch.", "the run's")]
ProtocolName = Annotated[
    str,
    argument(
        "Protocol, `longspan list protocols`; or a file, mine.toml or mine.py.",
        callback=name_protocol,
    ),
]


@options
class CacheOptions:
    """Folders of a command, the device, and other fields of `RunPaths`."""

    cache: Path | None = field("Folder of built data sets.", "~/.cache/longspan", is_eager=True)

    def run_paths(self, **fields: Any) -> "RunPaths":
        """Return the paths of the command; register the imports in its cache as tasks.

        Args:
            **fields: fields of `RunPaths` that are no options of the command.

        Raises:
            OptionError: the device is not cpu.
            UnknownNameError: there is no such parallelism.
            DataError: the folder of source files does not exist.
        """
        from longspan.arena import RunPaths
        from longspan.arena.protocols.files import register_imports

        names = (field.name for field in dataclasses.fields(RunPaths))
        values = {name: getattr(self, name, None) for name in names} | fields
        arguments = {name: value for name, value in values.items() if value is not None}
        if (device := arguments.get("device", "cpu")) != "cpu":
            raise OptionError(
                f"--device must be cpu, or omitted to use the accelerator; got {device!r}"
            )
        if "parallel" in arguments:
            from longspan.training.distributed.group import PARALLELISM

            check_name(arguments["parallel"], PARALLELISM, "parallelism")
            if not is_launch():
                print_note("ignored:", "--parallel; start processes with torchrun or accelerate")
        if "data" in arguments and not arguments["data"].exists():
            raise DataError(f"--data {arguments['data']} does not exist")
        paths = RunPaths(**arguments)
        register_imports(paths.cache)
        return paths


@options
class DataOptions(CacheOptions):
    """Options of commands that build data sets, or read them on the CPU."""

    data: Data = None


@options
class DeviceOptions(DataOptions):
    """Options of commands that run a saved model."""

    device: Device = None


@options
class RunOptions(CacheOptions):
    """Options of commands that train."""

    runs: Path = field("Folder of results and checkpoints.", default=RUNS)
    device: Device = None
    parallel: Text = field("Under torchrun or accelerate: ddp, fsdp or context.", "the launcher's")
    accept_changes: bool = field(
        "Resume runs that other code or versions began; their records have both.", default=False
    )


@options
class ArenaPathOptions(RunOptions):
    """Options of commands that train on tasks with source files."""

    data: Data = None


@options
class ChangeOptions:
    """Changes of a run's configuration, and the choice to print its cost in place of running it."""

    changes: Pairs = field(
        "Override a field: training.steps=100, mechanism.window=8, task.length=512; of "
        "one mechanism or task: local.window=8, listops.steps=100.",
        flag="--set",
        default=dict,
    )
    budget: Annotated[
        Budget | None, Read(lambda text, _: None if text is None else parse_budget(text))
    ] = field(
        "Quantity held equal: steps, seconds=10min, flops=1e15, memory=2GiB.", "the protocol's"
    )
    dry_run: bool = field("Print the runs and their cost; train nothing.", default=False)
    measure: bool = field("Like --dry-run, with steps timed and memory counted.", default=False)

    @property
    def is_plan(self) -> bool:
        """True if the command prints the runs and their cost alone."""
        return self.dry_run or self.measure


def default_protocol(tasks: Sequence[str] | None, otherwise: str) -> str:
    """Return the protocol of a command that names none: `own` for imported texts and collections.

    Raises:
        OptionError: some of the tasks are imported, and some are not.
        UnknownNameError: besides an imported task, there is one that is none.
    """
    from longspan.arena.protocols.files import OWN
    from longspan.tasks import TASKS, ImportedCorpus, imported_names

    imported = set(imported_names()) - set(imported_names(ImportedCorpus))
    imported_tasks = [task for task in tasks or () if task in imported]
    if imported_tasks and len(imported_tasks) < len(set(tasks or ())):
        for task in tasks or ():
            check_name(task, TASKS, "task")
        raise OptionError(
            f"{', '.join(imported_tasks)}: imported texts have the protocol {OWN!r}, other tasks "
            "have not; use a command for each protocol"
        )
    return OWN if imported_tasks else otherwise
