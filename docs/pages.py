"""Render a page for every mechanism, from its file, the registry and the benchmark records.

    python docs/pages.py

Writes docs/mechanisms (<name>.md, <name>.svg, README.md), docs/tasks (by `task_pages`), and for
reports the published scores of the tasks and the traits of the mechanisms. A test checks that
these files are current.
"""

import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from typing import get_type_hints

import task_pages
import torch
from rendering import words, write

from longspan.attention import MECHANISMS, Attention, build, options_of
from longspan.catalog import describe_cost, families, sample_weights
from longspan.tasks import TASKS

FOLDER = Path(__file__).parent / "mechanisms"
LAYER = Path(__file__).parents[1] / "benchmarks" / "results" / "layer-cpu.json"
TOKENS, CELL, GAP = 32, 6, 12  # of a picture: tokens, pixels per token, gap
REPORT = Path(__file__).parents[1] / "src" / "longspan" / "report"
PUBLISHED, REPORT_TRAITS = REPORT / "published.json", REPORT / "mechanisms.json"
LENGTHS = (1024, 4096)
HEADS, HEAD_DIM = 2, 64
SHADES = 4
BLUE, RED = "#2b5c8a", "#b3392f"
TRAITS = {
    "exact": "exact softmax over its pattern",
    "causal": "causal form",
    "cross": "cross-attention",
    "global_tokens": "global tokens",
    "needs_layer_input": "needs the layer's input",
}


def written() -> dict[str, str]:
    """Return the content of every file of the folder."""
    torch.set_num_threads(1)
    files = {"README.md": index()}
    for name in MECHANISMS:
        files[f"{name}.md"] = page(name)
        files[f"{name}.svg"] = picture(name)
    return files


def index() -> str:
    lines = [
        "# Mechanisms",
        "",
        "Rendered by `python docs/pages.py` from the source of each mechanism and the benchmark",
        "records; `longspan show NAME` draws a mechanism in a terminal.",
        "",
        "Families are the classes of Tay et al. 2022, Efficient Transformers: A Survey",
        "(https://arxiv.org/abs/2009.06732), table 1; `dense` is attention to every pair.",
        "",
        f"| mechanism | | family | cost | {' | '.join(TRAITS.values())} |",
        f"|---|---|---|---|{':-:|' * len(TRAITS)}",
    ]
    for family, names in families().items():
        for name in names:
            cls = MECHANISMS[name]
            marks = " | ".join("yes" if getattr(cls.traits, trait) else "" for trait in TRAITS)
            title = about(cls).partition("\n")[0].partition(" (")[0].partition(",")[0].rstrip(".")
            cells = f"{title} | {family} | {describe_cost(name)} | {marks}"
            lines.append(f"| [`{name}`]({name}.md) | {cells} |")
    return "\n".join(lines) + "\n"


