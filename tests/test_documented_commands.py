"""Commands on pages: each names a command, options, mechanisms, tasks, protocols and folders."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import longspan.cli
from longspan.arena import PROTOCOLS, get
from longspan.arena.protocols.base import protocol_names
from longspan.attention import MECHANISMS
from longspan.bench.suites import SUITES
from longspan.cli.usage import EXAMPLES, RENAMED
from longspan.report.sections import WITH_TABLES
from longspan.tasks import TASKS

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(x for x in sorted((ROOT / "docs").rglob("*.md")) if x.name != "mutants.md"),
]
COMMAND = typer.main.get_command(longspan.cli.app)
PLACEHOLDER = re.compile(r"[A-Z][A-Z_./-]*|.*(…|\.\.\.).*|<.*>|\[.*\]")  # FOLDER, RECORD, ...
OWN = {"own", "pretrain", "finetune"}  # protocols of imports and of checkpoints of one's own


def commands_of(path):
    """Return the commands of a page: lines of code blocks, and code in the text."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.M | re.DOTALL)
    lines = [x for block in blocks for x in block.splitlines() if x.startswith("longspan ")]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.DOTALL)
    lines += re.findall(r"`(longspan [^`]+)`", re.sub(r"\n", " ", prose))
    return [shlex.split(re.split(r" \| | > ", x)[0], comments=True)[1:] for x in lines]


DOCUMENTED = [
    pytest.param(words, id=f"{path.relative_to(ROOT)}: {' '.join(words)}"[:150])
    for path in PAGES
    for words in commands_of(path)
] + [
    pytest.param(line, id=f"help: {' '.join(line)}")
    for name, examples in EXAMPLES.items()
    for line in (shlex.split(f"{name.removesuffix(' TASK')} {x}") for x in examples)
]


def imported_names():
    """Return the names that documented imports give to texts and corpora."""
    found = set()
    for words in (x.values[0] for x in DOCUMENTED):
        if words[:3] == ["data", "import", "corpus"] and "--name" not in words:
            found.add(Path(words[3]).name)
        found |= {Path(x).stem for x in words if x.endswith((".csv", ".jsonl", ".parquet"))}
        found |= {words[i + 1] for i, x in enumerate(words[:-1]) if x == "--name"}
    return found


IMPORTED = imported_names()


def rows_of(protocol):
    """Return the mechanisms, reference rows and variants of a protocol."""
    made = get(protocol) if protocol in protocol_names() else get("lra-small")
    return {*MECHANISMS, *made.row_names}


def parsed(words):
    """Return the command, its positional values and its options with values."""
    command, rest = COMMAND, list(words)
    while rest and (commands := getattr(command, "commands", {})):
        if command.name == "import" and rest[0] not in commands:
            rest.insert(0, "TASK")
        if rest[0] not in commands:
            break
        command = command.commands[rest.pop(0)]
    known = {name: x for x in command.params for name in (*x.opts, *x.secondary_opts)}
    known["--help"] = typer.main.get_command(longspan.cli.app).params[0]  # a flag
    values, options = [], []
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            values.append(word)
            continue
        assert name in known, f"no option {name} of {command.name}"
        takes_value = not known[name].is_flag
        if takes_value and not equals:
            value = rest.pop(0) if rest else ""
        options.append((name, value))
    return command, values, options


def check_names(text, names, what):
    for name in text.split(","):
        if not PLACEHOLDER.fullmatch(name):
            assert name in names, f"no {what} called {name!r}"


@pytest.mark.parametrize("words", DOCUMENTED)
def test_documented_command_exists(words):
    if not words or PLACEHOLDER.fullmatch(words[0]):
        return
    command, values, options = parsed(words)
    assert not hasattr(command, "commands") or not values, f"no command {words[0]!r}"
    if command.name == "longspan":
        return
    arguments = [x for x in command.params if x.param_type_name == "argument"]
    assert len(values) <= len(arguments) or any(x.nargs == -1 for x in arguments)
    given = dict(options)
    protocol = given.get("--protocol", "lra-small")
    if not protocol.endswith((".toml", ".py")):
        check_names(protocol, {*protocol_names(), *OWN}, "protocol")
    plugins = {Path(x).stem for name, x in options if name == "--import"}
    tasks = {*TASKS, *IMPORTED}
    for name in ("--task", "--tasks"):
        check_names(given.get(name) or "TASK", tasks, "task")
    rows = rows_of(protocol) | plugins
    for name in ("--mechanism", "--mechanisms"):
        if command.name not in ("report", "bench"):
            check_names(given.get(name) or "MECHANISM", rows, "row")
    check_names(given.get("--section") or "SECTION", WITH_TABLES, "section")
    if command.name in ("pretrain", "finetune"):
        check_names([*values, "TASK", "TASK"][1], tasks | {*PROTOCOLS}, "task")
    if command.name == "train":
        check_names((values or ["MECHANISM"])[0], rows, "row")
        check_names([*values, "TASK", "TASK"][1], tasks, "task")
    if command.name == "bench":
        check_names((values or ["SUITE"])[0], SUITES, "suite")
    if words[0] == "show":
        names = {*MECHANISMS, *TASKS, *protocol_names(), *OWN, *IMPORTED}
        check_names((values or ["NAME"])[0], names, "name")
    for path in (*values, *(x for _, x in options)):
        check_place(path, tasks)


def check_place(text, tasks):
    """Check a path below `runs`: the protocol, the task and the mechanism of its name."""
    parts = Path(text).parts
    if parts[:1] != ("runs",) or len(parts) < 2 or PLACEHOLDER.fullmatch(parts[1]):
        return
    check_names(parts[1], {*protocol_names(), *OWN, "efficiency"}, "protocol")
    if len(parts) > 2 and not parts[2].endswith(".html"):
        known = IMPORTED if parts[1] in OWN else set(get(parts[1]).tasks)
        check_names(parts[2], known, f"task of {parts[1]}")
    if len(parts) > 3 and parts[1] in PROTOCOLS:
        name = re.match(r"[a-z_]+", parts[3])[0]
        check_names(name, rows_of(parts[1]), "row")


@pytest.mark.parametrize("name", RENAMED)
def test_earlier_name_is_one_line_with_its_successor(name, cli):
    *command, last = name.split()
    code, out, err = cli(*command, *(["x", f"{last}=y"] if last.startswith("-") else [last, "x"]))
    assert (code, out) == (2, "")
    assert err == f"error: longspan {name} was renamed; use {RENAMED[name]}\n"
    words = RENAMED[name].split()
    if words[0] == "longspan":
        parsed(words[1:])
    else:
        assert words[0] in {x for one in parsed(command)[0].params for x in one.opts}
    current = parsed(command)[0]
    taken = {*getattr(current, "commands", {}), *(x for one in current.params for x in one.opts)}
    assert last not in taken


def test_pages_have_commands():
    assert len(DOCUMENTED) > 150


def test_a_second_pair_after_one_option_is_told_to_repeat_it(cli):
    words = ["train", "local", "recall", "--set", "task.pairs=4", "task.length=16"]
    message = "--set takes one NAME=VALUE; write --set before 'task.length=16' too"
    assert cli(*words) == (2, "", f"error: {message}\n")
