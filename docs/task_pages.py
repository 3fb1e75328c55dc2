"""Render a page for every task, from its file and the registry, for `python docs/pages.py`.

Rendering needs no data: only generated tasks have an example.
"""

import dataclasses
import functools
import sys
import tempfile
from pathlib import Path

from rendering import words
from task_notes import NOTES, Notes

from longspan.tasks import SPLITS, TASKS, Task, build
from longspan.tasks.data_cards import describe_source, describe_task
from longspan.tasks.data_cards import is_generated as task_is_generated
from longspan.tasks.layout import PairLayout

FOLDER = Path(__file__).parent / "tasks"


def written() -> dict[str, str]:
    """Return the content of every file of the folder."""
    files = {"README.md": index()}
    for name in sorted(TASKS):
        text, picture = example(name)
        files[f"{name}.md"] = page(name, f"![Example]({name}.svg)" if picture else text)
        if picture:
            files[f"{name}.svg"] = picture
    return files


def index() -> str:
    lines = [
        "# Tasks",
        "",
        "Rendered by `python docs/pages.py` from the source of each task. `longspan data list`",
        "lists available and built data sets, `longspan data card TASK` describes a built one, and",
        "`longspan data show TASK` prints or draws its examples.",
        "",
        "| task | | length | train, validation, test | classes | data | license |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for name, cls in sorted(TASKS.items()):
        task, info = cls(), cls.info
        sequences = 2 if isinstance(task.layout, PairLayout) else 1
        cells = (
            f"[`{name}`]({name}.md)",
            info.title,
            " + ".join([f"{task.length:,}"] * sequences),
            " / ".join(f"{info.sizes[split]:,}" for split in SPLITS),
            f"{info.num_classes:,}",
            "generated" if is_generated(name) else "imported",
            info.license,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(name: str, shown: str) -> str:
    task, notes = TASKS[name](), NOTES.get(name, Notes())
    pitfalls = "\n".join(f"- {pitfall}" for pitfall in notes.pitfalls)
    parts = [
        f"# `{name}`",
        str(sys.modules[type(task).__module__].__doc__).strip(),
        *(("## Example", shown) if shown else ()),
        "## Task",
        f"{task.info.summary}\n\n{describe_task(task)}\n\n{sizes(task)}",
        "## Options",
        options(task),
        "## Source and license",
        describe_source(task),
        "## Obtaining the data",
        getting(task, notes),
        *(("## Notes", task.info.notes) if task.info.notes else ()),
        *(("## Known pitfalls", pitfalls) if pitfalls else ()),
    ]
    return "\n\n".join(parts) + "\n"


@functools.cache
def is_generated(name: str) -> bool:
    """Return whether the examples are generated at the default options."""
    return task_is_generated(TASKS[name]())


def sizes(task: Task) -> str:
    rows = [f"| {split} | {task.info.sizes[split]:,} |" for split in SPLITS]
    return "\n".join(["| split | examples by default |", "|---|---:|", *rows])


def options(task: Task) -> str:
    rows = [
        f"| `{f.name}` | {f.metadata['help']} | {words(f.type)} | `{f.default!r}` |"
        for f in dataclasses.fields(task.Options)
    ]
    return "\n".join(["| option | meaning | values | default |", "|---|---|---|---|", *rows])


def getting(task: Task, notes: Notes) -> str:
    """Render the commands that build or import the data, and the accepted files."""
    name, commands = task.info.name, []
    released = "source" in {field.name for field in dataclasses.fields(task.Options)}
    if is_generated(name):
        commands.append(f"longspan data build {name}")
    if released or not is_generated(name):
        commands.append(f"longspan data import {name} PATH")
    if task.info.hub:
        commands.append(f"longspan data import {name} hub")
    text = "```\n" + "\n".join(commands) + "\n```"
    if notes.files:
        text += f"\n\n`PATH` is {notes.files}."
    if task.info.hub:
        text += f"\n\n`hub` is `{task.info.hub}` on the Hugging Face hub, read with `datasets`."
    return text


def example(name: str) -> tuple[str, str | None]:
    """Return the first example of a tiny data set, as text and as SVG; empty for imported data."""
    if not is_generated(name):
        return "", None
    fields = {field.name for field in dataclasses.fields(TASKS[name].Options)}
    small = {split: 2 for split in SPLITS if split in fields}
    options = NOTES.get(name, Notes()).example
    task = build(name, {**small, **options})
    with tempfile.TemporaryDirectory() as folder:
        task.open(Path(folder))
        text, picture = task.show("test", 0), task.svg("test", 0)
    values = ", ".join(f"`{option}={value}`" for option, value in options.items())
    text = f"```text\n{text}\n```" + (f"\n\nWith {values}." if values else "")
    return text, picture
