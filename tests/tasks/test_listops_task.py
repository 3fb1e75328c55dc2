"""The ListOps task: disjoint splits of the requested sizes, the release, validation of options."""

import csv
import gzip
import re
from functools import partial
from xml.etree import ElementTree

import pytest
import torch
from task_calls import open_task

from longspan.errors import DataError, OptionError
from longspan.tasks import SPLITS, build
from longspan.tasks.lra.generators.listops import ids_to_symbols, parse
from real_data import real

SMALL = {
    "train": 300,
    "validation": 40,
    "test": 20,
    "max_depth": 4,
    "max_args": 5,
    "min_length": 10,
    "max_length": 40,
}
opened = partial(open_task, "listops", **SMALL)


def expressions(task, split):
    return [task.show(split, row) for row in range(task.size(split))]


def test_show_recomputes_the_label(tmp_path):
    task = opened(tmp_path)
    for row, text in enumerate(expressions(task, "test")):
        value = int(task.labels("test")[row])
        assert re.match(rf"(MIN|MAX|MED|SM) = {value}\b", text)
        assert re.search(rf"\n\(label {value}, [0-9]+ tokens\)$", text)


def test_length_is_the_maximum(tmp_path):
    task = opened(tmp_path)
    assert task.length == 39
    assert (
        max(batch.inputs["input_ids"].shape[1] for batch in task.batches("test", batch_size=1))
        <= 39
    )
    assert build("listops").length == 1999


def test_default_options_are_those_of_long_range_arena():
    options = build("listops").options
    assert (options.train, options.validation, options.test) == (96_000, 2_000, 2_000)
    assert (options.min_length, options.max_length) == (500, 2_000)
    assert (options.max_depth, options.max_args) == (10, 10)


@pytest.mark.parametrize(
    ("change", "checksum"),
    [
        ({}, "b83d3002bbf271096e5285d74ff496d8e1d26fc47ee15c3f884846670f566b0f"),
        ({"seed": 3}, "76b242c6009bab3039d05a57e1c6a2ccf5de413cea5f761a83a0d09cdf4a615c"),
        (
            {"max_depth": 4, "max_args": 5, "min_length": 10, "max_length": 40},
            "fd865719fec879e960277b7e1f5a496ffaf1b630e1e5ff42a91283ff1e6d111a",
        ),
    ],
)
def test_checksum_is_stable(tmp_path, change, checksum):
    """Raise the version of the task if its data must change."""
    task = build("listops", {"train": 60, "validation": 20, "test": 30, **change})
    task.open(tmp_path)
    assert task.checksum == checksum


def test_end_symbol_is_appended_to_the_same_expressions(tmp_path):
    plain, ended = opened(tmp_path), opened(tmp_path, end=True)
    assert (ended.length, ended.vocab_size) == (plain.length + 1, plain.vocab_size + 1)
    assert plain.vocab_size == plain.info.vocab_size == 16
    for split in SPLITS:
        assert expressions(ended, split) == expressions(plain, split)
        assert torch.equal(ended.labels(split), plain.labels(split))
    pairs = zip(
        plain.batches("test", batch_size=7), ended.batches("test", batch_size=7), strict=True
    )
    for one, other in pairs:
        lengths = one.inputs["attention_mask"].sum(1)
        assert torch.equal(other.inputs["attention_mask"].sum(1), lengths + 1)
        for row, length in enumerate(lengths):
            assert torch.equal(
                other.inputs["input_ids"][row, :length], one.inputs["input_ids"][row, :length]
            )
            assert other.inputs["input_ids"][row, length] == 16
            assert not other.inputs["input_ids"][row, length + 1 :].any()


def test_every_expression_has_a_picture(tmp_path):
    task = opened(tmp_path, end=True)
    for row in range(20):
        assert ElementTree.fromstring(task.svg("test", row)).tag.endswith("svg")


FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}


def binary(node):
    """Return an expression as the release writes it: a binary tree in parentheses."""
    if not node.arguments:
        return node.symbol
    text = node.symbol
    for argument in node.arguments:
        text = f"( {text} {binary(argument)} )"
    return f"( {text} ] )"


