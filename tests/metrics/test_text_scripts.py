"""Contract of the metrics of texts in every script, and rules that papers use on English."""

import itertools
import unicodedata
from pathlib import Path

import pytest

from longspan.metrics import METRICS
from longspan.metrics.answers import (
    exact_match,
    is_split,
    normalize_answer,
    normalize_squad_answer,
    normalize_triviaqa_answer,
    token_f1,
)
from longspan.metrics.summaries import ROUGE, has_token, loses_letters, rouge
from paper_files import real_papers
from question_files import xquad_file
from scripts_of_texts import SCRIPTS

PAGES = Path(__file__).parents[2] / "docs"

# Metrics that compare texts in any script.
ANY_SCRIPT = {
    "token_f1_mlqa": lambda text, other: token_f1(text, [other]),
    "exact_match_mlqa": lambda text, other: exact_match(text, [other]),
    **{name: lambda text, other, name=name: rouge(text, other)[name] for name in ROUGE["unicode"]},
}
# Rules of published evaluations, for texts in English.
PUBLISHED = {"token_f1", "exact_match", "joint_f1", "joint_exact_match", *ROUGE["rouge-score"]}
# Supporting facts are no texts.
NO_TEXTS = {"support_f1", "support_exact_match"}

every_metric = pytest.mark.parametrize("metric", ANY_SCRIPT)
every_script = pytest.mark.parametrize("script", SCRIPTS)


def test_every_metric_of_texts_is_here():
    found = {name for name, x in METRICS.items() if x.columns[-1] in ("questions", "summaries")}
    assert found == {*ANY_SCRIPT, *PUBLISHED, *NO_TEXTS}


@every_metric
@every_script
def test_texts_of_every_script_are_compared(metric, script):
    score, texts = ANY_SCRIPT[metric], SCRIPTS[script]
    assert score(texts.text, texts.text) == 1
    assert score(texts.text, texts.other) == 0
    changed = score(texts.changed, texts.text)
    assert changed == 0 if metric.startswith("exact_match") else 0 < changed < 1


@every_metric
@every_script
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_composition_has_no_effect(metric, script, form):
    score, texts = ANY_SCRIPT[metric], SCRIPTS[script]
    for other in (texts.text, texts.changed):
        expected = score(other, texts.text)
        assert score(unicodedata.normalize(form, other), texts.text) == expected
        assert score(other, unicodedata.normalize(form, texts.text)) == expected


@pytest.mark.parametrize(
    "language", ["en", "ar", "de", "es", "hi", "ru", "th", "vi", "zh", "other"]
)
@every_script
def test_languages_differ_in_articles_alone(language, script):
    texts = SCRIPTS[script]

    def normalize(text):
        return normalize_answer(text, language)

    assert token_f1(texts.text, [texts.text], normalize) == 1
    assert token_f1(texts.text, [texts.other], normalize) == 0
    assert is_split([texts.text], normalize)


def test_width_and_letter_case_have_no_effect_on_rouge():
    for text, other in (
        ("ＡＢＣ １２", "abc 12"),
        ("ｶﾞｷﾞ", "ガギ"),
        ("ﬁne STRASSE", "fine straße"),
        ("ΣΟΦΟΣ λόγος", "σοφος ΛΌΓΟΣ"),
    ):
        assert rouge(text, other)["rouge1_unicode"] == 1
    assert rouge("está", "est")["rouge1_unicode"] == 0
    assert rouge("está", "est", "rouge-score")["rouge1"] == 1


@pytest.mark.parametrize(
    ("answer", "language", "normalized"),
    [
        ("The end – an “end”", "en", "end end"),
        ("El niño y la niña", "es", "niño y niña"),
        ("Der Turm des Königs", "de", "turm königs"),
        ("Những cái cây của Việt", "vi", "cây việt"),
        ("الكتاب الجديد", "ar", "كتاب جديد"),
        ("der Turm", "other", "der turm"),
        ("der Turm", "ru", "der turm"),
        ("一座 很高的塔。ABC，3米", "zh", "一 座 很 高 的 塔 abc3 米"),
        ("《东京》塔", "en", "东 京 塔"),
        ("$5 (five)", "hi", "5 five"),
    ],
)
def test_normalization_of_mlqa(answer, language, normalized):
    assert normalize_answer(answer, language) == normalized


def english_texts():
    """Return the lines of this project's pages."""
    pages = sorted(PAGES.glob("*.md"))
    return [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]


def check_same_on_ascii(texts):
    """Check that both rules score each pair of neighbors alike."""
    texts = [text for text in texts if text.isascii()]
    for text, other in itertools.pairwise(texts):
        found = [list(rouge(text, other, rule).values()) for rule in ROUGE]
        assert found[0] == found[1]
        assert normalize_answer(text) == normalize_squad_answer(text)
        for score in (exact_match, token_f1):
            assert score(text, [other]) == score(text, [other], normalize_squad_answer)
    return len(texts)


def test_rules_are_equal_on_english_pages():
    assert check_same_on_ascii([text for text in english_texts() if text][::8]) > 100


def test_rules_are_equal_on_real_abstracts_and_answers():
    from longspan.tasks.questions.squad import read_squad
    from longspan.tasks.source_report import Report
    from longspan.tasks.summaries.papers import find_papers, read_papers

    found = find_papers(real_papers(), "pubmed_summarization")
    papers = list(read_papers(found.firsts["validation"], Report()))
    assert check_same_on_ascii(["\n".join(one.summary) for one in papers]) > 20
    answers = [x for one in read_squad(xquad_file(), Report()) for x in one.references]
    assert check_same_on_ascii(answers) > 1_000


def test_published_rules_know_english_alone():
    """Expect what the notes of an import warn of."""
    chinese, russian = SCRIPTS["Chinese"], SCRIPTS["Russian"]
    assert rouge(russian.text, russian.text, "rouge-score") == dict.fromkeys(
        ROUGE["rouge-score"], 0
    )
    assert not has_token(russian.text, "rouge-score")
    assert has_token(russian.text)
    assert not has_token("...")
    assert loses_letters("Cristóbal", "rouge-score")
    assert not loses_letters("Cristóbal", "unicode")
    assert not loses_letters("Crist – bal", "rouge-score")
    for normalize in (normalize_squad_answer, normalize_triviaqa_answer):
        assert token_f1(chinese.changed, [chinese.text], normalize) == 0
        assert not is_split([chinese.text], normalize)
        assert is_split([russian.text], normalize)
