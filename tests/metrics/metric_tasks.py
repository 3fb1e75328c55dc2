"""Four small tasks, one for each kind of metric, and a protocol that contains them."""

import contextlib

import numpy as np
import torch
from pydantic import PositiveInt

import tiny
from longspan.arena.protocols import PROTOCOLS, Protocol, Recipe
from longspan.arena.protocols import register as register_protocol
from longspan.config import ModelConfig, TrainingConfig, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged
from longspan.metrics.summaries import rouge
from longspan.tasks import SPLITS, TASKS, TaskInfo, register
from longspan.tasks.base import Task
from longspan.tasks.scoring import likelihood_statistics

PROTOCOL = "metrics-of-any-kind"
LENGTH, SYMBOLS = 12, 6
WORDS = ("", "time", "flies", "like", "an", "arrow", "banana")
SIZES = {"train": 120, "validation": 30, "test": 41}


@settings
class Options:
    length: PositiveInt = setting("tokens of an example", LENGTH)


def info(name, **changes):
    fields = {
        "title": name.replace("_", " ").capitalize(),
        "summary": "Predict what a test needs.",
        "source": "random tokens",
        "license": "none",
        "sizes": SIZES,
        "vocab_size": SYMBOLS + 1,
        "num_classes": SYMBOLS,
    }
    return TaskInfo(name=name, **{**fields, **changes})


class RandomTokens(Task):
    """Sequences of random symbols; smaller symbols are more frequent."""

    Options = Options

    @property
    def length(self):
        return self.options.length

    def build_splits(self, data, scratch, progress):
        splits = {}
        for seed, split in enumerate(SPLITS):
            draws = np.random.default_rng(seed)
            shape = (SIZES[split], self.length)
            tokens = 1 + (SYMBOLS * draws.random(shape) ** 1.3).astype(np.uint8)
            splits[split] = self.label(tokens)
        return BuildOutput(splits=splits, source="random tokens", license="none", facts={})

    def label(self, tokens):
        """Return examples labeled with the class of each row."""
        labels = self.classes(tokens).astype(np.uint8)
        return Examples(tokens=Ragged.pack(list(tokens), np.uint8), labels=labels)

    def show(self, split, row):
        return str(self._example(split, row))


class CountedSymbol(RandomTokens):
    """Detect a first symbol that occurs more than twice; scored by F1."""

    info = info(
        "counted_symbol", num_classes=2, metrics=("f1", "accuracy"), head="sequence_classification"
    )

    def classes(self, tokens):
        return (tokens == 1).sum(1) > 2


class RankedSymbol(RandomTokens):
    """Ranking of symbols; the most frequent symbol is relevant."""

    info = info("ranked_symbol", metrics=("mrr",), head="sequence_classification")

    def classes(self, tokens):
        return np.stack([(tokens == 1 + x).sum(1) for x in range(SYMBOLS)]).argmax(0)


class TokenTask(RandomTokens):
    """Task that scores the class of every token."""

    def label(self, tokens):
        rows = Ragged.pack(list(tokens), np.uint8)
        return Examples(tokens=rows, targets=rows, labels=np.zeros(len(tokens), np.uint8))


class RepeatedWords(TokenTask):
    """Repetition of words; the predicted text is compared with the reference text of the row."""

    info = info("repeated_words", metrics=("rougeL", "rouge1"), head="token_classification")

    @property
    def training_metrics(self):
        """Return no metric: ROUGE is too slow for every training batch."""
        return ()

    def reference(self, split, row):
        return " ".join(WORDS[token] for token in self._examples(split).tokens[row])

    def example_statistics(self, metrics, split, rows, logits, targets):
        scores = []
        for row, classes in zip(rows.tolist(), logits.argmax(-1).tolist(), strict=True):
            prediction = " ".join(WORDS[1 + x] for x in classes[: self.length])
            scores.append(rouge(prediction, self.reference(split, row), "rouge-score"))
        return {
            metric.name: torch.tensor([[one[metric.name], 1.0] for one in scores])
            for metric in metrics
        }


class PredictedBytes(TokenTask):
    """Prediction of bytes; scored by code length."""

    info = info(
        "predicted_bytes", metrics=("bits_per_byte", "perplexity"), head="token_classification"
    )

    def example_statistics(self, metrics, split, rows, logits, targets):
        statistics = likelihood_statistics(logits, targets)
        return {metric.name: statistics for metric in metrics}


ALL = (CountedSymbol, RankedSymbol, RepeatedWords, PredictedBytes)
NAMES = tuple(task.info.name for task in ALL)

MODEL = ModelConfig(**tiny.MODEL, hidden_dropout_prob=0.0, initializer_range=0.2)
# A large constant learning rate gives a curve that is not monotonic.
TRAINING = TrainingConfig(
    steps=16,
    batch_size=16,
    learning_rate=0.02,
    warmup_steps=0,
    schedule="constant",
    evaluate_every=4,
    eval_batch_size=16,
)


@contextlib.contextmanager
def registered():
    """Register the tasks and their protocol; remove them on exit."""
    try:
        for task in ALL:
            register(task)
        register_protocol(
            Protocol(
                name=PROTOCOL,
                summary="Four tasks with four kinds of metrics.",
                source="tests",
                tasks=NAMES,
                differs="Not a published recipe.",
                recipe=lambda task: Recipe(task_options={}, model=MODEL, training=TRAINING),
                mechanism_options={"local": {"window": 2}},
            )
        )
        yield
    finally:
        PROTOCOLS.pop(PROTOCOL, None)
        for name in NAMES:
            TASKS.pop(name, None)