def release(folder, **change):
    """Write the expressions of a generated task in the format of the release."""
    task = opened(folder / "cache", **change)
    (folder / "listops-1000").mkdir()
    for split, name in FILES.items():
        examples = task._examples(split)
        lines = ["Source\tTarget"]
        for tokens, label in zip(examples.tokens, examples.labels, strict=True):
            lines.append(f"{binary(parse(ids_to_symbols(tokens)))}\t{label}")
        (folder / "listops-1000" / name).write_text("\r\n".join([*lines, ""]), newline="")
    return task


def released(folder, **change):
    sizes = {split: SMALL[split] for split in SPLITS}
    task = build("listops", {**sizes, "max_length": 40, "source": "release", **change})
    task.open(folder / "cache", folder)
    return task


def test_release_is_read_in_order(tmp_path):
    drawn, read = release(tmp_path), released(tmp_path)
    for split in SPLITS:
        assert expressions(read, split) == expressions(drawn, split)
        assert torch.equal(read.labels(split), drawn.labels(split))
    assert read.checksum == drawn.checksum
    assert read.facts["source_rows"] == {split: SMALL[split] for split in SPLITS}
    assert read.source != drawn.source
    assert read.info.version == drawn.info.version


def test_sizes_and_end_symbol_apply_to_the_release(tmp_path):
    drawn, read = release(tmp_path), released(tmp_path, train=50, end=True)
    assert read.size("train") == 50
    assert expressions(read, "train") == expressions(drawn, "train")[:50]
    assert read.vocab_size == 17
    assert (
        max(batch.inputs["input_ids"].shape[1] for batch in read.batches("test", batch_size=1))
        <= read.length
    )


def test_release_with_too_few_rows_is_rejected(tmp_path):
    release(tmp_path)
    with pytest.raises(OptionError, match=r"validation=41, but .* has 40 expressions; use 40"):
        released(tmp_path, validation=41)
    assert not [*(tmp_path / "cache").rglob("manifest.json")][1:]


def test_released_expression_beyond_max_length_is_rejected(tmp_path):
    task = release(tmp_path)
    tokens = max(int(task._examples(split).tokens.lengths.max()) for split in SPLITS)
    reason = rf"expression \d+ of \w+ has \d+ tokens; expected fewer than max_length={tokens}"
    with pytest.raises(DataError, match=reason):
        released(tmp_path, max_length=tokens)
    assert released(tmp_path, max_length=tokens + 1).length == tokens


def test_wrong_label_in_the_release_is_rejected_with_its_line(tmp_path):
    release(tmp_path)
    path = tmp_path / "listops-1000" / "basic_val.tsv"
    lines = path.read_text().split("\n")
    expression, label = lines[7].split("\t")
    lines[7] = f"{expression}\t{(int(label) + 1) % 10}"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"basic_val\.tsv.*8.*label"):
        released(tmp_path)


def test_files_of_the_original_generator_are_read(tmp_path):
    """The expected expressions and labels are read by the csv module."""
    folder = real("listops_lra_generated")
    task = build("listops", {"train": 2_000, "validation": 500, "test": 500, "source": "release"})
    task.open(tmp_path, folder)
    for split, name in FILES.items():
        with gzip.open(folder / f"{name}.gz", "rt", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert task.labels(split).tolist() == [int(row["Target"]) for row in rows]
        for tokens, row in zip(task._examples(split).tokens, rows, strict=True):
            words = row["Source"].replace("(", "").replace(")", "").replace("]", "X").split()
            assert ids_to_symbols(tokens) == words


@pytest.mark.parametrize(
    "change", [{}, {"end": True}, {"min_length": 1, "max_length": 2_000}, {"max_length": 2**24 - 1}]
)
def test_build_is_estimated_from_the_lengths_of_the_stream(tmp_path, change):
    """At most 4 copies of the tokens are in memory: drawn, joined, in splits, with an end."""
    task = opened(tmp_path, max_depth=8, train=2_000, **change)
    size, count = task.estimate_build(), 2_060
    tokens = sum(len(task.dataset.splits[split].tokens.values) for split in SPLITS)
    assert size.disk == pytest.approx(tokens, rel=0.25)
    copies = 4 if task.options.end else 3
    assert size.memory == copies * size.disk + 100 * count