def page(name: str) -> str:
    cls = MECHANISMS[name]
    small = ", ".join(f"{option} = {value}" for option, value in cls.small_options.items())
    parts = [
        f"# `{name}`",
        about(cls),
        f"![Weights of {name}]({name}.svg)",
        f"Weights on {TOKENS} random tokens{f' with {small}' if small else ''}: a row per query, a "
        f"column per key, darker for larger weights, red for negative ones"
        f"{'; bidirectional, then causal' if cls.traits.causal else ''}.",
        "## Options",
        options(name),
        "## Traits",
        traits_table(cls),
        "## Cost",
        cost(name),
        measured(name),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def about(cls: type[Attention]) -> str:
    return str(sys.modules[cls.__module__].__doc__).strip()


def options(name: str) -> str:
    defaults = options_of(name)
    if not defaults:
        return "None."
    build_mechanism = MECHANISMS[name].__init__
    hints, help_texts = get_type_hints(build_mechanism), argument_help(str(build_mechanism.__doc__))
    rows = [
        f"| `{option}` | {help_texts.get(option, '')} | {words(hints[option])} | `{default!r}` |"
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
    return "\n".join([*head, f"| time and memory | {traits['cost']} |", *rows])


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
    """Render the rows of the layer benchmark."""
    record = json.loads(LAYER.read_text())
    rows = [
        f"| {x['length']:,} | {x['dtype']} | {1e3 * x['median']:,.0f} | "
        f"{x['full_over_this']:.1f} | {x['times_floor']:.1f} |"
        for x in record["rows"]
        if x["mechanism"] == name
    ]
    if not rows:
        return ""
    where = record["environment"]
    head = [
        f"Measured by `benchmarks/layer.py`, forward and backward, default options "
        f"({where['device']}, {where['threads']} threads, torch {where['torch']}):",
        "",
        "| tokens | dtype | ms | times as fast as `full` | times its FLOP floor |",
        "|---:|---|---:|---:|---:|",
    ]
    return "\n".join([*head, *rows])


def picture(name: str) -> str:
    """Draw the weights as SVG: bidirectional and causal, each head with a distinct pattern."""
    forms = (False, True) if MECHANISMS[name].traits.causal else (False,)
    matrices = [
        m for causal in forms for m in distinct(sample_weights(name, TOKENS, causal=causal))
    ]
    side = TOKENS * CELL
    width = len(matrices) * (side + GAP) - GAP
    panels = "".join(
        f'<g transform="translate({i * (side + GAP)} 0) scale({CELL})">{panel(matrix)}</g>'
        for i, matrix in enumerate(matrices)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {side}" width="{width}" '
        f'height="{side}" role="img"><title>Weights of {name}</title>{panels}</svg>\n'
    )


def distinct(matrices: torch.Tensor) -> list[torch.Tensor]:
    """Return the first head, and every further one with another pattern."""
    kept = [matrices[0]]
    for matrix in matrices[1:]:
        if all(not torch.equal(matrix != 0, other != 0) for other in kept):
            kept.append(matrix)
    return kept


def panel(matrix: torch.Tensor) -> str:
    """Draw one matrix, one path per shade; shades are relative to the maximum of the row."""
    share = matrix / matrix.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    # Rounding hides differences between machines in the last digit.
    shade = (share * SHADES).round(decimals=3)
    shade = (shade.abs().ceil() * shade.sign()).long().tolist()
    drawn = [f'<rect width="{TOKENS}" height="{TOKENS}" fill="#f2f2f2"/>']
    for level in (*range(1, SHADES + 1), *range(-SHADES, 0)):
        runs = "".join(
            f"M{x} {y}h{n}v1h-{n}z" for y, row in enumerate(shade) for x, n in equal(row, level)
        )
        if runs:
            color = BLUE if level > 0 else RED
            opacity = abs(level) / SHADES
            drawn.append(f'<path d="{runs}" fill="{color}" fill-opacity="{opacity:.2f}"/>')
    return "".join(drawn)


def equal(row: list[int], level: int) -> list[tuple[int, int]]:
    """Return runs (start, length) of a level in a row."""
    runs, start = [], None
    for x, value in enumerate([*row, None]):
        if value == level and start is None:
            start = x
        elif value != level and start is not None:
            runs.append((start, x - start))
            start = None
    return runs


def published() -> str:
    """Render published scores, for reports, which do not import torch and so not the tasks."""
    scores = [
        {"task": name, **dataclasses.asdict(score)}
        for name in sorted(TASKS)
        for score in TASKS[name].info.published
    ]
    lines = (json.dumps(score, ensure_ascii=False) for score in scores)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def traits_file() -> str:
    """Render the traits of the mechanisms, for reports, which do not import torch."""
    names = [name for group in families().values() for name in group]
    fields = ("family", "cost", "causal", "cross", "paper")
    traits = {name: MECHANISMS[name].traits for name in names}
    rows = {name: {x: getattr(one, x) for x in fields} for name, one in traits.items()}
    lines = (
        f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    PUBLISHED.write_text(published())
    REPORT_TRAITS.write_text(traits_file())
    write(FOLDER, written())
    write(task_pages.FOLDER, task_pages.written())


if __name__ == "__main__":
    main()
