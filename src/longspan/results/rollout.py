"""Record of an attention rollout."""

from numpy.typing import ArrayLike

from longspan.config import settings
from longspan.errors import DataError
from longspan.results.packing import Quantized, quantize

GRAY_LEVELS = 256


@settings
class Rollout:
    """Attention rollout: the share of each input token in the output, for one sequence.

    The shares sum to one, together with that of the CLS token where the model has one.

    Attributes:
        split: split of the example.
        row: row of the example.
        part: 1, or 2 for the second sequence of a pair.
        start: states that are traced back, such as "the CLS token" or "token 3".
        label: class of the example; None where tokens are scored, or not recorded.
        prediction: class that the model predicts; None like `label`.
        shares: share of each input token.
        side: side of the image that the tokens form; None for other inputs.
        levels: gray levels of the image, 0 to 255.
        text: tokens as text, for other inputs.
        separator: text between two tokens; empty where every token is one character.
    """

    split: str
    row: int
    part: int
    start: str
    label: str | None
    prediction: str | None
    shares: Quantized
    side: int | None
    levels: Quantized | None
    text: str | None
    separator: str = ""

    @property
    def tokens(self) -> list[str] | None:
        """Tokens as text; None for images."""
        if self.text is None:
            return None
        return self.text.split(self.separator) if self.separator else list(self.text)

    def check(self) -> None:
        """Check that there are as many shares as tokens or pixels.

        Raises:
            DataError: the numbers differ, or the packed numbers are damaged.
        """
        shares = len(self.shares.unpack())
        tokens = self.tokens
        if tokens is None:
            tokens = [] if self.levels is None else self.levels.unpack().tolist()
        if len(tokens) != shares or (self.side is not None and self.side**2 != shares):
            raise DataError(
                f"rollout of example {self.row}: {shares} shares of {len(tokens)} tokens"
            )


def pack_tokens(tokens: list[str]) -> dict[str, str]:
    """Return the fields `text` and `separator` of a rollout; spaces in long tokens become `␣`."""
    if all(len(token) == 1 for token in tokens):
        return {"text": "".join(tokens), "separator": ""}
    return {"text": " ".join(token.replace(" ", "␣") for token in tokens), "separator": " "}


def pack_levels(levels: ArrayLike) -> Quantized:
    """Return the field `levels` of a rollout."""
    return quantize(levels, 8, (0.0, GRAY_LEVELS - 1.0))
