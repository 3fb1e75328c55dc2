"""Recall in context: `k3 v7 k1 v4 k3 ?`; after a key that occurred before, give its value again.

In-context, noisy and fuzzy recall of Poli et al., "Mechanistic Design and Scaling of Hybrid
Architectures", 2024 (https://arxiv.org/abs/2403.17844), as its generator draws them
(athms/mad-lab, mad/data/instances.py): pairs from the beginning to the end, with keys and values
drawn with replacement, each key with one value in an example. Of a pair drawn first, which is
placed at random, the key is asked for at the end.

Noise takes the place of some pairs: tokens of their own, as many as the pair has. In the fuzzy form
keys and values are strings of one to three different tokens; held-out keys have three. Examples
begin with blanks, where no other pair fits.

The value follows its key, so models are causal and predict the next token. Training scores every
token, an evaluation the values of the keys that occurred before.
"""

import dataclasses

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from longspan.config import Length, NumExamples, setting, settings
from longspan.data.sampling import (
    CHUNK_SIZE,
    TokensAndTargets,
    check_vocab_size,
    sample_distinct,
)
from longspan.data.store import Examples
from longspan.errors import OptionError
from longspan.metrics import Metric
from longspan.tasks.base import Batch, Split
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.registry import register
from longspan.tasks.rules import Rule
from longspan.tasks.synthetic.generated import CausalTask, GeneratedOptions

BLANK = 1
_FIRST_KEY = 2  # ids 0 and 1 are padding and the blank


@settings
class ContextRecallOptions(GeneratedOptions):
    """Sizes of the splits, and difficulty."""

    train: NumExamples = setting("training examples", 12_800)
    validation: NumExamples = setting("validation examples", 1_280)
    test: NumExamples = setting("test examples", 1_280)
    length: Length = setting("tokens of an example", 127)
    keys: PositiveInt = setting("different tokens of keys", 8)
    values: PositiveInt = setting("different tokens of values", 8)
    key_size: PositiveInt = setting("most tokens of a key; held-out keys have as many", 1)
    value_size: PositiveInt = setting("most tokens of a value", 1)
    noise: NonNegativeInt = setting("different tokens of noise", 0)
    noise_share: float = setting("share of the pairs whose place noise takes", 0.0)

    def __post_init__(self) -> None:
        """Check the difficulty.

        Raises:
            OptionError: the options contradict each other.
        """
        # Targets are ids + 1.
        check_vocab_size(self.vocabulary + 1, "keys, values or noise")
        for name, size in (("keys", self.key_size), ("values", self.value_size)):
            if size > getattr(self, name):
                raise OptionError(
                    f"{name[:-1]}_size={size} is above {name}={getattr(self, name)}, of which each "
                    f"is used once; use {name}={size} or more"
                )
        if not 0 <= self.noise_share < 1:
            raise OptionError(f"noise_share={self.noise_share}; expected 0 to less than 1")
        if self.noise_share and not self.noise:
            raise OptionError(f"noise_share={self.noise_share} needs tokens of noise; set noise=16")
        shortest = 2 * (self.key_size + self.value_size) - 1
        if self.length < shortest:
            raise OptionError(
                f"length={self.length} is too short for a pair and its key again; use {shortest} "
                "or more"
            )

    @property
    def first_value(self) -> int:
        """Smallest id of a value."""
        return _FIRST_KEY + self.keys

    @property
    def first_noise(self) -> int:
        """Smallest id of noise."""
        return self.first_value + self.values

    @property
    def vocabulary(self) -> int:
        """Number of token ids: padding, the blank, keys, values and noise."""
        return self.first_noise + self.noise


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Draws for the pairs of a chunk, of which each example uses the first ones.

    Attributes:
        keys, values: tokens of the largest size.
        key_sizes, value_sizes: sizes of the pairs, (rows, pairs).
        noise: tokens in the place of the largest pair.
        is_noise: where noise takes the place of a pair.
        place: share of the room for pairs before the pair that is asked for.
    """

    keys: np.ndarray
    values: np.ndarray
    key_sizes: np.ndarray
    value_sizes: np.ndarray
    noise: np.ndarray
    is_noise: np.ndarray
    place: np.ndarray

    def pair(self, row: int, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of a key and of a value."""
        key = self.keys[row, number, : self.key_sizes[row, number]]
        value = self.values[row, number, : self.value_sizes[row, number]]
        return tuple(key.tolist()), tuple(value.tolist())


