"""Groupings of examples, compared with slow definitions; slices add up to the score."""

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
from task_calls import open_task

import tiny
from longspan.arena.record import score_slices
from longspan.data.store import Examples, Ragged
from longspan.results import Score
from longspan.tasks import build
from longspan.tasks.grouping import group_by_quantiles, group_by_ranges
from longspan.tasks.lra.generators.listops import (
    Grammar,
    deciding_depths,
    generate,
    ids_to_symbols,
    parse,
    tree_depths,
)
from longspan.tasks.lra.generators.pathfinder import lra_settings, redraw
from longspan.tasks.lra.generators.pathfinder_markers import find_markers
from longspan.training.evaluate import Evaluation

opened = partial(open_task, train=4, validation=4, test=60)


def by_name(task, split="test"):
    return {one.name: one for one in task.groupings(split)}


def label_of(grouping, row):
    return None if grouping.group[row] < 0 else grouping.labels[grouping.group[row]]


def test_ranges_include_their_lower_edge():
    values = np.array([4, 5, 9, 10, 19, 20, 3])
    found = group_by_ranges("x", values, np.array([4, 5, 5, 10, 20]))
    assert found.labels == ("4", "5-9", "10-19")
    assert found.group.tolist() == [0, 1, 1, 2, 2, -1, -1]


@pytest.mark.parametrize("seed", range(4))
def test_quantile_groups_are_ordered_and_keep_equal_values_together(seed):
    values = np.random.default_rng(seed).integers(0, 3 + 40 * seed, 200)
    (found,) = group_by_quantiles("x", values, 4, " px")
    bounds = [[int(x) for x in label.removesuffix(" px").split("-")] for label in found.labels]
    for value, group in zip(values.tolist(), found.group.tolist(), strict=True):
        assert bounds[group][0] <= value <= bounds[group][-1]
    assert all(a[-1] < b[0] for a, b in itertools.pairwise(bounds))
    sizes, largest = np.bincount(found.group), max(Counter(values.tolist()).values())
    assert sizes.min() > 0
    assert sizes.max() <= 50 + 2 * largest
    assert len(sizes) == 4 or seed == 0


def test_one_quantile_group_gives_no_grouping():
    assert group_by_quantiles("x", np.full(9, 7), 4) == []
    (found,) = group_by_quantiles("x", np.array([1024] * 9 + [3]), 4)
    assert found.labels == ("3", "1024")


def depth_of(node):
    return 1 + max(map(depth_of, node.arguments), default=0)


def cut(node, levels):
    """Bounds of a node of which so many levels are seen, by trying every digit beyond."""
    if not node.arguments:
        return {node.value} if levels else set(range(10))
    parts = [cut(one, levels - 1) for one in node.arguments]
    if levels <= 0 or (node.symbol == "[SM" and any(len(part) > 1 for part in parts)):
        return set(range(10))
    ends = itertools.product(*({min(part), max(part)} for part in parts))
    lines = (" ".join([node.symbol, *map(str, one), "X"]).split() for one in ends)
    values = [parse(line).value for line in lines]
    return set(range(min(values), max(values) + 1))


@pytest.fixture(scope="module")
def expressions():
    grammar = Grammar(max_depth=5, max_args=4, min_length=3, max_length=60)
    return generate(grammar, 150, seed=4).tokens


def test_tree_depths_match_the_parsed_trees(expressions):
    roots = [parse(ids_to_symbols(tokens)) for tokens in expressions]
    expected = [depth_of(root) for root in roots]
    assert tree_depths(expressions).tolist() == expected
    assert set(expected) == {2, 3, 4, 5}


def test_deciding_depth_is_the_first_level_that_fixes_the_value(expressions):
    found = deciding_depths(expressions)
    for tokens, levels in zip(expressions, found.tolist(), strict=True):
        root = parse(ids_to_symbols(tokens))
        assert cut(root, levels) == {root.value}
        assert len(cut(root, levels - 1)) > 1
    assert set(found.tolist()) == {2, 3, 4, 5}


