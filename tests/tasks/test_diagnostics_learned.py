"""The diagnostic tasks separate mechanisms: full attention solves them, a short window cannot."""

import pytest
import torch

from longspan.models import LongspanConfig, LongspanForTokenClassification
from longspan.tasks import build
from longspan.training import TrainConfig, fit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SIZES = {"train": 20_000, "validation": 300, "test": 1_000}
TASKS = {
    "recall": {"length": 24, "pairs": 4, "queries": 8, "vocabulary": 16, "power": 1.0},
    "copying": {"length": 32, "count": 4, "symbols": 8},
}
TRAIN = TrainConfig(
    steps=2_400,
    batch=64,
    learning_rate=4e-3,
    warmup=100,
    schedule="linear",
    evaluate_every=800,
    clip=1.0,
    weight_decay=0.01,
)


def accuracy(name, attention, options, folder):
    task = build(name, {**SIZES, **TASKS[name]})
    task.open(folder / "cache")
    config = LongspanConfig(
        vocab_size=task.vocabulary,
        max_position_embeddings=task.length,
        attention=attention,
        attention_options=options,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_dropout=0.0,
        initializer_range=0.125,
    )
    config.num_labels = task.class_count
    torch.manual_seed(0)
    model = LongspanForTokenClassification(config)
    done = fit(model, task, TRAIN, seed=0, folder=folder / "run", device="cpu")
    score = done.scores["test"]
    assert score.examples == 1_000 * (8 if name == "recall" else 4)
    return score.accuracy


@pytest.mark.parametrize("name", TASKS)
def test_full_attention_solves_it(tmp_path, one_thread, name):
    assert accuracy(name, "full", {}, tmp_path) > 0.95


@pytest.mark.parametrize("name", TASKS)
def test_a_short_window_cannot(tmp_path, one_thread, name):
    found = accuracy(name, "local", {"window": 4}, tmp_path)
    assert build(name, TASKS[name]).chance / 2 < found < 0.5
