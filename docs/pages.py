"""Render a page for every mechanism, from its file, the registry and the benchmark records.

    python docs/pages.py

Writes docs/mechanisms (<name>.md, <name>.svg; README.md and timeline.svg by `gallery`),
docs/tasks (by `task_pages`), the list of recipes, docs/choosing.md (by `choosing_page`), the
tables of docs/api (by `api_tables`), the count in docs/figures.md, the table of
docs/arena/protocols.md, and for reports the published scores of the tasks and the traits of the
mechanisms. A test checks that these files are current.
"""

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import get_type_hints

import api_tables
import choosing_page
import gallery
import task_pages
import torch
from gallery import TRAITS, about
from layer_record import (
    PRECISION,
    conditions,
    layers,
    memory_over_full,
    record_of,
    speed_over_full,
)
from mechanism_notes import NOTES, Notes
from pictures import FAINT, TOKENS, picture
from rendering import words, write

from longspan.arena.protocols.base import get, protocol_names
from longspan.attention import MECHANISMS, Attention, build, options_of
from longspan.attention.build import SHARED_OPTIONS
from longspan.catalog import (
    describe,
    families,
    list_mechanisms,
    protocol_values,
    sample_options,
)
from longspan.tasks import TASKS

FOLDER = Path(__file__).parent / "mechanisms"
RECIPES = Path(__file__).parent / "recipes"
FIGURES = Path(__file__).parent / "figures.md"
PROTOCOLS = Path(__file__).parent / "arena" / "protocols.md"
CATALOG = Path(__file__).parents[1] / "src" / "longspan" / "catalog.json"
LENGTHS = (1024, 4096)
HEADS, HEAD_DIM = 2, 64


def written() -> dict[str, str]:
    """Return the content of every file of the folder."""
    torch.set_num_threads(1)
    files = {"README.md": gallery.index(), "timeline.svg": gallery.timeline()}
    for name in MECHANISMS:
        files[f"{name}.md"] = page(name)
        files[f"{name}.svg"] = picture(name)
    return files


