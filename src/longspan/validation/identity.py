"""Rules for results and failures: file name, hash, recipe of the protocol, provenance."""

from collections.abc import Iterable, Iterator
from typing import Any

from longspan.arena.experiment import Experiment, add_default_options, hash_config
from longspan.arena.protocols.base import get, protocol_names
from longspan.arena.search import SEED
from longspan.attention import MECHANISMS
from longspan.config import flatten, parse_budget
from longspan.errors import LongspanError, check_name
from longspan.results import Failure, Result
from longspan.results.commands import limit_to_run
from longspan.tasks import TASKS
from longspan.validation.findings import Finding, RecordFile, Severity

_ABSENT = "absent"
_PUBLISH = "publish the file with the record"


def check_place(file: RecordFile) -> Iterable[Finding]:
    """Compare the path with `<protocol>/<task>/<row>-<hash>-<seed>.json`."""
    record = file.record
    expected = "/".join((record.protocol, record.task, record.filename))
    actual = "/".join(file.path.resolve().parts[-3:])
    return file.compare("file name", actual, expected, "move the file there")


def _check_hash(file: RecordFile) -> Iterable[Finding]:
    """Compare the hash with that of the configuration; `_check_recipe` reports unknown names."""
    record = file.record
    if record.task not in TASKS or record.mechanism not in MECHANISMS:
        return ()
    remedy = "restore the configuration that ran, or run it again"
    return file.compare("config_hash", record.config_hash, hash_config(record.config), remedy)


def _check_recipe(file: RecordFile) -> Iterator[Finding]:
    """Compare the configuration with the protocol's recipe and the overrides."""
    record = file.record
    try:
        check_name(record.mechanism, MECHANISMS, "mechanism")
        experiment = _requested_experiment(record)
    except LongspanError as error:
        expected = "registered names, and overrides that the protocol accepts"
        severity: Severity = "note"
        if missing := _unloaded_files(record):
            remedy = f"load {', '.join(missing)} to check the recipe and the cost too"
        elif _lacks_imports(record):
            remedy = "import it to check the recipe and the cost too"
        else:
            severity, remedy = "error", "correct it, or register the name with --import FILE"
        yield file.finding("config", error, expected, remedy, severity)
        return
    recipe, config = flatten(experiment.config), flatten(add_default_options(record.config))
    for name, value in config.items():
        remedy = f"name it in the overrides, or run the recipe of {record.protocol}"
        yield from file.compare(f"config.{name}", value, recipe.get(name, _ABSENT), remedy)


def _unloaded_files(record: Result | Failure) -> list[str]:
    """Return the files of users that define the mechanism, task or protocol, if unknown here."""
    is_registered = {
        "protocol": record.protocol in protocol_names(),
        "task": record.task in TASKS,
        "mechanism": record.mechanism in MECHANISMS,
    }
    return [
        str(source)
        for part, source in (record.source_files or {}).items()
        if (source.is_external or source.name in (record.added_files or ()))
        and not is_registered.get(part.partition(" ")[0], True)
    ]


def _lacks_imports(record: Result | Failure) -> bool:
    """Return whether the record needs an import that is not registered."""
    if record.protocol not in protocol_names():
        return False
    protocol = get(record.protocol)
    needed = protocol.missing_imports.keys() - protocol.optional_imports.keys()
    return bool(needed) or record.task in protocol.missing_imports


def _requested_experiment(record: Result | Failure) -> Experiment:
    """Return the experiment that protocol, tuning and overrides describe."""
    protocol = get(record.protocol)
    tuning = record.tuning if isinstance(record, Result) else None
    # A combination of the protocol's own grid is no override.
    grid = protocol.grids.get(record.task, {})
    tuned = {
        name: value
        for name, value in (tuning.chosen if tuning else {}).items()
        if name != SEED and value in grid.get(name, ())
    }
    changes = {**_of_checkpoint(record), **limit_to_run(record, {**tuned, **record.changes})}
    text = changes.pop("budget", None)
    budget = None if text is None else parse_budget(str(text))
    return protocol.row(record.task, record.row_name, record.seed, changes, budget)


def _of_checkpoint(record: Result | Failure) -> dict[str, Any]:
    """Return the settings that a given checkpoint decides, as the record has them."""
    start = record.config.start
    if start is None or start.checkpoint is None:
        return {}
    return {
        name: value
        for name, value in flatten(record.config).items()
        if (
            name.startswith(("model.", "mechanism.", "start."))
            and name not in ("mechanism.name", "start.task", "start.run")
        )
        or name in ("task.vocabulary", "task.length", "task.target_length")
    }


def _check_provenance(file: RecordFile) -> Iterator[Finding]:
    """Require code that a reader can get: of a commit, of a release, or named by its sha256."""
    record = file.record
    for part, source in (record.source_files or {}).items():
        if source.sha256 is None:
            expected, remedy = (
                f"the sha256 of the file of the {part}",
                f"define the {part} in a file",
            )
            yield file.finding(f"source_files.{part}", None, expected, remedy, "warning")
        elif source.is_external:
            expected = "a file of longspan"
            yield file.finding(f"source_files.{part}", source, expected, _PUBLISH, "note")
    for name in record.added_files or ():
        yield file.finding("added_files", name, "a file of the commit", _PUBLISH, "note")
    if record.git_commit is None:
        version = record.versions.get("longspan", "unknown")
        remedy = f"publish the record with the version of longspan, {version}"
        yield file.finding("git_commit", None, "a commit", remedy, "note")
    elif record.git_commit.endswith("-dirty") and record.changed_files != {}:
        # The commit of an earlier record says nothing about which files differ.
        changed = ", ".join(record.changed_files or ("unknown files",))
        actual = f"{record.git_commit}, with changes in {changed}"
        remedy = "run it from a clean checkout"
        yield file.finding("git_commit", actual, "a commit without them", remedy, "warning")


def _check_start(file: RecordFile) -> Iterator[Finding]:
    """Require the weights that the configuration starts from, and say where a reader gets them."""
    record = file.record
    start = record.config.start
    if not isinstance(record, Result):
        return
    if start is None or record.start is None:
        yield from file.compare("start", record.start is not None, start is not None)
    elif start.checkpoint is not None:
        yield from file.compare("start.sha256", record.start.sha256, start.checkpoint)
        expected, remedy = "a run of the protocol", "publish the checkpoint with the record"
        yield file.finding("start", record.start.source, expected, remedy, "note")


RULES = (check_place, _check_hash, _check_recipe, _check_provenance, _check_start)
