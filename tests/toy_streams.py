"""Small stream tasks: documents that repeat a phrase of their own, which only a memory reaches."""

import dataclasses

import numpy as np
import torch

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged
from longspan.data.stream_vocabularies import ByteVocabulary
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.tasks import TaskInfo
from longspan.tasks.language.streams import StreamOptions, StreamTask

LETTERS, PHRASE, ROW = 8, 40, 32
# Tokens of the documents of each split; rows of the store are shorter, segments too.
SIZES = {
    "train": (161, 40, 97, 300, 33, 120, 210, 64, 95, 150),
    "validation": (130, 65, 90),
    "test": (120, 41, 200),
}


def documents(split):
    """Return the documents of a split as token ids."""
    made = []
    for number, size in enumerate(SIZES[split]):
        generator = np.random.default_rng([len(split), number])
        phrase = ord("a") + 1 + generator.integers(LETTERS, size=PHRASE)
        made.append(np.resize(phrase, size).astype(np.uint16))
    return made


def make_decoder(attention, options, **fields):
    """Return a small left-to-right model of the stream; the same weights for every call."""
    torch.manual_seed(5)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "attention_dropout": 0.0,
        "max_position_embeddings": 16,
        "position": "none",
    }
    config = LongspanConfig(
        vocab_size=ToyStream.info.vocab_size,
        attention=attention,
        attention_options=options,
        is_decoder=True,
        **{**sizes, **fields},
    )
    return LongspanForCausalLM(config)


def stored(texts):
    """Return documents in rows of up to `ROW` tokens, with their numbers as labels."""
    rows = [(i, x[at : at + ROW]) for i, x in enumerate(texts) for at in range(0, len(x), ROW)]
    labels = np.array([number for number, _ in rows])
    return Examples(tokens=Ragged.pack([x for _, x in rows], np.uint16), labels=labels)


@settings
class ToyStreamOptions(StreamOptions):
    """Short segments."""

    length: Length = setting("tokens of a segment", 16)


class ToyStream(StreamTask):
    """Repeated phrases."""

    Options = ToyStreamOptions
    options: ToyStreamOptions
    vocabulary = ByteVocabulary()
    info = TaskInfo(
        name="toy_stream",
        title="Toy stream",
        summary="Repeat a phrase.",
        source="generated",
        license="Apache-2.0",
        sizes={split: len(sizes) for split, sizes in SIZES.items()},
        vocab_size=ByteVocabulary.size,
        num_classes=ByteVocabulary.size,
        metrics=("bits_per_byte", "accuracy"),
        chance=8.0,
        head="causal_lm",
    )

    def build_splits(self, data, scratch, progress):
        """Make the splits."""
        splits = {split: stored(documents(split)) for split in SIZES}
        return BuildOutput(splits=splits, source="generated", license="Apache-2.0", facts={})


class ToyWords(ToyStream):
    """The same documents, scored by likelihood alone, for models with an adaptive softmax."""

    sorts_by_frequency = True
    info = dataclasses.replace(
        ToyStream.info, name="toy_words", metrics=("bits_per_byte", "perplexity"), head="causal_lm"
    )


STREAMS = {task.info.name: task for task in (ToyStream, ToyWords)}
