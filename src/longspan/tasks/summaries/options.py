"""Options and metrics of the summarization tasks."""

from typing import Annotated

from pydantic import Field, PositiveInt

from longspan.bounds import LONGEST
from longspan.config import Length, setting, settings
from longspan.errors import OptionError
from longspan.metrics.summaries import ROUGE, RougeRule
from longspan.tasks.encoded_text import EncodingOptions

METRICS = {rule: (*names, "perplexity") for rule, names in ROUGE.items()}
SELECTION = ("perplexity",)
ROUGE_TOKENS = (
    "tokens of ROUGE: unicode: words of any script; rouge-score: runs of a-z and 0-9, as in "
    "published scores"
)

Beams = Annotated[int, Field(ge=1, le=64)]
LengthPenalty = Annotated[float, Field(ge=-10, le=10)]
TokenCount = Annotated[int, Field(ge=0, lt=LONGEST)]


@settings
class SummaryOptions(EncodingOptions):
    """Encoding of documents and summaries, and the generation of summaries."""

    length: Length = setting("tokens of a document that are kept", 1_024)
    target_length: Length = setting(
        "tokens of a summary that are kept, its end token included; as many are generated at most",
        256,
    )
    minimum: PositiveInt = setting(
        "occurrences in the training texts that make a character known", 2
    )
    beams: Beams = setting("beams of the generated summaries; 1: greedy", 4, in_data=False)
    length_penalty: LengthPenalty = setting(
        "exponent of the length by which the log-probability of a beam is divided",
        1.0,
        in_data=False,
    )
    no_repeat_ngram_size: TokenCount = setting(
        "length of the token sequences that a generated summary has only once; 0: any may be "
        "repeated",
        3,
        in_data=False,
    )
    min_tokens: TokenCount = setting(
        "tokens of a generated summary before it may end", 0, in_data=False
    )
    rouge: RougeRule = setting(ROUGE_TOKENS, "unicode")

    def __post_init__(self) -> None:
        """Check that a summary has room for a token and for the shortest generated one.

        Raises:
            OptionError: it has not.
        """
        EncodingOptions.__post_init__(self)
        if self.target_length <= max(1, self.min_tokens):
            raise OptionError(
                f"target_length={self.target_length} leaves no room for min_tokens="
                f"{self.min_tokens}, at least one token, and the end; raise target_length"
            )
