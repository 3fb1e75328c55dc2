"""WikiText-2: articles of Wikipedia; predict the next word.

Merity et al., "Pointer Sentinel Mixture Models", 2016 (https://arxiv.org/abs/1609.07843).
"""

from typing import ClassVar

from longspan.tasks.language.wikitext import WikiTextTask, make_info
from longspan.tasks.language.wikitext_files import WikiText
from longspan.tasks.registry import register

WIKITEXT = WikiText(
    folder="wikitext-2",
    tokens={"train": 2_088_628, "validation": 217_646, "test": 245_569},
    words=33_278,
)


@register
class WikiText2(WikiTextTask):
    """Next words of WikiText-2."""

    published_set: ClassVar[WikiText] = WIKITEXT
    info = make_info(
        WIKITEXT,
        name="wikitext_2",
        title="WikiText-2 (words)",
        checksum="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    )
