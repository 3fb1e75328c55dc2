"""Documents with coreference as tokens: windows of sentences, places of mentions."""

import numpy as np
import pytest

from conll_files import column_document
from longspan.errors import OptionError
from longspan.tasks.documents.conll import read_documents
from longspan.tasks.documents.coreference import (
    NO_SENTENCE,
    DocumentEncoder,
    count_parts,
    token_spans,
)
from longspan.tasks.pieces import load_pieces


@pytest.fixture
def encoder():
    return DocumentEncoder(load_pieces("bytes"))


@pytest.fixture
def stored(encoder, tmp_path):
    (tmp_path / "one").write_text(column_document())
    (document,) = read_documents(tmp_path / "one")
    return encoder.store(document)


def text_of(encoder, ids):
    symbols = encoder.tokenizer.symbols
    return "".join(symbols[token] for token in ids.tolist()).replace("Ġ", " ")


def test_details_say_what_the_tokens_are(encoder, stored):
    ids, details = stored
    assert text_of(encoder, ids) == " Ada met the son of her teacher . He thanked her ."
    assert details["tokens"][:3] == [4, 4, 4]
    assert details["sentences"] == [8, 4]
    assert details["speakers"] == [0] * 8 + [1] * 4
    assert count_parts(details) == {
        "documents": 1, "words": 12, "sentences": 2, "clusters": 2, "mentions": 5
    }  # fmt: skip


@pytest.mark.parametrize(
    ("language", "text"), [("english", " so#sw /- yes . ?"), ("arabic", " so /- yes . ?")]
)
def test_words_are_read_as_by_published_models(tmp_path, language, text):
    """Answers keep the words of the file."""
    words = ("so#sw", "/-", "yes", "/.", "/?")
    (tmp_path / "one").write_text(column_document(rows=[*((word, "-") for word in words), None]))
    (document,) = read_documents(tmp_path / "one")
    encoder = DocumentEncoder(load_pieces("bytes"), language)
    ids, details = encoder.store(document)
    assert text_of(encoder, ids) == text
    assert details["words"] == [*words]


def test_token_spans_are_the_words_of_the_mentions(encoder, stored):
    ids, details = stored
    found = [(text_of(encoder, ids[a : b + 1]), n) for a, b, n in token_spans(details, len(ids))]
    expected = [" Ada", " her", " her", " the son of her teacher", " He"]
    assert [text for text, _ in found] == expected
    assert [number for _, number in found] == [0, 0, 0, 1, 1]
    # A mention whose last token is cut is left out.
    assert len(token_spans(details, len(ids) - 2)) == 5
    assert len(token_spans(details, len(ids) - 3)) == 4


def test_windows_hold_whole_sentences(encoder, stored):
    ids, details = stored
    (whole,) = encoder.make_windows(ids, details, 64, 9)
    assert text_of(encoder, whole.ids).startswith("[CLS] Ada met")
    assert whole.sentences[0] == whole.sentences[-1] == NO_SENTENCE
    first, second = encoder.make_windows(ids, details, 40, 9)
    assert text_of(encoder, first.ids) == "[CLS] Ada met the son of her teacher .[SEP]"
    assert text_of(encoder, second.ids) == "[CLS] He thanked her .[SEP]"
    assert set(second.sentences[1:-1]) == {1}
    assert second.words[1:-1].tolist() == [8] * 3 + [9] * 8 + [10] * 4 + [11] * 2
    for length, count in ((len(ids) + 2, 1), (len(ids) + 1, 2)):
        assert len(encoder.make_windows(ids, details, length, 9)) == count
    (only,) = encoder.make_windows(ids, details, 40, 1)
    assert (only.ids == first.ids).all()


@pytest.mark.parametrize("length", [3, 10, 17, 33])
def test_long_sentences_are_cut_and_nothing_is_lost(encoder, stored, length):
    ids, details = stored
    windows = encoder.make_windows(ids, details, length, 99)
    assert all(len(window.ids) <= length for window in windows)
    parts = [window.ids[window.sentences >= 0] for window in windows]
    assert (np.concatenate(parts) == ids).all()
    numbers = np.concatenate([window.sentences[window.sentences >= 0] for window in windows])
    assert (np.diff(numbers) >= 0).all()
    assert np.bincount(numbers).max() <= length - 2


def test_lengths_without_room_are_refused(encoder, stored):
    with pytest.raises(OptionError, match="length=2 leaves no room for a token beside 2 special"):
        encoder.make_windows(*stored, 2, 1)
