"""Page of evidence: texts with their words highlighted, in one HTML file without scripts."""

import html
from collections.abc import Sequence

import numpy as np

from longspan.arena.documents.evidence import COMPLETE, Evidence

_FOR, _AGAINST = (27, 120, 55), (178, 24, 43)  # colors: green, red
_NAMED = 5  # words that are listed above a text
_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Evidence: {title}</title>
<style>
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 55em; margin: 2em auto; padding: 0 1em;
  color: #1a1a1a; background: #fff }}
article {{ border-top: 1px solid #ccc; padding: 1em 0 }}
h2 {{ font-size: 1.1em; margin: 0 }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere }}
.cut {{ color: #999 }}
small {{ color: #555 }}
</style>
<h1>Evidence: {title}</h1>
<p>The first {count} of {total} documents. Green words speak for the predicted class, red ones
against it; the full color is that of the document's score, or of its strongest word if that is
larger, so colors of two documents do not compare. Gray words were cut off and not read. Values are
integrated gradients, in logits: those of a document add up to the difference between its score and
that of a text of average words.</p>
{articles}
</html>
"""


def make_page(found: Sequence[Evidence], title: str, total: int) -> str:
    """Return the page of some documents.

    Args:
        found: evidence for each document.
        title: name of the run.
        total: number of predicted documents.
    """
    articles = "\n".join(_article(number, one) for number, one in enumerate(found, 1))
    return _PAGE.format(
        title=html.escape(title), count=f"{len(found):,}", total=f"{total:,}", articles=articles
    )


def _article(number: int, one: Evidence) -> str:
    """Return one document: its class, its strongest words and its text."""
    order = np.argsort(-np.abs(np.nan_to_num(one.values)), kind="stable")[:_NAMED]
    words = (
        f"{html.escape(one.text[slice(*one.spans[x])])} {one.values[x]:+.2f}"
        for x in order
        if np.nan_to_num(one.values[x])  # read, and not zero
    )
    remark = ""
    if one.gap > COMPLETE and abs(one.score - one.average) > COMPLETE * abs(one.score):
        remark = f" The values miss {100 * one.gap:.0f} % of the difference."
    if one.average > one.score / 2 > 0:
        remark += (
            f" A text of average words is of this class too, by {one.average:.2f} of "
            f"{one.score:.2f}: what decides is which words are absent."
        )
    return (
        f"<article>\n<h2>{number}. {html.escape(one.label)}, {100 * one.probability:.1f} %</h2>\n"
        f"<small>{', '.join(words) or 'no word has a value'}.{remark}</small>\n"
        f'<p class="text">{_highlight(one)}</p>\n</article>'
    )


def _highlight(one: Evidence) -> str:
    """Return the text with its words in the color of their value, scaled by score and largest."""
    largest = np.nanmax(np.abs(one.values), initial=0.0, where=~np.isnan(one.values))
    strongest = max(largest, abs(one.score)) or 1.0
    parts, end = [], 0
    for (start, stop), value in zip(one.spans.tolist(), one.values.tolist(), strict=True):
        parts += [html.escape(one.text[end:start]), _word(one.text[start:stop], value, strongest)]
        end = stop
    return "".join([*parts, html.escape(one.text[end:])])


def _word(text: str, value: float, strongest: float) -> str:
    """Return a word in its color; one without a visible share of the strongest as it is."""
    if np.isnan(value):
        return f'<span class="cut">{html.escape(text)}</span>'
    share = round(0.75 * abs(value) / strongest, 2)
    if not share:
        return html.escape(text)
    color = ",".join(map(str, _FOR if value > 0 else _AGAINST))
    style = f"background:rgba({color},{share})"
    return f'<span style="{style}" title="{value:+.3f}">{html.escape(text)}</span>'
