"""Protocols as TOML files: layers, what they equal, and rejected files."""

import dataclasses
from pathlib import Path

import pytest

from longspan.arena import (
    PROTOCOLS,
    SearchSpace,
    get,
    grid,
    load_protocol,
    search,
    searches,
)
from longspan.arena.experiment import hash_config
from longspan.arena.protocols.compare import compare
from longspan.attention import MECHANISMS
from longspan.catalog import protocol_values
from longspan.config import Budget, flatten
from longspan.data.imports.stored import check_task_name
from longspan.errors import LongspanError, OptionError, PluginError
from longspan.results.reading import OTHER_FOLDERS

pytestmark = pytest.mark.usefixtures("registries")

MIXED = """
summary = "Recall and ListOps."
source = "section 4"

[training]
batch_size = 16
steps = 900

[mechanisms.local]
window = 5

[tasks.recall]
from = "diagnostic"
task = { length = 64 }
training = { steps = 300, max_grad_norm = "none" }
mechanisms.local.window = 7
mechanisms.dilated.window = 3

[tasks.listops]
from = "lra-small"
model = { num_hidden_layers = 1 }
"""


def load(folder, text, name="mine"):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return load_protocol(str(path))


def test_file_mixes_tasks_and_changes_what_it_names(tmp_path):
    protocol = load(tmp_path, MIXED)
    assert (protocol.name, protocol.summary) == ("mine", "Recall and ListOps.")
    assert (protocol.tasks, protocol.source) == (("recall", "listops"), "section 4")
    assert protocol.file == tmp_path / "mine.toml"
    assert get("mine") is protocol
    changes = {
        "recall": {"training.batch_size": 16, "training.steps": 300, "task.length": 64,
                   "training.max_grad_norm": None},
        "listops": {"training.batch_size": 16, "training.steps": 900,
                    "model.num_hidden_layers": 1},
    }  # fmt: skip
    windows = {("recall", "local"): 7, ("listops", "local"): 5, ("recall", "dilated"): 3}
    for task, origin in (("recall", "diagnostic"), ("listops", "lra-small")):
        for mechanism in MECHANISMS:
            changed = dict(changes[task])
            if (task, mechanism) in windows:
                changed["mechanism.window"] = windows[task, mechanism]
            expected = get(origin).row(task, mechanism, 0, changed).config
            assert protocol.config(task, mechanism) == expected
            assert hash_config(protocol.config(task, mechanism)) == hash_config(expected)
    experiments, _ = grid("mine", mechanisms=["local"])
    assert {x.task for x in experiments} == {"recall", "listops"}
    assert all(not x.overrides for x in experiments)


def test_grids_have_none_and_values_of_one_mechanism(tmp_path):
    """They refused "none", and a field of one mechanism ended every search."""
    text = """
base = "smoke"
[tasks.listops.grid]
"training.max_grad_norm" = ["none", 1.0]
"model.attention_head_size" = ["none", 16]
"local.window" = [4, 8]
"listops.training.steps" = [3]
"""
    made = load(tmp_path, text)
    shared = {
        "training.max_grad_norm": (None, 1.0),
        "model.attention_head_size": (None, 16),
        "training.steps": (3,),
        "seed": (0,),
    }
    for name in ("local", "full"):
        found = search(made.name, "listops", name, SearchSpace())
        window = {"mechanism.window": (4, 8)} if name == "local" else {}
        assert found.grid == {**shared, **window}
        configs = {flatten(x.config)["mechanism.window"] for x in found.experiments if window}
        assert configs == set(window.get("mechanism.window", ()))
        assert not any(x.overrides for x in found.experiments)
    (both,), skipped = searches(made.name, SearchSpace(), mechanisms=["local"])
    assert (both.grid["mechanism.window"], skipped) == ((4, 8), [])


@pytest.mark.parametrize("name", ["quick", "diagnostic", "lra-paper", "s4-style"])
def test_file_of_a_base_alone_equals_the_base(tmp_path, name):
    made, base = load(tmp_path, f'base = "{name}"\n'), get(name)
    assert compare(made, base) == []
    assert made.named_rows == base.named_rows
    assert made.budget == base.budget


