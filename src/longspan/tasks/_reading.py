"""What tasks over texts share: the ids that texts are read as, and subsets balanced by class."""

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from longspan.config import setting, settings
from longspan.data.store import Examples
from longspan.data.tokenizers import VOCAB_SIZES, ByteTokenizer, CharacterTokenizer
from longspan.errors import OptionError
from longspan.tasks import _groups
from longspan.tasks.base import Grouping, Split, check_least
from longspan.tasks.sequence import SequenceTask


@settings
class ReadingOptions:
    """How texts are read."""

    length: int = setting("tokens of a text that are kept")
    vocabulary: Literal["bytes", "characters"] = setting(
        "read bytes, or the characters that are frequent in the training texts", "bytes"
    )
    minimum: int = setting("a character that occurs less often in the training texts is unknown")
    end: bool = setting("close each text with an end symbol, within its length (characters)", False)
    seed: int = setting("seed that chooses examples", 0)

    def __post_init__(self) -> None:
        """Refuse what cannot be read, and options that would make no difference."""
        check_least(self, {"length": 1, "minimum": 1, "seed": 0})
        if self.end and self.length < 2:
            raise OptionError("length=1 leaves no token before the end symbol; use 2 or more")
        if self.vocabulary == "bytes" and (self.end or self.minimum != type(self).minimum):
            raise OptionError(
                f"end={self.end}, minimum={self.minimum}: they are for characters; set "
                "vocabulary='characters' first, or leave them alone"
            )


class ReadingTask(SequenceTask):
    """A task whose examples are texts."""

    options: ReadingOptions

    @property
    def length(self) -> int:
        """The most tokens that a text can have."""
        return self.options.length

    @property
    def vocabulary(self) -> int:
        """Token ids, padding (id 0) included; the same whatever the texts are."""
        return VOCAB_SIZES[self.options.vocabulary]

    def encoding(
        self, trained_on: Callable[[], Iterable[tuple[bytes, int]]]
    ) -> ByteTokenizer | CharacterTokenizer:
        """The ids of these options.

        Args:
            trained_on: the texts that characters are learnt from, and how often each occurs.
        """
        options = self.options
        if options.vocabulary == "bytes":
            return ByteTokenizer()
        return CharacterTokenizer.learn(
            trained_on(), length=options.length, minimum=options.minimum, end=options.end
        )

    def grouped(self, examples: Examples) -> list[Grouping]:
        """By length, of a pair that of both texts, in quarters of the split."""
        lengths = np.sum([part.lengths for part in examples.lists.values()], axis=0)
        return _groups.even("length", lengths, 4)

    def words(self, tokens: np.ndarray) -> list[str]:
        """The characters; U+FFFD for bytes that are none by themselves, and what is unknown."""
        return [self.text(tokens[i : i + 1]) for i in range(len(tokens))]

    def text(self, tokens: np.ndarray) -> str:
        """The text of an example's tokens, for `show`; known once the task is open."""
        if self.options.vocabulary == "bytes":
            return ByteTokenizer().decode(tokens)
        return CharacterTokenizer(self.facts["characters"], end=self.options.end).decode(tokens)


def pick(
    rows: np.ndarray,
    labels: np.ndarray,
    count: int | None,
    stream: tuple[int, int],
    split: Split,
    names: tuple[str, str],
) -> np.ndarray:
    """`count` of the rows, as many of each class, in ascending order; all when it is None.

    A larger count contains a smaller one, since each class is a prefix of one permutation.

    Args:
        rows: to choose from.
        labels: of all rows, 0 or 1.
        count: how many.
        stream: seed and purpose of the random numbers.
        split: for the message.
        names: what examples of class 0 and 1 are called, for the message.

    Raises:
        OptionError: there are not as many.
    """
    if count is None:
        return rows
    chosen = []
    for label in range(2):
        wanted = count // 2 + (label < count % 2)
        own = rows[labels[rows] == label]
        if wanted > len(own):
            raise OptionError(
                f"{split}={count} needs {wanted} {names[label]}, there are {len(own)}; "
                f"use {2 * len(own)} or less"
            )
        sequence = np.random.SeedSequence([*stream, label])
        order = np.random.Generator(np.random.PCG64(sequence)).permutation(len(own))
        chosen.append(own[order[:wanted]])
    return np.sort(np.concatenate(chosen))
