"""Questions with candidates as tokens: markers, windows, cuts."""

import numpy as np
import pytest

from longspan.errors import OptionError
from longspan.tasks.pieces import load_pieces
from longspan.tasks.questions.candidates import MARKERS, CandidateEncoder, min_length, prefix_length

TEXTS = ("who", ["ann", "bo"], ["ann is here", "bo is not"])


@pytest.fixture
def encoder():
    return CandidateEncoder(load_pieces("bytes"))


def text_of(encoder, ids):
    """Return tokens as text; bytes are characters, and spaces are Ġ."""
    return "".join(encoder.symbols[token] for token in ids.tolist()).replace("Ġ", " ")


def windows(encoder, length, most=9, texts=TEXTS):
    return encoder.make_windows(encoder.load(encoder.store(*texts)), length, most)


def test_texts_survive_storage(encoder):
    parts = encoder.load(encoder.store(*TEXTS))
    decoded = [text_of(encoder, x) for x in (parts.question, *parts.candidates, *parts.documents)]
    assert decoded == [" who", " ann", " bo", " ann is here", " bo is not"]


def test_one_window_is_the_text_of_the_paper(encoder):
    found = windows(encoder, 99)
    prefix = "[CLS][question] who[/question][ent] ann[/ent][ent] bo[/ent]"
    (only,) = found.texts
    assert text_of(encoder, only) == f"{prefix}[SEP] ann is here[SEP][SEP] bo is not[SEP]"
    assert found.num_prefix == len(prefix) - sum(len(x) - 1 for x in MARKERS[:2]) - 4 - 2 * 9
    assert [encoder.symbols[only[place]] for place in found.positions] == ["[ent]", "[ent]"]
    assert text_of(encoder, only[found.positions[1] :]).startswith("[ent] bo[/ent]")
    assert not found.is_cut


def test_boundaries_are_where_documents_begin(encoder):
    """Each is the first separator behind the candidates, or behind the end of a document."""
    texts = ("who", ["ann", "bo"], ["ann is here", "bo is not", "nobody"])
    whole = windows(encoder, 200, texts=texts)
    for length in range(whole.num_prefix + 12, len(whole.texts[0]) + 1):
        found = windows(encoder, length, texts=texts)
        if found.num_prefix < whole.num_prefix:  # cut
            continue
        shown = []
        for ids, places in zip(found.texts, found.boundaries, strict=True):
            symbols = [encoder.symbols[token] for token in ids.tolist()]
            assert {symbols[place] for place in places} <= {"[SEP]"}
            shown += ["".join(symbols[x + 1 : x + 3]).replace("Ġ", " ") for x in places]
        assert len(shown) == 3
        assert all(a.startswith(b) for a, b in zip([" a", " b", " n"], shown, strict=True))


def test_windows_repeat_the_prefix_until_the_documents_are_exhausted(encoder):
    whole = windows(encoder, 99)
    size, prefix = len(whole.texts[0]), whole.num_prefix
    documents = whole.texts[0][prefix:]
    for length in range(min_length(2) + 4, size + 1):
        found = windows(encoder, length)
        if found.num_prefix < prefix:  # cut
            continue
        assert all(len(text) <= length for text in found.texts)
        assert all((text[:prefix] == whole.texts[0][:prefix]).all() for text in found.texts)
        read = np.concatenate([text[prefix:] for text in found.texts])
        assert found.is_cut == (len(read) < len(documents))
        assert (read == documents[: len(read)]).all()
        assert found.is_cut == (len(documents) > 9 * (length - prefix))
        assert (found.positions == whole.positions).all()


def test_few_windows_cut_the_documents(encoder):
    every, first = windows(encoder, 30), windows(encoder, 30, most=1)
    assert len(every.texts) > 2
    assert len(first.texts) == 1
    assert first.is_cut
    assert (first.texts[0] == every.texts[0]).all()


def test_the_longest_candidates_are_cut_to_leave_room_for_documents(encoder):
    names = ["a" * 60, "b", "c" * 60]
    found = windows(encoder, 80, texts=("q", names, ["d" * 50]))
    assert found.is_cut
    assert found.num_prefix <= prefix_length(80) == 60
    first = text_of(encoder, found.texts[0])
    assert "[ent] b[/ent]" in first
    assert first.count("a") == first.count("c") > 20
    assert first.count("d") == 80 - found.num_prefix - 2


def test_smallest_length_has_room_for_all_candidates(encoder):
    for count in (2, 5, 79):
        length = min_length(count)
        texts = ("question", ["candidate"] * count, ["document"])
        found = windows(encoder, length, texts=texts)
        assert len(found.positions) == count
        assert all(len(text) <= length for text in found.texts)
        with pytest.raises(OptionError, match=f"leaves no room for {count} candidates"):
            windows(encoder, 2 * count, texts=texts)


def test_ids_fit_the_stored_type(encoder):
    assert encoder.dtype is np.uint16
    assert encoder.vocab_size == 263