def test_file_adds_a_task_to_its_base_and_sets_a_budget(tmp_path):
    text = 'base = "diagnostic"\nname = "more"\nbudget = "seconds=10min"\n[tasks.listops]\n'
    protocol = load(tmp_path, text + 'from = "lra-small"\n')
    assert protocol.tasks == ("recall", "copying", "listops")
    assert protocol.budget == Budget(kind="seconds", limit=600.0)
    assert protocol.name == "more"
    fields = {x.field for x in compare(protocol, get("diagnostic"))}
    assert fields == {"budget.kind", "budget.limit", "covered"}


def test_file_without_a_base_states_the_whole_recipe(tmp_path):
    recipe = get("diagnostic").recipe("recall")
    lines = ["[tasks.recall]"]
    for part in ("model", "training"):
        lines.append(f"[tasks.recall.{part}]")
        for field in dataclasses.fields(getattr(recipe, part)):
            value = getattr(getattr(recipe, part), field.name)
            if field.default is dataclasses.MISSING:
                lines.append(f"{field.name} = {value!r}")
    protocol = load(tmp_path, "\n".join(lines))
    made = protocol.recipe("recall")
    for part in ("model", "training"):
        for field in dataclasses.fields(getattr(made, part)):
            is_required = field.default is dataclasses.MISSING
            expected = getattr(recipe, part) if is_required else None
            value = getattr(expected, field.name) if is_required else field.default
            assert getattr(getattr(made, part), field.name) == value


