"""Render the page of every task from its module and the registry, for `python docs/pages.py`.

No data is needed: only generated tasks have examples.
"""

import dataclasses
import functools
import sys
import tempfile
from pathlib import Path

from rendering import words
from task_notes import NOTES, Notes

from longspan.tasks import SPLITS, TASKS, Split, Task, build
from longspan.tasks.data_cards import describe_source, describe_task, is_generated

FOLDER = Path(__file__).parent / "tasks"
UNKNOWN = "known after the build"  # number of examples


def written() -> dict[str, str]:
    """Return the content of every file of the folder, by name."""
    files = {"README.md": render_index()}
    for name in sorted(TASKS):
        text, picture = render_example(name)
        files[f"{name}.md"] = render_page(name, f"![An example]({name}.svg)" if picture else text)
        if picture:
            files[f"{name}.svg"] = picture
    return files


def render_index() -> str:
    lines = [
        "# Tasks",
        "",
        "Rendered by `python docs/pages.py` from the source of each task. `longspan data list`",
        "lists sources and built data sets, `longspan data card TASK` describes a data set, and",
        "`longspan data show TASK` prints or draws its examples.",
        "",
        "| task | | length | train, validation, test | classes | data | license |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for name, cls in sorted(TASKS.items()):
        task, info = cls(), cls.info
        has_classes = not (task.head.compares_examples or task.generation)
        cells = (
            f"[`{name}`]({name}.md)",
            info.title,
            " + ".join(f"{length:,}" for length in lengths(task)),
            " / ".join(show_sizes(task).values()) if any(task.sizes.values()) else UNKNOWN,
            f"{task.num_classes:,}" if has_classes else "–",
            "generated" if generated_by_default(name) else "imported",
            info.license,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def lengths(task: Task) -> list[int]:
    """Return the length of each sequence of an example."""
    return [task.input_shapes[name][-1] for name in task.head.texts]


def render_page(name: str, example: str) -> str:
    task, notes = TASKS[name](), NOTES.get(name, Notes())
    issues = "\n".join(f"- {issue}" for issue in notes.known_issues)
    parts = [
        f"# `{name}`",
        str(sys.modules[type(task).__module__].__doc__).strip(),
        *(("## An example", example) if example else ()),
        "## Task",
        f"{task.info.summary}\n\n{describe_task(task)}\n\n{render_sizes(task)}",
        "## Options",
        render_options(task),
        "## Source and license",
        describe_source(task),
        "## Data",
        render_commands(task, notes),
        *(("## Notes", task.info.notes) if task.info.notes else ()),
        *(("## Known issues elsewhere", issues) if issues else ()),
    ]
    return "\n\n".join(parts) + "\n"


@functools.cache
def generated_by_default(name: str) -> bool:
    return is_generated(TASKS[name]())


def render_sizes(task: Task) -> str:
    rows = [f"| {split} | {size} |" for split, size in show_sizes(task).items()]
    return "\n".join(["| split | examples by default |", "|---|---:|", *rows])


def show_sizes(task: Task) -> dict[Split, str]:
    """Return the number of examples of each split, if it is known before the build."""
    return {split: f"{size:,}" if size else UNKNOWN for split, size in task.sizes.items()}


def render_options(task: Task) -> str:
    rows = [
        f"| `{f.name}` | {f.metadata['help']} | {words(f.type)} | `{f.default!r}` |"
        for f in dataclasses.fields(task.Options)
    ]
    return "\n".join(["| option | | values | default |", "|---|---|---|---|", *rows])


def render_commands(task: Task, notes: Notes) -> str:
    """Return the commands that build the data set, and the files that can be imported."""
    name, commands = task.info.name, []
    has_release = "source" in {field.name for field in dataclasses.fields(task.Options)}
    if generated_by_default(name):
        commands.append(f"longspan data build {name}")
    if has_release or not generated_by_default(name):
        commands.append(f"longspan data import {name} PATH")
    if task.info.hub:
        commands.append(f"longspan data import {name} hub")
    text = "```\n" + "\n".join(commands) + "\n```"
    if notes.files:
        text += f"\n\n`PATH` is {notes.files}."
    if task.info.hub:
        text += f"\n\n`hub` is `{task.info.hub}` of Hugging Face, through the library `datasets`."
    return text


def render_example(name: str) -> tuple[str, str | None]:
    """Return the first example of a tiny data set, as text and as SVG; none if it is imported."""
    if not generated_by_default(name):
        return "", None
    fields = {field.name for field in dataclasses.fields(TASKS[name].Options)}
    sizes = {split: 2 for split in SPLITS if split in fields}
    options = NOTES.get(name, Notes()).example
    task = build(name, {**sizes, **options})
    with tempfile.TemporaryDirectory() as folder:
        task.open(Path(folder))
        text, picture = task.show("test", 0), task.svg("test", 0)
    given = ", ".join(f"`{option}={value}`" for option, value in options.items())
    text = f"```text\n{text}\n```" + (f"\n\nWith {given}." if given else "")
    return text, picture
