"""Render the page on choosing a mechanism, from traits, committed records and counted caches."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean

from layer_record import PRECISION, all_conditions, layers, speed_over_full

from longspan.attention import MECHANISMS, Traits, build
from longspan.catalog import families
from longspan.report.leaderboard.levels import best_floor
from longspan.results import BASELINE, Measurement, Result, load_results

ROOT = Path(__file__).parents[1]
RESULTS, CHOOSING = ROOT / "results", ROOT / "docs" / "choosing.md"
# Tasks that isolate one ability, with the heading of their column.
ABILITIES = {"needle": "reaches far", "recall": "looks things up"}
PROTOCOL = "quick"

HEAD = """# Choosing a mechanism

Go down the questions; the first that you answer with yes ends the search. Try the names on your own
data, beside [`full`](mechanisms/full.md): [replace torch's
attention](recipes/replace-torch-attention.md) in a model, or [run the arena](first-arena.md).
"""


def page() -> str:
    """Return the page."""
    longest = max(x.length for x in layers(BASELINE))
    costs = {x: one for x in MECHANISMS for one in layers(x) if one.length == longest}
    parts = [
        HEAD,
        questions_table(costs, longest),
        "## Reach and lookup\n",
        abilities(load_results([RESULTS])),
        "## Time and memory\n",
        cost_table(costs, longest),
        "## What the figures do not say\n",
        "Time and memory are those of one device with default options: a larger window, rank or "
        "number of features costs more and sees more. Costs on your device: `longspan "
        "bench`. Scores belong to their protocol: small models, few steps. A "
        "mechanism that fails a test of reach there may pass it with more layers or a larger "
        "window; the page of the mechanism has the option.",
    ]
    return "\n".join(parts) + "\n"


def questions_table(costs: dict[str, Measurement], longest: int) -> str:
    """Render the questions, each with the mechanisms to take and their speed."""
    lines = [f"| question | take (speed of a layer at {longest:,} tokens) |", "|---|---|"]
    for question, (_, names) in QUESTIONS.items():
        taken = [link(x) + (f", {speed(costs[x])}" if x in costs else "") for x in names]
        lines.append(f"| {question} | {'; '.join(taken)} |")
    return "\n".join(lines) + "\n"


def trait(field: str) -> Callable[[str], bool]:
    """Return the predicate of a trait."""
    return lambda name: bool(getattr(MECHANISMS[name].traits, field))


def linear_cost(name: str) -> bool:
    return MECHANISMS[name].traits.cost == "T"


def decoder_traits(name: str) -> Traits | None:
    """Return the traits of the causal form with its default options, or None without one."""
    if not MECHANISMS[name].traits.causal:
        return None
    return build(name, heads=4, head_dim=16, max_length=1024, causal=True).traits


def bounded_cache(name: str) -> bool:
    """Return whether the cache of a decoder stops growing."""
    traits = decoder_traits(name)
    return traits is not None and traits.state_size == "1"


# A condition that the names meet, and one or two names.
QUESTIONS: dict[str, tuple[Callable[[str], bool], tuple[str, ...]]] = {
    "1. Are your inputs shorter than 1,000 tokens? A model gains at most 1.4 times from another.": (
        trait("exact"),
        ("full",),
    ),
    "2. Do you start from weights of softmax attention? Exact softmax within a window keeps them; "
    "a global token reaches the whole document.": (trait("global_tokens"), ("longformer", "local")),
    "3. Do you decode with a state that must not grow? With look-up by content "
    "`linear` needs a short convolution ([findings](findings.md)).": (
        bounded_cache,
        ("local", "linear"),
    ),
    "4. Do queries and keys have different lengths (cross-attention)?": (
        trait("cross"),
        ("linear", "linformer"),
    ),
    "5. Must every token reach every other one, in an encoder?": (
        linear_cost,
        ("nystrom", "bigbird"),
    ),
    "None of these: the surroundings of a token suffice.": (linear_cost, ("local", "blockwise")),
}


def abilities(results: Iterable[Result]) -> str:
    """Render the scores of the tasks that isolate an ability, where records have them."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    runs: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.protocol == PROTOCOL and not result.overrides and result.task in ABILITIES:
            scores[result.task][result.mechanism].append(result.score())
            runs[result.task].append(result)
    text = (
        "Two questions separate mechanisms better than a large task with a small model: does "
        "information from a distant position arrive ([`needle`](tasks/needle.md)), and "
        "can a token find another one by its content ([`recall`](tasks/recall.md))? [Your first "
        "arena](first-arena.md) asks both."
    )
    if not scores:
        return f"{text}\n"
    tasks = [task for task in ABILITIES if task in scores]
    head = " | ".join(f"{ABILITIES[task]}: `{task}`, %" for task in tasks)
    lines = [f"| mechanism | {head} |", "|---|" + "---:|" * len(tasks)]
    for name in by_family():
        if any(name in scores[task] for task in tasks):
            cells = (percent(scores[task][name]) for task in tasks)
            lines.append(f"| {link(name)} | {' | '.join(cells)} |")
    floors = [best_floor(runs[task], "test") for task in tasks]
    values = " | ".join(percent([floor.value] if floor else []) for floor in floors)
    lines.append(f"| without a model | {values} |")
    note = (
        f"Test accuracy under `{PROTOCOL}`, mean over seeds; without a model: the best rule, or "
        "the majority class."
    )
    return "\n".join([text, "", *lines, "", note, ""])


def percent(scores: list[float]) -> str:
    return f"{100 * mean(scores):.1f}" if scores else "–"


def cost_table(costs: dict[str, Measurement], longest: int) -> str:
    """Render time and memory of one layer, the fastest first."""
    lines = [
        f"A training step of one layer of 8 heads of 64, {longest:,} tokens, {PRECISION}, default "
        f"options ({all_conditions()}). Speed is relative to `full` in the same run; memory is the "
        "peak above the idle process.",
        "",
        "| mechanism | family | cost | speed | memory, MiB | exact | causal | cache of a decoder |",
        "|---|---|---|---:|---:|:-:|:-:|---|",
    ]
    for name in sorted(costs, key=lambda x: -times_faster(costs[x])):
        traits = MECHANISMS[name].traits
        cache = "–" if not traits.causal else "bounded" if bounded_cache(name) else "grows"
        cells = (
            link(name),
            traits.family,
            traits.cost,
            speed(costs[name]),
            mebibytes(costs[name]),
            "yes" if traits.exact else "",
            "yes" if traits.causal else "",
            cache,
        )
        lines.append(f"| {' | '.join(cells)} |")
    missing = [name for name in by_family() if name not in costs]
    if missing:
        lines += ["", f"Not measured at this length: {', '.join(map(link, missing))}."]
    return "\n".join(lines) + "\n"


def by_family() -> list[str]:
    return [name for names in families().values() for name in names]


def link(name: str) -> str:
    return f"[`{name}`](mechanisms/{name}.md)"


def times_faster(one: Measurement) -> float:
    """Return the time of `full` over that of a mechanism."""
    return speed_over_full(one) or 0.0


def speed(one: Measurement) -> str:
    return f"{times_faster(one):.1f} x"


def mebibytes(one: Measurement) -> str:
    return f"{(one.peak_memory or 0) / 2**20:,.0f}"
