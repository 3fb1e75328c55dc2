"""Linear models and rules of `benchmarks/without_network.py` against plain definitions."""

import itertools
import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from longspan.data.store import Ragged
from longspan.tasks.lra.generators.listops import Grammar, generate, ids_to_symbols, parse

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")


@pytest.fixture(scope="module")
def ngrams(import_script):
    return import_script("byte_ngrams")


@pytest.fixture(scope="module")
def truncated(import_script):
    return import_script("truncated_listops")


@pytest.fixture(scope="module")
def patches(import_script):
    return import_script("patch_features")


@pytest.fixture(scope="module")
def script(import_script):
    return import_script("without_network")


@pytest.fixture(scope="module")
def expressions():
    grammar = Grammar(max_depth=6, max_args=5, min_length=10, max_length=200)
    return generate(grammar, 300, seed=3, workers=1)


def draw_texts(count=40, letters=3):
    random = np.random.default_rng(0)
    rows = [random.integers(97, 97 + letters, random.integers(5, 30)) for _ in range(count)]
    return Ragged.pack([row.astype(np.uint16) for row in rows], np.uint16)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_columns_are_the_ngrams_of_enough_training_texts(ngrams, n):
    texts, length, train = draw_texts(120, letters=2), 12, np.arange(100)
    sets = [
        {tuple(x[i : i + n]) for i in range(len(x) - n + 1)}
        for x in (text[:length].tolist() for text in texts)
    ]
    names = [
        name
        for name in set().union(*sets)
        if sum(name in sets[row] for row in train) >= ngrams.MINIMUM
    ]
    expected = sorted(tuple(name in one for one in sets) for name in names)
    present = ngrams.ngram_presence(texts, length, n, train).toarray().T
    assert sorted(tuple(column == 1) for column in present) == expected
    assert expected


@pytest.mark.parametrize("strengths", [(4.0,), (0.25, 1.0, 4.0)])
def test_logistic_regression_reaches_the_optimum_of_another_solver(ngrams, strengths):
    random = np.random.default_rng(1)
    features = csr_matrix((random.random((300, 40)) < 0.2).astype(np.float32))
    labels = (features @ random.normal(size=40) + random.normal(size=300) > 0).astype(np.int64)
    model = ngrams.LogisticRegression(features, labels)
    for strength in strengths:
        model.fit(strength)
    rows, signs = np.c_[features.toarray(), np.ones(len(labels))], 2 * labels - 1

    def objective(weights):
        margins = signs * (rows @ weights)
        slope = weights - 4 * rows.T @ (signs / (1 + np.exp(margins)))
        return weights @ weights / 2 + 4 * np.logaddexp(0, -margins).sum(), slope

    best = minimize(objective, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B")
    excess = objective(model.weights)[0] / best.fun - 1
    assert -1e-6 < excess <= model.gap() < 0.01


def test_rows_have_norm_one_and_differences_follow_from_the_features_of_pairs(ngrams, script):
    present = ngrams.ngram_presence(draw_texts(), 30, 2, np.arange(40))
    dense, pairs = present.toarray(), np.array([[0, 1], [7, 3], [5, 5]])
    assert np.square(ngrams.unit_rows(present).toarray()).sum(1) == pytest.approx(1, rel=1e-5)
    shared = script.pair_features(present, pairs, "shared").toarray()
    for (one, other), row in zip(pairs, shared, strict=True):
        both = (row > 0).astype(int)
        difference = dense[one] + dense[other] - 2 * both
        assert (difference == abs(dense[one] - dense[other])).all()
        cosine = dense[one] @ dense[other] / np.sqrt(dense[one].sum() * dense[other].sum())
        assert np.square(row).sum() == pytest.approx(cosine, rel=1e-5)
    columns = dense.shape[1]
    whole = script.pair_features(present, pairs, "all").toarray()
    assert (whole[:, columns : 2 * columns] == script.pair_features(present, pairs, "second")).all()
    assert (whole[:, 2 * columns :] == shared).all()


def evaluate(node, levels, means):
    """Return the value of a tree of which some levels of operators are computed."""
    if not node.arguments:
        return node.value
    if levels == 0:
        return means[OPERATORS.index(node.symbol)]
    values = sorted(evaluate(x, levels - 1, means) for x in node.arguments)
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2
    return {"[MIN": values[0], "[MAX": values[-1], "[MED": middle, "[SM": sum(values) % 10}[
        node.symbol
    ]


def operators_below(node):
    return [node, *itertools.chain(*map(operators_below, node.arguments))] if node.arguments else []


def test_truncated_values_are_those_of_the_trees(truncated, expressions):
    trees = [parse(ids_to_symbols(tokens)) for tokens in expressions.tokens]
    nodes = list(itertools.chain(*map(operators_below, trees)))
    means = truncated.operator_means(expressions.tokens)
    for mean, operator in zip(means, OPERATORS, strict=True):
        values = [node.value for node in nodes if node.symbol == operator]
        assert abs(mean - np.mean(values)) <= 0.5
    for levels in range(6):
        values = truncated.truncated_values(expressions.tokens, levels, means)
        assert values.tolist() == [evaluate(tree, levels, means) for tree in trees]
    assert (values == expressions.labels).all()


def test_patches_ignore_brightness_and_stay_in_their_quadrant(patches):
    images = torch.randint(0, 200, (30, 16, 16), generator=torch.Generator().manual_seed(2))
    encode = patches.PatchFeatures(images, 5, kmeans=True)
    features = encode(images).unflatten(1, (5, 4))
    torch.testing.assert_close(encode(images + 40).unflatten(1, (5, 4)), features)
    corner = images.clone()
    corner[:, :3, :3] = 0  # patches of the other quadrants begin at row or column 6
    changed = (encode(corner).unflatten(1, (5, 4)) - features).abs().amax((0, 1))
    assert changed[0] > 1e-3
    assert (changed[1:] < 1e-5).all()


def test_ridge_regression_solves_the_penalized_least_squares(patches):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 8, generator=generator) * torch.arange(1, 9)
    labels = torch.randint(0, 3, (60,), generator=generator)
    rows = ((features - features.mean(0)) / features.std(0)).double()
    targets = 2.0 * torch.eye(3, dtype=torch.float64)[labels] - 1
    padded = torch.cat([rows, 30**0.5 * torch.eye(8, dtype=torch.float64)])
    centered = torch.cat([targets - targets.mean(0), torch.zeros(8, 3, dtype=torch.float64)])
    solution = torch.linalg.lstsq(padded, centered).solution
    expected = (rows @ solution + targets.mean(0)).argmax(-1)
    model = patches.Ridge(features, labels).fit(30.0)
    assert torch.equal(model.predict(features), expected)
    assert len(expected.unique()) == 3