CHOICE = '[[choices]]\nfields = ["{}"]\nsource = "a"\nwhy = "b"\n'
TASK = '[tasks.recall]\nfrom = "diagnostic"\n'
INVALID = {
    "syntax": ("base = quick\n", "not a TOML file: Invalid value (at line 1, column 8)"),
    "field": ('bse = "quick"\n', "no field of a protocol called 'bse'; did you mean base?"),
    "base": ('base = "quik"\n', "base: no protocol called 'quik'; did you mean quick?"),
    "no task": ('summary = "x"\n', 'a protocol needs a task: add [tasks.NAME], or base = "PROTO'),
    "text": ("base = 3\n", "base must be text, got 3"),
    "table": ("tasks = 3\n", "tasks must be a table, got 3"),
    "task": ("[tasks.recal]\n", "tasks.recal: no task called 'recal'; did you mean recall?"),
    "task value": ("[tasks]\nrecall = 3\n", "tasks.recall: must be a table, got 3"),
    "task field": (TASK + "form = 1\n", "tasks.recall: no field of a task called 'form'; did you"),
    "from": (
        '[tasks.recall]\nfrom = "lra-small"\n',
        "tasks.recall.from: protocol 'lra-small' has no task 'recall'; it has listops, ",
    ),
    "task option": (TASK + "task = { lenght = 3 }\n", "tasks.recall.task: no option of task "
                    "'recall' called 'lenght'; did you mean length?"),
    "task option value": (TASK + 'task = { length = "x" }\n', "recall.task: length should be"),
    "model": (TASK + "model = { hidden = 3 }\n", "tasks.recall.model: no field called 'hidden'"),
    "training": (TASK + "training = { stps = 3 }\n", "tasks.recall.training: no field called 'stps'"
                 "; did you mean steps"),
    "value": (TASK + "training = { steps = 0 }\n", "tasks.recall.training: steps must be at least"),
    "every": ("[training]\nstps = 3\n" + TASK, "training: no field called 'stps'; did you mean"),
    "null": (TASK + 'training = { steps = "none" }\n', "steps should be a valid integer, got"),
    "mechanism": ("[mechanisms.locl]\nwindow = 3\n" + TASK, "mechanisms: no mechanism called 'lo"),
    "option": (TASK + "mechanisms.local.windw = 3\n", "tasks.recall.mechanisms: no option of "
               "mechanism 'local' called 'windw'; did you mean window?"),
    "lacking option": (TASK + "mechanisms.delta.window = 3\n", "no option of mechanism 'delta' "
                       "called 'window'; there are none"),
    "date": (TASK + "mechanisms.local.window = 2020-01-01\n", "window of 'local' must be JSON"),
    "incomplete": (
        "[tasks.recall]\n[tasks.recall.training]\nsteps = 3\n",
        "tasks.recall.model: requires hidden_size, num_hidden_layers, num_attention_heads, "
        'intermediate_size, classifier_hidden_size; set them, or start from a protocol: from = "N',
    ),
    "budget": ('budget = "sconds=3"\n' + TASK, "budget: no budget called 'sconds'; did you"),
    "name": ('name = "a/b"\n' + TASK, "name must consist of letters, digits, '_', '.' and '-'"),
    "budget of a row": (
        TASK + '[rows.short]\nbudget = "sconds=3"\n', "rows.short.budget: no budget called 's"
    ),
    "seeds": ('seeds = ["a"]\n' + TASK, "seeds must be a list of numbers >= 0, got ['a']"),
    "no seeds": ("seeds = []\n" + TASK, "seeds must have at least one number, got []"),
    "rows": ("default_rows = 3\n" + TASK, "default_rows must be a list of texts, got 3"),
    "unknown row": ('default_rows = ["locl"]\n' + TASK, "no row called 'locl'; did you mean local"),
    "grid": (TASK + "grid = { seed = 3 }\n", "tasks.recall.grid: seed must be a list of values"),
    "grid field": (TASK + 'grid = { "training.stps" = [3] }\n', "tasks.recall.grid: no field of "
                   "training called 'stps'; did you mean steps"),
    "grid value": (TASK + 'grid = { "training.steps" = [0] }\n', "grid: steps must be at least 1"),
    "choice": (TASK + '[[choices]]\nfields = ["training.steps"]\n', "choices 1: requires source, "
               "why; set them"),
    "choice field": (TASK + CHOICE.format("training.stps"), "choices: no field called "
                     "'training.stps'; did you mean training.steps"),
    "alternative": (TASK + CHOICE.format("training.steps") + "instead = [{ value = 3 }]\n",
                    "choices 1: instead requires source, got {'value': 3}"),
    "repeat": (TASK + "training = { adam_betas = { repeat = [3] } }\n", "repeat must be a list of "
               "pairs of a value and a number, such as [[32, 2], [64, 4]], got [3]"),
    "function": ('[compute]\nfunction = "task"\n', "compute: no function called 'task'; did you"),
    "argument": ('[compute]\nfunction = "tasks"\nepochs = 3\n', "compute: epochs, batch_size, "
                 "fewest, most, unknown must be a list of numbers"),
    "taken": ('name = "quick"\n' + TASK, "protocol 'quick' is already registered; choose another"),
    "task's name": ('name = "recall"\n' + TASK, "protocol 'recall' has the name of a task"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_invalid_file_is_rejected_with_its_name_and_field(tmp_path, case):
    text, message = INVALID[case]
    with pytest.raises(PluginError) as raised:
        load(tmp_path, text)
    found = str(raised.value)
    assert found.startswith(f"protocol {tmp_path / 'mine.toml'}: ")
    assert message in found
    assert "\n" not in found
    assert "mine" not in PROTOCOLS


def test_file_in_another_encoding_is_rejected(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes('summary = "é"\n'.encode("latin-1"))
    with pytest.raises(PluginError, match="not a TOML file: 'utf-8' codec can't decode"):
        load_protocol(str(path))


@pytest.mark.parametrize(
    "place", ["docs/arena/protocols.md", "src/longspan/arena/protocols/files.py"]
)
def test_documented_file_is_valid(tmp_path, place):
    text = (Path(__file__).parents[2] / place).read_text()
    blocks = [block.partition("```")[0] for block in text.split("```toml\n")[1:]]
    (example,) = (block for block in blocks if "[tasks.recall]" in block)
    assert "recall" in load(tmp_path, example.replace('name = "mine"', "")).tasks


def test_stage_drops_sliding_evaluation(tmp_path):
    """A file has no null: a stage writes "none", as the tables of a task do."""
    text = """
    base = "transformer-xl"
    [tasks.enwik8.task]
    evaluation = "sliding"
    stride = 64
    [tasks.enwik8.training]
    stages = [
        { steps = 1, changes = { "task.evaluation" = "segments", "task.stride" = "none" } },
        { steps = 1 },
    ]
    """
    protocol = load(tmp_path, text)
    first, last = protocol.experiment("enwik8", "local", 0).config.stages()
    assert (first.task.options["evaluation"], first.task.options["stride"]) == ("segments", None)
    assert (last.task.options["evaluation"], last.task.options["stride"]) == ("sliding", 64)


@pytest.mark.parametrize("name", sorted(OTHER_FOLDERS))
def test_protocol_has_no_name_of_another_folder_of_runs(tmp_path, name):
    with pytest.raises(LongspanError, match=f"must differ from the folders .*, got '{name}'"):
        load(tmp_path, 'base = "quick"', name)
    assert name not in PROTOCOLS
    with pytest.raises(OptionError, match=f"got '{name}'"):
        check_task_name(name)


FOLLOWING = """
base = "diagnostic"

[rows.first]
mechanism = "local"
training = { steps = 50, batch_size = 8 }
[rows.first.tasks.recall]
training = { steps = 30, batch_size = 4 }
[rows.first.tasks.copying]

[rows.second]
from = "first"
training = { steps = 10 }
"""


def test_values_of_a_row_come_after_those_of_the_row_it_starts_from(tmp_path):
    """Those of a task in the earlier row were taken in place of the later row's own."""
    protocol = load(tmp_path, FOLLOWING)
    made = {
        (row.name, task): protocol.row(task, row.name, 0).config.training
        for row in protocol.named_rows
        for task in row.tasks
    }
    assert {x: (y.steps, y.batch_size) for x, y in made.items()} == {
        ("first", "recall"): (30, 4),
        ("first", "copying"): (50, 8),
        ("second", "recall"): (10, 4),
        ("second", "copying"): (10, 8),
    }


TIMED = """
base = "diagnostic"

[rows.timed]
mechanism = "local"
budget = "seconds=1min"

[rows.timed-dilated]
from = "timed"
mechanism = "dilated"

[rows.longer]
from = "timed"
budget = "seconds=2min"

[rows.free]
mechanism = "local"
"""


def test_row_has_a_budget_that_other_rows_do_not_have(tmp_path):
    protocol = load(tmp_path, TIMED)
    minute = Budget(kind="seconds", limit=60.0)
    rows = {row.name: protocol.row("recall", row.name, 0) for row in protocol.named_rows}
    limits = {name: row.config.budget.limit for name, row in rows.items()}
    assert limits == {"timed": 60, "timed-dilated": 60, "longer": 120, "free": None}
    assert rows["timed"].overrides == {"variant": "timed"}
    plain = protocol.row("recall", "local", 0, budget=minute)
    assert rows["timed"].config == plain.config
    assert protocol.row("recall", "timed", 0, budget=minute) == rows["timed"]
    assert protocol.row("recall", "free", 0, budget=minute).config.budget == minute
    expected = (
        "variant 'timed' has the budget seconds=60, got seconds=120; omit --budget, or run 'l"
    )
    with pytest.raises(OptionError, match=expected):
        protocol.row("recall", "timed", 0, budget=Budget(kind="seconds", limit=120.0))
    (shown,) = (x.b for x in compare(get("diagnostic"), protocol, tasks=["recall"])
                if x.field == "row.timed")  # fmt: skip
    assert shown == {"variant": "local", "budget": "seconds=60"}
    assert "budget = seconds=60" in protocol_values(protocol)["variants"]["timed (recall, copying)"]


def test_row_with_a_budget_is_searched_under_it(tmp_path, monkeypatch):
    """A search under no other budget was refused for that of the protocol."""
    monkeypatch.setitem(PROTOCOLS, "timed", load(tmp_path, TIMED))
    grid = {"training.learning_rate": (1e-3, 2e-3)}
    for name, limit in (("timed", 60), ("longer", 120), ("free", None)):
        found = search("timed", "recall", name, SearchSpace(grid=grid))
        assert {x.config.budget.limit for x in found.experiments} == {limit}