def _draw_pairs(options: ContextRecallOptions, split: Split, draws: np.random.Generator) -> _Pairs:
    """Draw as many pairs as fit into the examples of a chunk if all are of the smallest size."""
    smallest = 1 if split == "train" else options.key_size
    shape = CHUNK_SIZE, (options.length + 1) // (smallest + 1) + 1
    largest = options.key_size + options.value_size

    def draw_words(count: int, size: int, first: int) -> np.ndarray:
        words = sample_distinct(draws, shape[0] * shape[1], count, size)
        return (first + words).reshape(*shape, size)

    return _Pairs(
        keys=draw_words(options.keys, options.key_size, _FIRST_KEY),
        values=draw_words(options.values, options.value_size, options.first_value),
        key_sizes=draws.integers(smallest, options.key_size + 1, shape),
        value_sizes=draws.integers(1, options.value_size + 1, shape),
        noise=options.first_noise + draws.integers(0, max(options.noise, 1), (*shape, largest)),
        is_noise=draws.random(shape) < options.noise_share,
        place=draws.random(CHUNK_SIZE),
    )


def _write_example(
    options: ContextRecallOptions, pairs: _Pairs, row: int
) -> tuple[list[int], list[int]]:
    """Return the tokens of an example with the last value, and 1 at those that are scored."""
    asked, answer = pairs.pair(row, 0)
    largest, last = options.key_size + options.value_size, len(asked) + len(answer)
    room = options.length + 1 - last
    place = min(int(pairs.place[row] * (room - last)), room - 2 * largest)
    bindings, seen = {asked: answer}, set[tuple[int, ...]]()
    tokens, scored = list[int](), list[int]()
    number = 1
    while len(tokens) + largest <= room:
        if asked not in seen and len(tokens) >= place:
            key, is_noise = asked, False
        else:
            key, value = pairs.pair(row, number)
            bindings.setdefault(key, value)
            is_noise, number = bool(pairs.is_noise[row, number]), number + 1
        if is_noise:
            size = len(key) + len(value)
            tokens += pairs.noise[row, number - 1, :size].tolist()
            scored += [0] * size
            continue
        tokens += [*key, *bindings[key]]
        scored += [0] * len(key) + [int(key in seen)] * len(bindings[key])
        seen.add(key)
    blanks = room - len(tokens)
    tokens = [BLANK] * blanks + tokens + [*asked, *answer]
    return tokens, [0] * blanks + scored + [0] * len(asked) + [1] * len(answer)