def test_rows_are_measured_once_and_test_labels_select_nothing(script, tmp_path, monkeypatch):
    sizes = {"train": 4_000, "validation": 100, "test": 100, "min_length": 10, "max_length": 60}
    monkeypatch.setitem(script.OPTIONS, "listops", sizes)
    path = tmp_path / "record.json"
    script.measure_listops(script.Ladder("listops", path))
    written = path.read_text()
    rows = json.loads(written)["rows"]
    assert len(rows) == 1 + len(script.LEVELS)
    assert rows[0]["test"] == rows[1]["test"] < rows[-1]["test"] == 1
    assert all(row["low"] <= row["test"] <= row["high"] for row in rows)
    script.measure_listops(script.Ladder("listops", path))
    assert path.read_text() == written

    ladder = script.Ladder("listops", None)
    features = {x: csr_matrix(np.eye(10)[y % 10]) for x, y in ladder.labels.items()}
    ladder.labels = {x: y % 2 for x, y in ladder.labels.items()}
    correct, details = ladder.classify(features, refit=True)
    assert correct["test"].all()
    ladder.labels["test"] = 1 - ladder.labels["test"]
    wrong, same = ladder.classify(features, refit=True)
    assert not wrong["test"].any()
    assert same == details


def test_page_has_the_tables_of_the_record(import_script):
    tables = import_script("ladder_tables")
    record, page = json.loads(tables.RECORD.read_text()), tables.PAGE.read_text()
    assert tables.replace_between(page, tables.OPEN, tables.render(record)) == page
    for row in record["rows"]:
        assert tables.cell(row) in page or row["features"] == "levels"
    # test scores select nothing
    rows = [row | {"test": 1 - row["test"]} for row in record["rows"]]
    for task in tables.TASKS:
        steps, inverted = ([x for x in y if x["task"] == task] for y in (record["rows"], rows))
        assert steps.index(tables.select(task, steps)) == inverted.index(
            tables.select(task, inverted)
        )