def test_listops_groups_by_length_and_depth(tiny_cache):
    task = tiny.listops(tiny_cache)
    groups = by_name(task)
    assert groups["length"].labels == ("4-8", "9-13", "14-18", "19-23")
    assert groups["depth"].labels == ("2", "3")
    for row, tokens in enumerate(task.dataset.splits["test"].tokens):
        low, high = map(int, label_of(groups["length"], row).split("-"))
        assert low <= len(tokens) <= high
        assert label_of(groups["depth"], row) == str(depth_of(parse(ids_to_symbols(tokens))))
    assert groups["deciding depth"].group.max() == 1


def test_end_symbol_does_not_change_groupings(tiny_cache):
    plain = tiny.listops(tiny_cache)
    ended = build("listops", {**tiny.TASK, "end": True})
    ended.open(tiny_cache)
    for a, b in zip(plain.groupings("test"), ended.groupings("test"), strict=True):
        assert (a.labels, a.group.tolist()) == (b.labels, b.group.tolist())


@pytest.mark.parametrize(("resolution", "exact", "near"), [(32, 0.9, 0.97), (128, 0.98, 1)])
def test_find_markers_agrees_with_the_generator(resolution, exact, near):
    settings = lra_settings(resolution)
    drawn = [redraw(settings, number, seed=9) for number in range(200)]
    found = find_markers(np.stack([one.image for one in drawn]), settings.marker_radius)
    missed = np.array(
        [
            min(np.abs(a - one.markers).max(), np.abs(a[::-1] - one.markers).max())
            for a, one in zip(found, drawn, strict=True)
        ]
    )
    assert (missed == 0).mean() >= exact
    assert (missed <= 1).mean() >= near


def test_find_markers_at_the_border():
    images = np.zeros((2, 20, 20), np.uint8)
    rows, columns = np.ogrid[:20, :20]
    for image, (a, b) in zip(images, (((2, 2), (17, 17)), ((2, 16), (10, 3))), strict=True):
        for r, c in (a, b):
            image[(rows - r) ** 2 + (columns - c) ** 2 <= 4] = 200
        image[12] = 255
    found = find_markers(images, 2.5)
    assert [sorted(one) for one in found.tolist()] == [[[2, 2], [17, 17]], [[2, 16], [10, 3]]]


@pytest.fixture(scope="module")
def pathfinder(tmp_path_factory):
    return opened("pathfinder", tmp_path_factory.mktemp("paths"), test=150)


def test_pathfinder_groups_by_distance_and_contour(pathfinder):
    groups = by_name(pathfinder)
    distance, contour = groups["distance of markers"], groups["contour"]
    assert len(distance.labels) == 3
    assert [label[:11] for label in contour.labels] == ["one contour"] * 3 + ["two contour"]
    right = 0
    for row in range(150):
        drawing = pathfinder.annotated_image("test", row)
        apart = round(float(np.hypot(*(drawing.markers[0] - drawing.markers[1]))))
        bounds = label_of(distance, row).removesuffix(" px").split("-")
        right += int(bounds[0]) <= apart <= int(bounds[-1])
        assert (label_of(contour, row) == "two contours") == (drawing.label == 0)
    assert right >= 140
    assert min(np.bincount(distance.group)) > 30
    assert min(np.bincount(contour.group)) > 10


def test_image_task_groups_by_class():
    task = build("image")
    rows = np.arange(6)
    examples = Examples(
        tokens=Ragged(np.zeros(6, np.uint8), np.arange(7)), labels=(rows % 3).astype(np.uint8)
    )
    (found,) = task.compute_groupings(examples)
    assert (found.name, found.labels) == ("class", task.class_names)
    assert found.group.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("name", ["text", "retrieval"])