class _ContextRecallTask(CausalTask):
    """Base of the three forms: targets, rule and names of the tokens."""

    options: ContextRecallOptions

    @property
    def num_classes(self) -> int:
        """Number of token ids, of which any may be next."""
        return self.options.vocabulary

    @property
    def chance(self) -> float:
        """Accuracy of a uniform guess among the tokens of values."""
        return 1 / self.options.values

    @property
    def training_metrics(self) -> tuple[Metric, ...]:
        """None: a training batch scores keys, which nobody can predict."""
        return ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Prediction from the last value alone, which needs no look-up by the key."""
        return (
            Rule(
                name="last value",
                summary="the last token of a value before the scored position",
                predict=self._predict_by_last_value,
            ),
        )

    def _predict_by_last_value(self, train: Examples, examples: Examples) -> np.ndarray:
        """Return the last token of a value before each scored position; nothing is fitted."""
        options = self.options
        assert examples.targets is not None
        tokens = examples.tokens.values.reshape(-1, options.length)
        is_value = (tokens >= options.first_value) & (tokens < options.first_noise)
        last = np.maximum.accumulate(np.where(is_value, np.arange(options.length), 0), 1)
        values = np.take_along_axis(tokens, last, 1).astype(np.int64)
        return values[examples.targets.values.reshape(tokens.shape) > 0]

    def draw_chunk(self, split: Split, draws: np.random.Generator) -> TokensAndTargets:
        """Draw the tokens and targets of `CHUNK_SIZE` examples, both (rows, length) uint16.

        The target of a token is i + 1 if the next one is scored and has id i; other targets are 0.
        """
        options = self.options
        pairs = _draw_pairs(options, split, draws)
        rows = [_write_example(options, pairs, row) for row in range(CHUNK_SIZE)]
        tokens, scored = (np.array(x, np.uint16) for x in zip(*rows, strict=True))
        return tokens[:, :-1], (tokens[:, 1:] + np.uint16(1)) * scored[:, 1:]

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some examples as a batch; in training every next token is a target.

        Raises:
            DataError: a row has changed on disk since it was written.
        """
        batch = super().collate(examples, rows, draw)
        if draw is not None:
            last = self.length - 1  # what follows the last token is the stored target
            batch.targets[:, :last] = batch.inputs["input_ids"][:, 1 : last + 1]
        return batch

    def class_name(self, label: int) -> str:
        """Return the token of an id."""
        return self.ids_to_tokens(np.array([label]))[0]

    def show(self, split: Split, row: int) -> str:
        """Return the tokens, and the scored ones in brackets."""
        tokens, targets = self._tokens_and_targets(split, row)
        ids = np.array([*tokens, targets[-1] - 1])
        words = self.ids_to_tokens(ids)
        is_scored = [False, *(x > 0 for x in targets)]
        return " ".join(
            f"[{word}]" if x else word for word, x in zip(words, is_scored, strict=True)
        )

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return the names of keys, values and noise, numbered from 0, and dots for blanks."""
        options, names = self.options, ["0", "."]
        names += [f"k{x}" for x in range(options.keys)]
        names += [f"v{x}" for x in range(options.values)]
        names += [f"n{x}" for x in range(options.noise)]
        return [names[x] for x in ids.tolist()]


_SOURCE = "generated, after Poli et al. 2024, https://arxiv.org/abs/2403.17844"
_NOTES = (
    "A diagnostic task, not part of Long Range Arena, for causal models. Chance is a guess among "
    "the tokens of values. Poli et al. select on the test split, and their accuracy is a mean over "
    "classes; here a validation split selects, and the accuracy is that of the scored tokens."
)


@register
class InContextRecallTask(_ContextRecallTask):
    """In-context recall: eight keys, which recur many times."""

    Options = ContextRecallOptions
    info = TaskInfo(
        name="in_context_recall",
        title="In-context recall",
        summary="Give the value of each key that has occurred before, as the next token.",
        source=_SOURCE,
        license="Apache-2.0 (generated by longspan)",
        metrics=("accuracy",),
        head="token_classification",
        notes=_NOTES,
    )


@settings
class NoisyRecallOptions(ContextRecallOptions):
    """Sizes of the splits, and difficulty."""

    noise: NonNegativeInt = setting("different tokens of noise", 16)
    noise_share: float = setting("share of the pairs whose place noise takes", 0.2)


@register
class NoisyRecallTask(_ContextRecallTask):
    """In-context recall among tokens of noise."""

    Options = NoisyRecallOptions
    info = dataclasses.replace(
        InContextRecallTask.info,
        name="noisy_recall",
        title="Noisy in-context recall",
        summary="Give the value of each key that has occurred before, among tokens of noise.",
        published=published_scores("noisy_recall"),
    )


@settings
class FuzzyRecallOptions(ContextRecallOptions):
    """Sizes of the splits, and difficulty."""

    length: Length = setting("tokens of an example", 128)
    keys: PositiveInt = setting("different tokens of keys", 7)
    key_size: PositiveInt = setting("most tokens of a key; held-out keys have as many", 3)
    value_size: PositiveInt = setting("most tokens of a value", 3)


@register
class FuzzyRecallTask(_ContextRecallTask):
    """In-context recall of keys and values of several tokens."""

    Options = FuzzyRecallOptions
    info = dataclasses.replace(
        InContextRecallTask.info,
        name="fuzzy_recall",
        title="Fuzzy in-context recall",
        summary="Give the values, of up to three tokens, of keys of several tokens seen before.",
        published=published_scores("fuzzy_recall"),
    )
