"""Encoded questions, against transformers' encoding of pairs and plain searches of the text."""

import copy
import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import PreTrainedTokenizerFast

from longspan.data.tokenizers import ByteTokenizer
from longspan.data.word_pieces import WordPieceTokenizer, load_word_pieces
from longspan.errors import OptionError
from longspan.metrics.answers import exact_match
from longspan.tasks.questions.encoding import (
    ENDS,
    PASSAGE,
    STARTS,
    Question,
    QuestionEncoder,
    cut_out,
    first_tokens,
    join_passages,
)
from longspan.tasks.questions.squad import read_squad
from longspan.tasks.source_report import Report
from longspan.tokenizers import make_fast_tokenizer
from question_files import published, xquad_file

BYTES = WordPieceTokenizer(
    "bytes", "", make_fast_tokenizer(ByteTokenizer(), special_tokens=("cls", "sep"))
)


def question(context, *references, spans=None, text="Who?"):
    return Question(
        id="1", text=text, context=context, references=references, spans=spans, document="d"
    )


def encode(given, length=64, question_length=8, tokenizer=BYTES):
    counts = Counter()
    encoded = QuestionEncoder(tokenizer, length, question_length).encode(given, counts)
    return encoded, Counter({name: n for name, n in counts.items() if n and name != "questions"})


def marked(encoded, bit):
    """Return the places, in the document, of tokens with a bit of the targets."""
    inside = encoded.targets[encoded.targets > 0] - 1
    return np.flatnonzero(inside & bit).tolist()


@pytest.fixture(scope="module")
def roberta():
    return load_word_pieces(published("vocab/roberta-base/vocab.json").parent)


@pytest.mark.parametrize("length", [128, 4096])
def test_xquad_is_encoded_as_by_transformers(roberta, length):
    # a copy, since a call leaves its truncation in the tokenizer
    reference = copy.deepcopy(roberta.fast)
    for given in read_squad(xquad_file(), Report(), "article")[:200:20]:
        encoded, _ = encode(given, length, 40, roberta)
        expected = reference(
            given.text,
            given.context,
            truncation="only_second",
            max_length=length,
            return_offsets_mapping=True,
        )
        assert encoded.ids.tolist() == expected.input_ids
        parts = expected.sequence_ids()
        assert (encoded.targets > 0).tolist() == [part == 1 for part in parts]
        offsets = [x for x, part in zip(expected.offset_mapping, parts, strict=True) if part == 1]
        assert encoded.offsets.tolist() == [list(x) for x in offsets]
        starts, ends = set(), set()
        for start, end in given.spans:
            inside = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
            if inside and offsets[-1][1] >= end:
                starts.add(inside[0])
                ends.add(inside[-1])
        assert set(marked(encoded, STARTS)) == starts
        assert set(marked(encoded, ENDS)) == ends
        assert encoded.outcome == ("marked" if starts else "behind_cut")


def test_marked_tokens_of_xquad_are_the_answers(roberta):
    """The tokens mapped back to characters are right answers, but for those within a token."""
    found = []
    for given in read_squad(xquad_file(), Report()):
        encoded, _ = encode(given, 1024, 64, roberta)
        (start,), (end,) = marked(encoded, STARTS), marked(encoded, ENDS)
        text = cut_out(encoded.context, encoded.offsets, start, end)
        assert given.references[0] in text
        found.append(exact_match(text, given.references))
    assert len(found) == 1190
    assert np.mean(found) > 0.98


def test_layout_is_question_document_and_special_tokens():
    encoded, _ = encode(question("It is Ada.", "Ada", spans=((6, 9),)))
    cls, sep = BYTES.token_id("cls"), BYTES.token_id("sep")
    as_bytes = [*(x + 1 for x in b"Who?"), sep, *(x + 1 for x in b"It is Ada."), sep]
    assert encoded.ids.tolist() == [cls, *as_bytes]
    assert encoded.targets.tolist() == [0] * 6 + [5] + [1] * 5 + [2, 1, 3] + [1] + [0]