def test_texts_group_by_length_and_pairs_by_total_length(name):
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 50, (2, 80))
    first, second = (Ragged.pack([np.ones(n, np.uint8) for n in x], np.uint8) for x in lengths)
    pair = name == "retrieval"
    examples = Examples(
        tokens=first, labels=np.zeros(80, np.uint8), second=second if pair else None
    )
    (found,) = build(name).compute_groupings(examples)
    whole = lengths.sum(0) if pair else lengths[0]
    order = np.argsort(whole, kind="stable")
    assert (np.diff(found.group[order]) >= 0).all()
    assert len(found.labels) == 4
    assert found.labels[0].startswith(f"{whole.min()}-")
    assert found.labels[-1].endswith(f"-{whole.max()}")


def test_copying_groups_by_position(tmp_path):
    task = opened("copying", tmp_path, length=41, count=1, noise=5)
    (found,) = task.groupings("test")
    assert found.labels == ("0-9", "10-19", "20-29", "30-39")
    first = task.options.first_symbol
    for row, tokens in enumerate(task.dataset.splits["test"].tokens):
        (place,) = [i for i, token in enumerate(tokens.tolist()[:40]) if token >= first]
        assert found.group[row] == place // 10
    assert opened("copying", tmp_path, length=41, count=3).groupings("test") == []
    assert opened("copying", tmp_path, length=41, count=1, depth=0.5).groupings("test") == []
    (together,) = opened("copying", tmp_path, length=43, count=3, together=True).groupings("test")
    assert together.labels[-1].endswith("-37")


def test_recall_groups_by_distance_of_a_single_query(tmp_path):
    task = opened("recall", tmp_path, length=40, pairs=6, queries=1, vocabulary=64, power=1)
    (found,) = task.groupings("test")
    examples = task.dataset.splits["test"]
    for row, (tokens, targets) in enumerate(zip(examples.tokens, examples.targets, strict=True)):
        (place,) = np.flatnonzero(targets)
        distance = place - tokens.tolist().index(tokens[place])
        bounds = label_of(found, row).split("-")
        assert int(bounds[0]) <= distance <= int(bounds[-1])
    many = opened("recall", tmp_path, length=40, pairs=6, vocabulary=64)
    assert many.groupings("test") == []


def test_groupings_are_cached_for_an_open_data_set(tiny_cache, monkeypatch):
    task = tiny.listops(tiny_cache)
    first = task.groupings("test")
    assert task.groupings("test") is first
    assert len(task.groupings("validation")[0].group) == 40
    task.open(tiny_cache)
    again = task.groupings("test")
    assert again is not first
    assert [one.group.tolist() for one in again] == [one.group.tolist() for one in first]


@pytest.mark.parametrize("name", ["listops", "pathfinder", "copying"])
def test_slices_add_up_to_the_score(name, tiny_cache, pathfinder, tmp_path):
    task = {
        "listops": lambda: tiny.listops(tiny_cache),
        "pathfinder": lambda: pathfinder,
        "copying": lambda: opened("copying", tmp_path, length=41, count=2, together=True),
    }[name]()
    generator = np.random.default_rng(0)
    num_targets = np.full(task.size("test"), 2 if name == "copying" else 1)
    num_correct = generator.integers(0, num_targets + 1)
    score = Score(
        metrics={"accuracy": num_correct.sum() / num_targets.sum()},
        loss=0.0,
        num_examples=len(num_targets),
        num_targets=int(num_targets.sum()),
    )
    statistics = np.stack((num_correct, num_targets), axis=1).astype(np.float64)
    evaluation = Evaluation(score=score, statistics=statistics, num_targets=num_targets)
    groupings = score_slices(task, "test", evaluation)
    assert groupings
    for slices in groupings.values():
        assert sum(x.num_targets for x in slices) == num_targets.sum()
        assert sum(x.value * x.num_targets for x in slices) == pytest.approx(num_correct.sum())
