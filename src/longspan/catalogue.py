"""What there is: the registries as plain tables, for the command line and the docs."""

import dataclasses
import sys
from typing import Any

import torch

from longspan.analysis.weights import compute_weights
from longspan.arena.protocols import PROTOCOLS, Protocol
from longspan.attention import MECHANISMS, Attention, backends, build, options_of
from longspan.errors import check_name
from longspan.tasks import TASKS, Task

SAMPLE, SAMPLE_HEADS = 48, 3  # tokens and heads of a picture
SHADES = "·░▒▓█"
COLUMNS = {  # of the lists in a terminal; `--json` has every field
    "mechanisms": ("name", "cost", "forms", "options", "paper"),
    "tasks": ("name", "title", "classes", "chance", "license"),
    "protocols": ("name", "tasks", "summary", "source"),
}


def mechanisms() -> list[dict[str, Any]]:
    """Every mechanism with its traits, options (defaults) and backends."""
    rows = []
    for name, cls in sorted(MECHANISMS.items()):
        traits = dataclasses.asdict(cls.traits)
        claims = ("exact", "causal", "cross", "global_tokens")
        row = {
            "name": name,
            **traits,
            "forms": [claim.replace("_", " ") for claim in claims if traits[claim]],
            "options": options_of(name),
            "backends": backends(name),
        }
        rows.append(row)
    return rows


def tasks() -> list[dict[str, Any]]:
    """Every task with the facts of its metadata record."""
    names = ("name", "version", "title", "classes", "chance", "metric", "license", "source")
    return [{k: getattr(TASKS[n].info, k) for k in names} for n in sorted(TASKS)]


def protocols() -> list[dict[str, Any]]:
    """Every protocol: what it is for and where it comes from."""
    names = ("name", "summary", "source", "tasks", "differs")
    return [{k: getattr(p, k) for k in names} for p in PROTOCOLS.values()]


def describe(name: str) -> dict[str, Any]:
    """Everything about one mechanism, task or protocol.

    Raises:
        UnknownNameError: there is nothing of that name (with near names).
    """
    check_name(name, [*MECHANISMS, *TASKS, *PROTOCOLS], "mechanism, task or protocol")
    if name in MECHANISMS:
        return _mechanism(name)
    return _task(TASKS[name]) if name in TASKS else _protocol(PROTOCOLS[name])


def _mechanism(name: str) -> dict[str, Any]:
    cls = MECHANISMS[name]
    row = next(row for row in mechanisms() if row["name"] == name)
    small = ", ".join(f"{k}={v}" for k, v in cls.small_options.items()) or "no options"
    module = sys.modules[cls.__module__]
    picture = draw(weights(name, SAMPLE)[0])
    return {"about": str(module.__doc__).strip(), **row, f"weights ({small})": picture}


def _task(cls: type[Task]) -> dict[str, Any]:
    options = {
        field.name: f"{field.default!r}: {field.metadata.get('help', '')}"
        for field in dataclasses.fields(cls.Options)
    }
    return {**dataclasses.asdict(cls.info), "options": options}


def _protocol(protocol: Protocol) -> dict[str, Any]:
    """Its fields with the values for each task, explained by the configuration's own help."""
    row = next(row for row in protocols() if row["name"] == protocol.name)
    row["budget"] = str(protocol.budget)
    for task in protocol.tasks:
        spec, model, train = protocol.parts(task)
        row[f"task ({task})"] = dict(spec.options)
        for part, record in (("model", model), ("train", train)):
            row[f"{part} ({task})"] = {
                field.name: f"{getattr(record, field.name)!r}: {field.metadata['help']}"
                for field in dataclasses.fields(record)
            }
        if grid := protocol.grids.get(task):
            row[f"grid ({task})"] = {field: list(values) for field, values in grid.items()}
    row["options by mechanism"] = {k: dict(v) for k, v in protocol.settings.items()}
    for task, options in protocol.exceptions.items():
        row[f"options by mechanism ({task})"] = {k: dict(v) for k, v in options.items()}
    row["choices"] = {f"{c.field} ({', '.join(c.tasks)})": str(c) for c in protocol.choices}
    return row


def weights(name: str, T: int, *, causal: bool = False) -> torch.Tensor:
    """The weights (H, T, T) of a mechanism on a fixed random sample, small enough to be seen.

    They are implicit for mechanisms that never form them, and may then be negative.
    """
    attention = sample(name, T, causal=causal)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, T, 8, generator=generator) for _ in range(2))
    q, k = (x.expand(1, SAMPLE_HEADS, T, -1) for x in (q, k))
    return compute_weights(attention, q, k)[0]


def sample(name: str, T: int, *, causal: bool = False) -> Attention:
    """A small mechanism for T tokens, with heads of width 8 and reproducible parameters."""
    small = MECHANISMS[name].small_options
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(0)
        return build(name, causal=causal, heads=SAMPLE_HEADS, head_dim=8, max_length=T, **small)


def draw(matrix: torch.Tensor) -> str:
    """Weights as text, a row per query, darker where a key weighs more within its row."""
    share = matrix.abs() / matrix.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    shade = (share * (len(SHADES) - 1)).ceil().long()
    return "\n".join("".join(SHADES[cell] for cell in row) for row in shade.tolist())


def text(value: Any) -> str:
    """A value of a table as text."""
    if isinstance(value, dict):
        lines = [f"{k} = {v}" for k, v in value.items()]
        return ("\n" if len(lines) > 6 else ", ").join(lines)
    if isinstance(value, list | tuple):
        return ", ".join(text(x) for x in value)
    return str(value)
