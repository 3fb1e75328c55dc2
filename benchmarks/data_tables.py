"""Tables of data: loading, corpora, generators, a rule that solves part of a task."""

from table_parts import environment, mebibytes, percent, table

LISTOPS_ORIGINAL = 687  # samples per second of the original generator, same kind of machine


def loading(record: dict) -> list[str]:
    return [
        "## Data loading",
        "",
        "`benchmarks/loading.py`: batches of 32 from built data sets, each measured in its own "
        "process. *First batch* is the time from opening the task, with the files dropped from the "
        "page cache (cold) or in it (warm), without imports. *Anonymous* memory has no file behind "
        "it; *resident* memory adds mapped pages, which the system can reclaim. Both are the "
        "growth over 2,000 batches of random rows. *Loader* is the throughput of batches alone, "
        "with the CRC check of every row, on one core. *Load* is the machine's load average over "
        "the last five minutes.",
        "",
        environment(record),
        "",
        *table(
            "| data set | MB | first batch cold, s | warm, s | imports, s | anonymous, MiB "
            "| resident, MiB | loader, batches/s | tokens/s | build, s | build anonymous, MiB |",
            "|---|" + "---:|" * 10,
            map(loading_cells, record["rows"]),
        ),
        "Share of training time spent waiting for batches (model of `lra-small`, "
        "`Result.data_wait_seconds`):",
        "",
        *table(
            "| data set | mechanism | tokens per example | step, ms | data wait, % |",
            "|---|---|---:|---:|---:|",
            (
                (
                    row["set"],
                    f"`{row['mechanism']}`",
                    f"{row['tokens_per_example']:,.0f}",
                    f"{1e3 * row['seconds_per_step']:,.0f}",
                    f"{100 * row['waiting_share']:.2f}",
                )
                for row in record["waiting"]
            ),
        ),
    ]


def loading_cells(row: dict) -> list[str]:
    first_batch = [start["open"] + start["batch"] for start in (row["cold"], row["warm"])]
    return [
        row["set"],
        f"{row['bytes'] / 1e6:,.0f}",
        *(f"{seconds:.2f}" for seconds in first_batch),
        f"{row['warm']['imports']:.1f}",
        mebibytes(row["memory"]["RssAnon"]),
        mebibytes(row["memory"]["VmRSS"]),
        f"{row['alone']['batches_per_second']:,.0f}",
        f"{row['alone']['tokens_per_second']:,.0f}",
        f"{row['build']['seconds']:,.0f}",
        mebibytes(row["build"]["growth"]["RssAnon"]),
    ]


def corpora(record: dict) -> list[str]:
    rates, growth = record["rates"], record["rates"]["growth"]
    seconds = rates["seconds"]
    rows = [
        (name, seconds[name], growth.get(name), growth.get(f"{name}_of_a_tenth"))
        for name in ("bare", "tokenizing", "import")
    ]
    return [
        "## Corpora",
        "",
        f"`benchmarks/corpora.py`: {rates['characters']:,} characters ({record['text']}), "
        f"{rates['tokens']:,} tokens. *Bare* is `encode_batch_fast` of the tokenizers library on "
        "the same texts in memory; *tokenizing* reads, checks, tokenizes and stores them; *import* "
        "is the pass before, which reads and splits them. Bare and tokenizing alternate, each in "
        "its own process; times are medians. Anonymous memory is the growth over the process after "
        "imports, for the corpus and for one of a tenth. Tokenizing has "
        f"{100 * rates['share_of_bare_rate']:.0f} % of the bare rate.",
        "",
        environment(record),
        "",
        *table(
            "| step | seconds | MB of characters/s | anonymous, MiB | of a tenth, MiB |",
            "|---|---:|---:|---:|---:|",
            (
                (
                    name,
                    f"{taken:,.1f}",
                    f"{rates['characters'] / taken / 1e6:,.2f}",
                    mebibytes(whole and whole["RssAnon"]),
                    mebibytes(tenth and tenth["RssAnon"]),
                )
                for name, taken, whole, tenth in rows
            ),
        ),
        "Share of training time spent waiting for batches (model of `lra-small`, masked tokens):",
        "",
        *table(
            "| mechanism | T | batch size | tokens/s | step, ms | data wait, % |",
            "|---|---:|---:|---:|---:|---:|",
            (
                (
                    f"`{row['mechanism']}`",
                    f"{row['length']:,}",
                    str(row["batch"]),
                    f"{row['tokens_per_second']:,.0f}",
                    f"{1e3 * row['seconds_per_step']:,.0f}",
                    f"{100 * row['waiting_share']:.2f}",
                )
                for row in record["waiting"]
            ),
        ),
    ]


def listops_generation(record: dict) -> list[str]:
    rate = record["samples_per_second_per_core"]
    return [
        "## Generation of ListOps",
        "",
        "`benchmarks/listops_generation.py`, parameters of LRA, one core, duplicates removed: "
        f"{rate:,.0f} samples/s, {record['tokens_per_second_per_core']:,.0f} tokens/s. This is "
        f"{rate / LISTOPS_ORIGINAL:.0f} times the {LISTOPS_ORIGINAL} samples/s of the original "
        "generator on the same kind of machine.",
        "",
    ]


def pathfinder_generation(record: dict) -> list[str]:
    return [
        "## Generation of Pathfinder",
        "",
        "`benchmarks/pathfinder_generation.py`, hard images with the settings of LRA, CPU time of "
        f"one core. At 32 x 32 the rate is {record['times_the_original_at_32']} times the 10 "
        "images/s of the original generator.",
        "",
        *table(
            "| pixels | images/s and core | 200,000 images on two cores, minutes |",
            "|---|---:|---:|",
            (
                (
                    f"{row['resolution']} x {row['resolution']}",
                    f"{row['images_per_second_per_core']:,.0f}",
                    str(row["minutes_for_200000_on_two_cores"]),
                )
                for row in record["rows"]
            ),
        ),
    ]


def first_operator(record: dict) -> list[str]:
    fresh = record["fresh"]
    return [
        "## ListOps from the first operator alone",
        "",
        "`benchmarks/first_operator.py`: accuracy of the rule that answers with the most frequent "
        "training label of the first operator, ± one standard error. A score above it uses the "
        "rest of the expression.",
        "",
        *table(
            "| protocol | validation, % | test, % | majority baseline, % | test examples |",
            "|---|---:|---:|---:|---:|",
            (
                (
                    f"`{row['protocol']}`",
                    *(percent(row[name], row[f"{name}_error"]) for name in ("validation", "test")),
                    f"{100 * row['majority']:.2f}",
                    f"{row['examples']:,}",
                )
                for row in record["rows"]
            ),
        ),
        f"On {fresh['examples']:,} fresh expressions of the default options it scores "
        f"{percent(fresh['accuracy'], fresh['error'])} %.",
        "",
    ]
