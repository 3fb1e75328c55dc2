"""Catalog of the registered mechanisms, tasks and protocols, as plain values for CLI and docs."""

import dataclasses
import itertools
import json
import sys
from typing import Any, get_args

import torch

from longspan.arena.protocols.base import NamedRow, Protocol, get, protocol_names
from longspan.arena.protocols.compare import recipe_values
from longspan.attention import MECHANISMS, Attention, backends, build, options_of
from longspan.attention.traits import Family
from longspan.errors import check_name
from longspan.stored_catalog import PROTOCOL_COLUMNS, explain_protocol, format_value, task_row
from longspan.tasks import TASKS, Task

SAMPLE_TOKENS, SAMPLE_HEADS, SAMPLE_HEAD_DIM = 48, 3, 8
SHADES = "·░▒▓█"
TOPICS = (1, 2, 3, 1, 4, 2, 3, 4)  # rows of a Hadamard matrix; a topic has no row of ones


def families() -> dict[str, list[str]]:
    """Return the names of the mechanisms by family, in the order of the taxonomy."""
    return {
        family: sorted(name for name, cls in MECHANISMS.items() if cls.traits.family == family)
        for family in get_args(Family)
    }


def list_mechanisms() -> list[dict[str, Any]]:
    """Return every mechanism with its traits, options (with defaults) and backends, by family."""
    rows = []
    for name in itertools.chain.from_iterable(families().values()):
        cls = MECHANISMS[name]
        traits = dataclasses.asdict(cls.traits)
        claims = ("exact", "causal", "cross", "global_tokens")
        row = {
            "name": name,
            **traits,
            "cost": describe_cost(name),
            "paper": cls.traits.paper or "unpublished",
            "forms": [claim.replace("_", " ") for claim in claims if traits[claim]],
            "options": options_of(name),
            "backends": backends(name),
        }
        rows.append(row)
    return rows


def describe_cost(name: str) -> str:
    """Return the cost of a mechanism with default options, and with a fixed size if it differs."""
    cls = MECHANISMS[name]
    if cls.size_option is None:
        return cls.traits.cost
    size: dict[str, Any] = {cls.size_option: 8}
    fixed = build(name, heads=1, head_dim=8, max_length=64, **size).traits.cost
    if fixed == cls.traits.cost:
        return fixed
    return f"{cls.traits.cost}; {fixed} with a fixed {cls.size_option}"


def list_tasks() -> list[dict[str, Any]]:
    """Return the main metadata of every task, with its default options."""
    tasks = (TASKS[name]() for name in sorted(TASKS))
    return [task_row(vars(task.info) | _option_values(task)) for task in tasks]


def list_protocols() -> list[dict[str, Any]]:
    """Return summary, source and tasks of every protocol."""
    protocols = map(get, protocol_names())
    return [{k: getattr(p, k) for k in PROTOCOL_COLUMNS} for p in protocols]


def describe(name: str) -> dict[str, Any]:
    """Return all facts about one mechanism, task or protocol.

    Raises:
        UnknownNameError: nothing has that name; the message suggests near names.
    """
    names = [*MECHANISMS, *TASKS, *protocol_names()]
    check_name(name, names, "mechanism, task or protocol")
    if name in MECHANISMS:
        return _describe_mechanism(name)
    if name in TASKS:
        return _describe_task(TASKS[name])
    return explain_protocol(protocol_values(get(name)))


def _describe_mechanism(name: str) -> dict[str, Any]:
    cls = MECHANISMS[name]
    row = next(row for row in list_mechanisms() if row["name"] == name)
    small = ", ".join(f"{k}={v}" for k, v in sample_options(name).items()) or "no options"
    module = sys.modules[cls.__module__]
    drawing = _draw_weights(sample_weights(name, SAMPLE_TOKENS)[0])
    return {"about": str(module.__doc__).strip(), **row, f"weights ({small})": drawing}


def _describe_task(cls: type[Task]) -> dict[str, Any]:
    options = {
        field.name: f"{field.default!r}: {field.metadata.get('help', '')}"
        for field in dataclasses.fields(cls.Options)
    }
    return {**dataclasses.asdict(cls.info), **_option_values(cls()), "options": options}


def _option_values(task: Task) -> dict[str, Any]:
    """Return the metadata that the options of a task decide."""
    sizes = {split: size for split, size in task.sizes.items() if size is not None}
    values = {name: getattr(task, name) for name in ("vocab_size", "num_classes", "chance")}
    return {"sizes": sizes, **values}