def test_all_mentions_are_marked_without_annotated_spans():
    encoded, _ = encode(question("Ada met Ada, not Adam.", "ada"))
    assert (marked(encoded, STARTS), marked(encoded, ENDS)) == ([0, 8], [2, 10])


def test_annotated_spans_are_the_only_marked_ones():
    encoded, _ = encode(question("Ada met Ada.", "Ada", spans=((8, 11),)))
    assert marked(encoded, STARTS) == [8]


def test_an_answer_of_one_token_starts_and_ends_there():
    encoded, _ = encode(question("a b", "b", spans=((2, 3),)))
    assert encoded.targets[-2] == 1 + STARTS + ENDS


def test_characters_of_several_bytes_are_marked_whole():
    encoded, _ = encode(question("caf\u00e9 \u732b", "\u00e9", spans=((3, 4), (5, 6))))
    assert (marked(encoded, STARTS), marked(encoded, ENDS)) == ([3, 6], [4, 8])
    assert cut_out(encoded.context, encoded.offsets, 4, 6) == "\u00e9 \u732b"


@pytest.mark.parametrize("spans", [((5, 10),), None], ids=["spans", "mentions"])
@pytest.mark.parametrize(("length", "outcome"), [(17, "marked"), (16, "behind_cut")])
def test_answers_behind_the_cut_are_counted(spans, length, outcome):
    # 4 + 3 tokens are the question's; an answer that is cut in two is not marked.
    encoded, counts = encode(question("It's right.", "right", spans=spans), length, 4)
    assert len(encoded.ids) == length
    assert encoded.outcome == outcome
    assert counts == Counter({outcome: 1, "documents_cut": 1})
    assert encoded.context == "It's right"[: length - 7]


def test_a_word_that_the_cut_shortens_is_no_mention():
    encoded, _ = encode(question("I met Adam.", "Ada"), 16, 4)
    assert encoded.context == "I met Ada"
    assert encoded.outcome == "not_in_context"


@pytest.mark.parametrize("spans", [(), None], ids=["misplaced", "not mentioned"])
@pytest.mark.parametrize("length", [64, 12])
def test_answers_not_in_the_context_are_counted(spans, length):
    encoded, counts = encode(question("It's right.", "wrong", spans=spans), length, 4)
    assert encoded.outcome == "not_in_context"
    assert counts["not_in_context"] == 1
    assert not marked(encoded, STARTS | ENDS)


def test_first_tokens_of_passages_are_marked():
    context, firsts = join_passages(["It is.", " \t", "", "  Ada was."], "\n")
    given = dataclasses.replace(question(context, "Ada", spans=((13, 16),)), passages=firsts)
    encoded, _ = encode(given)
    # blank passages have no token; the white space before a passage is not its first token
    assert context[13:16] == "Ada"
    assert marked(encoded, PASSAGE) == [0, 13]
    assert marked(encoded, STARTS) == [13]
    cut, _ = encode(given, 7 + 13, 4)
    assert marked(cut, PASSAGE) == [0]


def test_passages_of_dropped_characters_have_no_first_token():
    """BERT's tokenizer drops control characters; the token behind them is of another passage."""
    bert = load_word_pieces(published("vocab/bert-base-uncased/vocab.txt").parent)
    context, firsts = join_passages(["ada", "\a\a", "was here"], "\n")
    given = dataclasses.replace(question(context, "ada"), passages=firsts)
    encoded, _ = encode(given, tokenizer=bert)
    starts = encoded.offsets[marked(encoded, PASSAGE), 0].tolist()
    assert [context[x : x + 3] for x in starts] == ["ada", "was"]
    alone = first_tokens([(firsts[1], firsts[2])], context, encoded.offsets)
    assert alone.tolist() == [-1]


@pytest.mark.parametrize("length", [200, 4096])
def test_first_tokens_of_paragraphs_of_xquad(roberta, length):
    for given in read_squad(xquad_file(), Report(), "article")[:200:20]:
        encoded, _ = encode(given, length, 40, roberta)
        starts = encoded.offsets[marked(encoded, PASSAGE), 0].tolist()
        kept = [x for x in given.passages if x < len(encoded.context)]
        assert len(kept) == 5 or length == 200
        # no paragraph of XQuAD begins with a space
        assert starts == kept


