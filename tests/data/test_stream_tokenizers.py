"""Fast tokenizers of language models: ids and texts are those of the vocabulary."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from longspan.data.stream_vocabularies import ByteVocabulary, CharacterVocabulary, WordVocabulary
from longspan.tokenizers.streams import make_stream_tokenizer

WORDS = ("<eos>", "the", "a", "plot", "=", "@-@")
CASES = {
    "bytes": (ByteVocabulary(), "Ein \U0001f642 Straßenfest\n\ttwo  spaces\r\n"),
    "characters": (CharacterVocabulary("ab c\n[]PAD<eos>"), "cab <eos>[PAD]\n\nba  c"),
    "words": (WordVocabulary(WORDS), "the plot\na = @-@ the\n\nplot"),
    "words and unknown": (WordVocabulary((*WORDS, "<unk>")), "the <unk>\nplot"),
}


@pytest.mark.parametrize("case", CASES)
def test_ids_and_texts_are_those_of_the_vocabulary(case, tmp_path):
    vocabulary, text = CASES[case]
    make_stream_tokenizer(vocabulary).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = vocabulary.encode(text)
    assert tokenizer(text)["input_ids"] == ids.tolist()
    assert tokenizer.decode(ids.tolist()) == vocabulary.decode(ids)
    assert tokenizer.pad_token_id == 0


@pytest.mark.parametrize(
    ("case", "text", "unknown"),
    [("characters", "cXb", 1), ("words", "the Plot a", 1), ("words and unknown", "the Plot", 1)],
)
def test_what_the_vocabulary_lacks_is_not_lost(case, text, unknown):
    vocabulary, _ = CASES[case]
    tokenizer = make_stream_tokenizer(vocabulary)
    ids = tokenizer(text)["input_ids"]
    symbol = np.array(ids)[unknown]
    assert symbol == tokenizer.unk_token_id
    assert (symbol < vocabulary.size) == ("<unk>" in tokenizer.get_vocab() and case != "words")
