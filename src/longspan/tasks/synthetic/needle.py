"""Needle in a haystack: `. : . , s4 : . . , | ?`; name the one symbol among random filler.

Copying with a single symbol. Kamradt, "Needle In A Haystack", 2023
(https://github.com/gkamradt/LLMTest_NeedleInAHaystack), asks a language model for one sentence in
a long text in the same way. A mechanism solves it if information from any position reaches the
last one.
"""

import dataclasses
from typing import ClassVar

from pydantic import PositiveInt

from longspan.config import Length, NumExamples, setting, settings
from longspan.tasks.registry import register
from longspan.tasks.synthetic.copying import CopyingTask, SymbolChecks
from longspan.tasks.synthetic.generated import GeneratedOptions


@settings
class NeedleOptions(SymbolChecks, GeneratedOptions):
    """Sizes of the splits, and difficulty."""

    validation: NumExamples = setting("validation examples", 2_000)
    test: NumExamples = setting("test examples", 2_000)
    length: Length = setting("tokens of an example, the marker included", 1_024)
    symbols: PositiveInt = setting("different symbols, of which an example has one", 8)
    noise: PositiveInt = setting("different filler tokens; few make examples recur", 8)
    depth: float | None = setting(
        "position of the symbol, 0 (start) to 1 (before the marker); none: random", None
    )

    count: ClassVar[int] = 1  # type: ignore[misc]
    together: ClassVar[bool] = False  # type: ignore[misc]


@register
class NeedleTask(CopyingTask):
    """One symbol at a random position among random filler; it is asked for at the end."""

    Options = NeedleOptions  # type: ignore[assignment]
    options: NeedleOptions  # type: ignore[assignment]
    info = dataclasses.replace(
        CopyingTask.info,
        name="needle",
        title="Needle",
        summary="Name the one symbol that a long text of filler contains.",
        source="generated, after Kamradt 2023, needle in a haystack",
        published=(),
        notes=(
            "A diagnostic task, not part of Long Range Arena. It asks whether information from "
            "any position reaches the last one; nothing has to be looked up by content. Kamradt "
            "asks a pretrained language model about a text; here a small model learns symbols."
        ),
    )
