"""WikiText-103: articles of Wikipedia; predict the next word.

Merity et al., "Pointer Sentinel Mixture Models", 2016 (https://arxiv.org/abs/1609.07843).
"""

from typing import ClassVar

from longspan.tasks.language.wikitext import WikiTextTask, make_info
from longspan.tasks.language.wikitext_files import WikiText
from longspan.tasks.registry import register

WIKITEXT = WikiText(
    folder="wikitext-103",
    tokens={"train": 103_227_021, "validation": 217_646, "test": 245_569},
    words=267_735,
)


@register
class WikiText103(WikiTextTask):
    """Next words of WikiText-103."""

    published_set: ClassVar[WikiText] = WIKITEXT
    info = make_info(
        WIKITEXT,
        name="wikitext_103",
        title="WikiText-103 (words)",
        checksum="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    )
