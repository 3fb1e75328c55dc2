"""Files of texts as a practitioner has them, a tokenizer, and clean-up of registered imports."""

import contextlib
import csv
import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from longspan.arena.protocols.files import register_imports
from longspan.data.imports.texts import import_texts
from longspan.errors import DataError

GOOD, BAD = ["good", "great", "lovely", "fine", "superb"], ["bad", "awful", "poor", "dull", "weak"]
PLAIN = ["the", "a", "film", "plot", "actor", "scene", "and", "with", "of", "in", "it", "was"]


def write_csv(path, rows, header=("body", "stars"), encoding="utf-8", delimiter=","):
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([header, *rows])
    return path


def reviews(count, seed=0):
    """Return rows of text, class and number; a few words decide both targets."""
    draws = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draws.random() < 0.5
        words = [draws.choice(PLAIN) for _ in range(20)]
        for place in draws.sample(range(20), 3):
            words[place] = draws.choice(GOOD if label else BAD)
        number = 10 + sum(x in GOOD for x in words) - sum(x in BAD for x in words)
        rows.append((" ".join(words), "pos" if label else "neg", number))
    return rows


def save_tokenizer(folder, texts, vocab_size=80):
    """Train and save a tokenizer whose texts start with [CLS] and end with [SEP]."""
    pipeline = Tokenizer(models.BPE(unk_token="[UNK]"))
    pipeline.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]  # padding is not id 0, as in RoBERTa
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=names)
    pipeline.train_from_iterator(texts, trainer)
    pipeline.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=pipeline, cls_token="[CLS]", pad_token="[PAD]", sep_token="[SEP]"
    )
    fast.save_pretrained(folder)
    return folder


def check_refused(tmp_path, path, *parts, request, error=DataError):
    """Check the message of an import that is refused, and that nothing was written."""
    with pytest.raises(error) as caught:
        import_texts(tmp_path / "cache", "mine", path, request)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
    assert not (tmp_path / "cache").exists()


@contextlib.contextmanager
def forgotten_imports(empty):
    """Forget the registered imports on exit; `empty` is a folder without any."""
    try:
        yield
    finally:
        register_imports(empty)