def page(name: str) -> str:
    cls, notes = MECHANISMS[name], NOTES.get(name)
    parts = [
        f"# `{name}`",
        notes.idea if notes else inspect.cleandoc(str(cls.__doc__)),
        *(when_to_use(notes) if notes else ()),
        "## Picture",
        f"![Weights of {name}]({name}.svg)",
        caption(name),
        "## Definition",
        about(cls),
        "## Options",
        options(name),
        "## Traits",
        traits_table(cls),
        "## Cost",
        cost(name),
        measured(name),
        "## Relatives",
        relatives(name, notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def when_to_use(notes: Notes) -> tuple[str, ...]:
    """Render the situations for and against a mechanism."""
    use, avoid = (
        "\n".join(f"- {reason}" for reason in reasons) for reasons in (notes.use, notes.avoid)
    )
    return "## When to use it", use, "## When not to use it", avoid


def caption(name: str) -> str:
    """Describe what the picture shows."""
    small = ", ".join(f"`{option}={value!r}`" for option, value in sample_options(name).items())
    return (
        f"Weights on {TOKENS} tokens{f' with {small}' if small else ''}: runs of six tokens of one "
        "topic, and each of four topics returns once. Each row is a query, each column a key; a "
        "darker cell is a larger weight, relative to the largest of its row, and red is negative. "
        f"An empty cell is a pair that is not attended, or weighs less than {100 * FAINT:.0f} %."
    )


def relatives(name: str, notes: Notes | None) -> str:
    """Link the mechanisms that the notes compare with, and the others of the family."""
    differences = notes.relatives if notes else {}
    lines = [f"- [`{other}`]({other}.md): {text}" for other, text in differences.items()]
    family = MECHANISMS[name].traits.family
    rest = [x for x in families()[family] if x != name and x not in differences]
    if rest:
        links = ", ".join(f"[`{other}`]({other}.md)" for other in rest)
        lines.append(f"- also of the family {family}: {links}")
    lines.append("- all of them: [mechanisms](README.md), [by need](../choosing.md)")
    return "\n".join(lines)


def options(name: str) -> str:
    defaults = options_of(name)
    if not defaults:
        return "None."
    build_mechanism = MECHANISMS[name].__init__
    hints, help_texts = get_type_hints(build_mechanism), argument_help(str(build_mechanism.__doc__))
    help_texts = SHARED_OPTIONS | help_texts
    rows = [
        f"| `{option}` | {help_texts[option]} | {words(hints[option])} | `{default!r}` |"
        for option, default in defaults.items()
    ]
    return "\n".join(["| option | meaning | values | default |", "|---|---|---|---|", *rows])


def argument_help(docstring: str) -> dict[str, str]:
    """Return the descriptions of the section `Args:` by argument."""
    _, _, section = inspect.cleandoc(docstring).partition("Args:\n")
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    pairs = ((name, re.sub(r"\s+", " ", text).rstrip(".")) for name, text in entries)
    return {name: text.replace("|", "\\|") for name, text in pairs}


def traits_table(cls: type[Attention]) -> str:
    traits = dataclasses.asdict(cls.traits)
    rows = [f"| {text} | {'yes' if traits[trait] else 'no'} |" for trait, text in TRAITS.items()]
    rows.append(f"| uses | {', '.join(traits['inputs'])} |")
    sizes = ", ".join(traits["sizes"]).replace("_", " ") or "none"
    rows.append(f"| requires sizes | {sizes} |")
    rows.append(f"| paper | {traits['paper'] or 'unpublished'} |")
    head = ["| | |", "|---|---|", f"| family | {traits['family']} |"]
    head.append(f"| time and memory | {traits['cost']} |")
    if decoder := choosing_page.decoder_traits(cls.name):
        head.append(f"| time of a decoded token | {decoder.step_cost} |")
        head.append(f"| state of a decoder | {decoder.state_size} |")
    return "\n".join([*head, *rows])


def cost(name: str) -> str:
    """Render the FLOPs of one head with default options, by the mechanism's own count."""
    rows = []
    for T in LENGTHS:
        sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": T}
        attention, full = build(name, **sizes), build("full", **sizes)
        pairs = attention.pairs(T)
        mean = sum(pairs) / len(pairs) if isinstance(pairs, tuple) else pairs
        share = "" if mean is None else f"{100 * mean / T**2:.1f} %"
        flops = attention.flops(T, HEAD_DIM)
        rows.append(
            f"| {T:,} | {flops / 1e6:,.1f} | {flops / full.flops(T, HEAD_DIM):.3f} | {share} |"
        )
    head = [
        "| tokens | MFLOP, one head of 64, forward | of full attention | pairs attended |",
        "|---:|---:|---:|---:|",
    ]
    return "\n".join([*head, *rows])


def measured(name: str) -> str:
    """Render the measurements of the layer of a mechanism."""
    rows = [
        f"| {x.length:,} | {1e3 * x.median:,.0f} | {ratio_text(speed_over_full(x))} | "
        f"{ratio_text(memory_over_full(x))} | {share_text(x.useful)} |"
        for x in layers(name)
    ]
    if not rows:
        return ""
    head = [
        f"A training step of one layer in {PRECISION}, default options "
        f"({conditions(record_of(name))}):",
        "",
        "| tokens | ms | times as fast as `full` | times its memory | of the limit |",
        "|---:|---:|---:|---:|---:|",
    ]
    return "\n".join([*head, *rows])


def ratio_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def share_text(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def catalog_file() -> str:
    """Render the catalog of the package, for lists and reports, which do not import torch."""
    parts = {
        "mechanisms": {row["name"]: row for row in list_mechanisms()},
        "tasks": {name: describe(name) for name in sorted(TASKS)},
        "protocols": {name: protocol_values(get(name)) for name in protocol_names()},
    }
    texts = []
    for part, rows in parts.items():
        lines = (f"{json.dumps(k)}: {json.dumps(x, ensure_ascii=False)}" for k, x in rows.items())
        texts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(texts) + "\n}\n"


def protocols_page() -> str:
    """Render the page of protocols with a table of all of them, by name."""
    every = ((name, get(name)) for name in sorted(protocol_names()))
    rows = [f"| `{name}` | {x.summary} | {x.source.partition(';')[0]} |" for name, x in every]
    table = "\n".join(["| protocol | trains | source |", "|---|---|---|", *rows])
    return re.sub(
        r"^\| protocol \|.*?\n(?!\|)", f"{table}\n", PROTOCOLS.read_text(), flags=re.M | re.S
    )


def recipe_index() -> str:
    """Render the list of recipes: title and first paragraph of each."""
    lines = [
        "# Recipes",
        "",
        "One job a page, in a few commands or a few lines. Tests run the Python on these pages.",
        "",
    ]
    for path in sorted(RECIPES.glob("*.md")):
        if path.name != "README.md":
            title, _, rest = path.read_text().partition("\n\n")
            first = " ".join(rest.partition("\n\n")[0].split())
            lines.append(f"- [{title.removeprefix('# ')}]({path.name}): {first}")
    return "\n".join(lines) + "\n"


def figures_page() -> str:
    """Render the page of figures with the count of its lines, by the last cell of each.

    Raises:
        ValueError: a line ends neither with "made" nor with the thing that it needs.
    """
    text = FIGURES.read_text()
    counts = dict.fromkeys(("made", "scaled", "can be run", "else"), 0)
    for line in re.findall(r"^\| (?!\| shows).*$", text, re.MULTILINE):
        state = line.strip("| ").rpartition(" | ")[2]
        end = state.rpartition("; ")[2]
        if end != "made" and not end.startswith("needs "):
            raise ValueError(f'a line must end with "made" or "needs THING", got {line!r}')
        states = ("scaled", "can be run")
        counts["made" if end == "made" else next((x for x in states if x in state), "else")] += 1
    made, scaled, can_run, rest = counts.values()
    count = (
        f"Of {sum(counts.values())} lines {made} are made, {scaled} scaled, {can_run} can be run "
        f"and have no record, and {rest} need something else."
    )
    return re.sub(r"^Of \d+ lines .*$", count, text, count=1, flags=re.MULTILINE)


def main() -> None:
    CATALOG.write_text(catalog_file())
    write(FOLDER, written())
    write(task_pages.FOLDER, task_pages.written())
    write(api_tables.FOLDER, api_tables.written())
    (RECIPES / "README.md").write_text(recipe_index())
    choosing_page.CHOOSING.write_text(choosing_page.page())
    FIGURES.write_text(figures_page())
    PROTOCOLS.write_text(protocols_page())


if __name__ == "__main__":
    main()
