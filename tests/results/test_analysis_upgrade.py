"""Analyses written under schema 1."""

import json

import numpy as np
import pytest

from longspan.errors import DataError
from longspan.results import load_analysis

SPAN = {"mean": 10.0, "deviation": 1.0}


def content():
    """Return an analysis of schema 1, of an image of four pixels."""
    x = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
    return {
        "protocol": "lra-scaled",
        "task": "image",
        "mechanism": "full",
        "seed": 0,
        "config_hash": "0123456789",
        "split": "validation",
        "samples": 5,
        "available": 9,
        "mean_length": 4.0,
        "uniform": 1.25,
        "negative": 0.0,
        "span": SPAN,
        "layers": [SPAN, SPAN],
        "heads": [[SPAN], [SPAN]],
        "positions": {"count": 4, "grid": [2, 2], "matrix": np.round(x @ x.T, 4).tolist()},
        "tokens": None,
        "rollout": {
            "split": "validation",
            "row": 3,
            "start": "first state",
            "shares": [0.1, 0.2, 0.3, 0.15],
            "side": 2,
            "levels": [0, 255, 7, 9],
            "tokens": None,
        },
        "device": "cpu",
        "versions": {},
        "date": "2026-01-02T03:04:05+00:00",
        "schema": 1,
    }


def load(folder, values):
    path = folder / "full-0123456789-0.json"
    path.write_text(json.dumps(values))
    return load_analysis(path)


def test_analysis_of_schema_1_is_upgraded(tmp_path):
    found = load(tmp_path, content())
    assert (found.schema, found.refusal, found.tokens) == (2, None, None)
    assert (found.spans.samples, found.spans.uniform, found.spans.mean.mean) == (5, 1.25, 10.0)
    assert len(found.spans.layers) == 2
    assert found.positions.cosines() == pytest.approx(
        np.array(content()["positions"]["matrix"]), abs=2e-4
    )
    (rollout,) = found.rollouts
    assert (rollout.row, rollout.part, rollout.start) == (3, 1, "the first state")
    assert rollout.shares.unpack() == pytest.approx(content()["rollout"]["shares"], abs=1e-5)
    assert rollout.levels.unpack().tolist() == [0, 255, 7, 9]
    assert rollout.label is None


def test_rollouts_of_text_and_absent_ones_are_upgraded(tmp_path):
    text = {"side": None, "levels": None, "tokens": ["[MAX", "3", "4", "]"], "start": "token 2"}
    old = content()
    (rollout,) = load(tmp_path, {**old, "rollout": {**old["rollout"], **text}}).rollouts
    assert (rollout.tokens, rollout.start) == (["[MAX", "3", "4", "]"], "token 2")
    assert load(tmp_path, {**content(), "rollout": None}).rollouts == []


@pytest.mark.parametrize(
    "change",
    [
        {"positions": {"count": 4, "grid": None, "matrix": [[1.0, 2.0]]}},
        {"positions": 3},
        {"rollout": {"row": 1}},
        {"rollout": [1]},
    ],
)
def test_malformed_analysis_of_schema_1_is_rejected(tmp_path, change):
    message = "full-0123456789-0.json is not a valid analysis of schema 1 .*analyze again"
    with pytest.raises(DataError, match=message):
        load(tmp_path, {**content(), **change})
    old = content()
    del old["uniform"]
    with pytest.raises(DataError, match="'uniform'"):
        load(tmp_path, old)