def test_questions_without_references_are_unknown():
    assert encode(question("It's right."))[0].outcome == "unknown"


def test_long_questions_are_cut_and_counted():
    encoded, counts = encode(question("Ada", "Ada", text="Who else?"), 64, 3)
    assert counts == Counter({"questions_cut": 1, "marked": 1})
    assert np.flatnonzero(encoded.targets)[0] == 5


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("He met Rene\u0301 there.", "Rene\u0301"),
        ("He met Rene\u0301", "Rene\u0301"),  # the last token
        (
            "\u0939\u093f\u0928\u094d\u0926\u0941 \u0939\u0948",
            "\u0939\u093f\u0928\u094d\u0926\u0941",
        ),
        ("I \u2764\ufe0f it", "\u2764\ufe0f"),
    ],
)
def test_dropped_marks_belong_to_the_token_before(context, answer):
    """A tokenizer that strips accents gives the answer back with them."""
    pipeline = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    pipeline.normalizer, pipeline.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    fast = PreTrainedTokenizerFast(tokenizer_object=pipeline, unk_token="[UNK]")
    start = context.index(answer)
    given = question(context, answer, spans=((start, start + len(answer)),))
    encoded, _ = encode(given, tokenizer=WordPieceTokenizer("words", "", fast))
    assert encoded.outcome == "marked"
    (first,), (last,) = marked(encoded, STARTS), marked(encoded, ENDS)
    assert cut_out(encoded.context, encoded.offsets, first, last) == answer


def test_texts_are_never_special_tokens():
    """A document about tokenizers is the bytes of their names."""
    text = "[CLS], [SEP] and [PAD] are names"
    encoded, _ = encode(question(text, "[PAD]", text="[MASK]"))
    inside = encoded.targets > 0
    assert bytes((encoded.ids[inside] - 1).tolist()) == text.encode()
    assert encoded.ids[~inside].max() == BYTES.vocab_size - 1  # those around the texts


def test_empty_documents_are_counted(roberta):
    encoded, counts = encode(question("", "Ada"), tokenizer=roberta)
    assert encoded is None
    assert counts == Counter({"documents_empty": 1})


@pytest.mark.parametrize("room", [1, 5, 40])
def test_text_far_behind_the_cut_has_no_effect(roberta, room):
    """The tokens are those of the whole text, though only a part of it is tokenized."""
    rare = "pneumonoultramicroscopicsilicovolcanoconiosis" * 30
    for text in (rare, "a " * 999, f"{' ' * 400}word {rare} end", "\n\n".join(["line"] * 99)):
        encoded, _ = encode(question(text, "x"), room + 8, 4, roberta)
        ids, offsets = roberta.encode_spans(text)
        kept = encoded.targets > 0
        count = int(kept.sum())
        assert count == min(len(ids), room + 8 - (len(kept) - count))
        assert encoded.ids[kept].tolist() == ids[:count].tolist()
        assert encoded.offsets.tolist() == offsets[:count].tolist()


def test_examples_do_not_depend_on_the_one_before():
    documents = ("It is Ada. " * 9, "It is Ada.", "", "Ada and " + "it is Ada. " * 9)
    asked = ("Who?", "Who is it?", "W")
    encoder = QuestionEncoder(BYTES, 30, 12)
    for context, text in itertools.product(documents, 2 * asked):
        given = question(context, "Ada", text=text)
        alone, again = encode(given, 30, 12)[0], encoder.encode(given, Counter())
        if alone is None:
            assert again is None
            continue
        assert again.ids.tolist() == alone.ids.tolist()
        assert again.targets.tolist() == alone.targets.tolist()
        assert (again.context, again.outcome) == (alone.context, alone.outcome)


def test_a_length_without_room_is_refused():
    with pytest.raises(OptionError, match=r"length=11 leaves no room .* use 12 or more"):
        QuestionEncoder(BYTES, 11, 8)
    QuestionEncoder(BYTES, 12, 8)