def protocol_values(protocol: Protocol) -> dict[str, Any]:
    """Return the fields of a protocol, and for each task the configuration, as JSON stores them."""
    row: dict[str, Any] = {name: getattr(protocol, name) for name in PROTOCOL_COLUMNS}
    row["budget"] = str(protocol.budget)
    for task in protocol.tasks:
        recipe = protocol.recipe(task)
        row[f"task ({task})"] = dict(recipe.task_options)
        if recipe.start is not None:
            start = recipe.start if isinstance(recipe.start, str) else recipe.start.task
            row[f"start ({task})"] = f"the run on {start}"
        for part, record in (("model", recipe.model), ("training", recipe.training)):
            row[f"{part} ({task})"] = {
                field.name: repr(getattr(record, field.name))
                for field in dataclasses.fields(record)
            }
        if grid := protocol.grids.get(task):
            row[f"grid ({task})"] = {field: list(values) for field, values in grid.items()}
    row["options by mechanism"] = {k: dict(v) for k, v in protocol.mechanism_options.items()}
    for task, options in protocol.task_mechanism_options.items():
        row[f"options by mechanism ({task})"] = {k: dict(v) for k, v in options.items()}
    for task, options in protocol.evaluation_options.items():
        row[f"options in evaluation ({task})"] = {k: dict(v) for k, v in options.items()}
    for kind in ("reference row", "variant"):
        if rows := [x for x in protocol.named_rows if x.kind == kind]:
            row[f"{kind}s"] = {
                f"{entry.name} ({', '.join(entry.tasks)})": (
                    f"{entry.mechanism} with {format_value(_changes(entry))} ({entry.source})"
                )
                for entry in rows
            }
    if protocol.rows:
        row["rows"] = list(protocol.rows)
    row["seeds"] = list(protocol.seeds)
    row["choices"] = _choices(protocol)
    return json.loads(json.dumps(row))


def _choices(protocol: Protocol) -> dict[str, str]:
    """Return the choices of a protocol, with their values, by field and tasks."""
    values = {x: recipe_values(protocol, x, MECHANISMS) for x in protocol.tasks if x in TASKS}
    return {
        f"{x.field} ({', '.join(x.tasks)})": x.describe(value)
        for x in protocol.choices
        for value in [values[task][x.field] for task in x.tasks if task in values][:1]
    }


def _changes(row: NamedRow) -> dict[str, Any]:
    """Return the changes of a row, those of one task with its name."""
    limited = row.task_changes.items()
    return {
        **row.budget_setting,
        **row.changes,
        **{f"{task}.{x}": y for task, task_changes in limited for x, y in task_changes.items()},
    }


def sample_weights(name: str, T: int, *, causal: bool = False) -> torch.Tensor:
    """Return the weights (H, T, T) of a mechanism on T fixed tokens of four topics.

    Weights are implicit, and can be negative, for mechanisms that never form them.
    """
    # Analysis imports transformers, which lists do not need.
    from longspan.attention.weights import compute_weights

    q, k = (x.expand(1, SAMPLE_HEADS, T, -1) for x in sample_tokens(T))
    return compute_weights(build_sample(name, T, causal=causal), q, k)[0]


def sample_tokens(T: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys (T, D): runs of six tokens of one topic, each with a little noise.

    Topics are orthogonal, and each returns further on, so that a picture shows what is found.
    """
    signs = torch.tensor([[1.0]])
    while len(signs) < SAMPLE_HEAD_DIM:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    order = torch.tensor(TOPICS)[torch.arange(T) // 6 % len(TOPICS)]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, T, SAMPLE_HEAD_DIM, generator=generator) / 8
    q, k = 0.8 * signs[order] + noise
    return q, k


def build_sample(name: str, T: int, *, causal: bool = False) -> Attention:
    """Build a mechanism for T tokens with its smallest options and reproducible parameters."""
    sizes: dict[str, Any] = {"heads": SAMPLE_HEADS, "head_dim": SAMPLE_HEAD_DIM, "max_length": T}
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        return build(name, causal=causal, **sizes, **sample_options(name))


def sample_options(name: str) -> dict[str, Any]:
    """Return the options of a mechanism in pictures of a few dozen tokens."""
    return MECHANISMS[name].small_options | MECHANISMS[name].picture_options


def _draw_weights(matrix: torch.Tensor) -> str:
    """Draw weights as text: one row per query, shades relative to the row's largest weight."""
    share = matrix.abs() / matrix.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    shade = (share * (len(SHADES) - 1)).ceil().long()
    return "\n".join("".join(SHADES[cell] for cell in row) for row in shade.tolist())
