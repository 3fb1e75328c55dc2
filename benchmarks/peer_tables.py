"""Tables of attention layers of other libraries against ours."""

from table_parts import environment, mebibytes, table


def peers(record: dict) -> list[str]:
    """Return the section of a record of `benchmarks/peers.py`."""
    sizes = record["sizes"]
    lines = [
        f"## Attention layers of other libraries, {record['environment']['device']}",
        "",
        f"`benchmarks/peers.py`: attention layer from (1, T, {sizes['width']}) to the same shape, "
        f"{sizes['heads']} heads, projections included, forward and backward. Layers of both sides "
        f"are called in turns in one process, at least {record['runs']} times and for a second. "
        "*Times faster* is the median of their time over ours in the same turn, with the lowest "
        "and the highest; below 1 theirs is faster. *Times less memory* is their peak over ours, "
        "above that of the idle process and measured on a CPU in a process of its own. Both have "
        "equally many biases. *Keys* is the number of keys in the softmax of a query, equal on "
        "both sides.",
        "",
        environment(record),
        "",
    ]
    for dtype in dict.fromkeys(row["dtype"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["dtype"] == dtype]
        lines += dtype_table(dtype, rows, record["peers"])
    lines += notes(record["peers"])
    return lines + left_out(record["left_out"])


def dtype_table(dtype: str, rows: list[dict], about: dict[str, dict]) -> list[str]:
    lengths = sorted({row["length"] for row in rows})
    columns = "ours, ms | times faster | ours, MiB | times less memory"
    header = " | ".join(f"T = {length:,}: {columns}" for length in lengths)
    by_key = {(row["peer"], row["length"]): row for row in rows}
    cells = [
        [
            f"`{about[name]['what']}`",
            f"{about[name]['package']} {about[name]['version']}",
            own_mechanism(about[name]),
            shown_keys(about[name]["keys"]),
            *(cell for x in lengths for cell in length_cells(by_key.get((name, x)))),
        ]
        for name in dict.fromkeys(row["peer"] for row in rows)
    ]
    head = f"| layer | library | our mechanism | keys | {header} |"
    return [
        f"### {dtype}",
        "",
        *table(head, "|---|---|---|" + "---:|" * (len(lengths) * 4 + 1), cells),
    ]


def own_mechanism(peer: dict) -> str:
    return f"`{peer['mechanism']}`" + (", causal" if peer["causal"] else "")


def shown_keys(keys: int | str) -> str:
    return keys if isinstance(keys, str) else f"{keys:,}"


def length_cells(row: dict | None) -> list[str]:
    if row is None:
        return ["–"] * 4
    lowest, highest = row["lowest_time_ratio"], row["highest_time_ratio"]
    memory = row["memory_ratio"]
    return [
        f"{1e3 * row['ours']['median']:,.1f}",
        f"{row['time_ratio']:.2f} ({lowest:.2f} to {highest:.2f})",
        mebibytes(row["ours"]["peak_memory"]),
        "–" if memory is None else f"{memory:.2f}",
    ]


def notes(about: dict[str, dict]) -> list[str]:
    """Return how the functions of the layers differ from ours."""
    own = [f"- `{x['what']}` of {x['package']}: {x['note']}." for x in about.values() if x["note"]]
    return ["Differences from our mechanisms:", "", *own, ""] if own else []


def left_out(cases: list[dict]) -> list[str]:
    """Return what was not measured, by reason."""
    by_reason: dict[str, list[str]] = {}
    for case in cases:
        inputs = [case.get("dtype"), f"T = {case['length']:,}" if "length" in case else None]
        own = ", ".join(x for x in inputs if x)
        by_reason.setdefault(case["reason"], []).append(case["peer"] + (f" ({own})" if own else ""))
    own = [f"- {', '.join(names)}: {reason}." for reason, names in by_reason.items()]
    return ["Left out:", "", *own, ""] if own else []
