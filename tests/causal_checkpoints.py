"""Tiny causal language models on disk: a folder of `save_pretrained`, and a run on a stream."""

import dataclasses

import numpy as np
import torch

import tiny
from longspan.arena.run_state import RunState, write_state
from longspan.config import TaskConfig, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged
from longspan.data.tokenizers import ByteTokenizer
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.tasks import Task, TaskInfo
from longspan.tokenizers import make_fast_tokenizer
from longspan.training.checkpoint import Checkpoints

PROMPT = "Größe: 3 €. "


@settings
class StreamOptions:
    """Letter that each line of the stream repeats."""

    letter: str = setting("letter of the lines", "a")


class ToyBytes(Task):
    """Bytes of lines; an id is the byte plus one."""

    Options = StreamOptions
    options: StreamOptions
    info = TaskInfo(
        name="toy_bytes", title="Toy bytes", summary="Next byte.", source="a test",
        license="none", sizes={"train": 4, "validation": 2, "test": 2},
        head="sequence_classification",
        vocab_size=257, num_classes=2, metrics=("accuracy",),
    )  # fmt: skip

    @property
    def length(self):
        return 16

    def build_splits(self, data, scratch, progress):
        splits = {}
        for split, count in self.info.sizes.items():
            rows = [self.encode(self.options.letter * (n + 1)) for n in range(count)]
            labels = np.arange(count, dtype=np.uint8) % 2
            splits[split] = Examples(tokens=Ragged.pack(rows, np.uint16), labels=labels)
        return BuildOutput(splits=splits, source="a test", license="none", facts={})

    def show(self, split, row):
        return self.decode(self._example(split, row)[0])

    def encode(self, text):
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint16) + 1

    def decode(self, ids):
        return (np.asarray(ids) - 1).astype(np.uint8).tobytes().decode(errors="replace")


def make_model(mechanism="local", **changes):
    """Return a causal model over bytes whose text varies; the same at each call."""
    torch.manual_seed(1)
    fields = {
        "vocab_size": 257,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 128,
        "position": "rotary",
        "initializer_range": 0.5,
        "tie_word_embeddings": False,
    }
    return LongspanForCausalLM(LongspanConfig(attention=mechanism, **fields | changes)).eval()


def save_folder(folder, model=None, tokenizer=True):
    """Save a model, with a tokenizer of bytes or without."""
    (model or make_model()).save_pretrained(folder)
    if tokenizer:
        make_fast_tokenizer(ByteTokenizer()).save_pretrained(folder)
    return folder


def save_run(runs, cache, model=None, task="toy_bytes"):
    """Write the directory of a finished run on a stream; return the path of its record."""
    opened = ToyBytes(StreamOptions())
    opened.open(cache)
    folder = runs / "work" / "run"
    config = dataclasses.replace(
        tiny.experiment().config, task=TaskConfig(name=task, version=1, options={"letter": "a"})
    )
    folder.mkdir(parents=True)
    write_state(folder, RunState(config=config, overrides={}, data_checksum=opened.checksum))
    model = model or make_model()
    model.config.architectures = [type(model).__name__]  # as the arena does
    Checkpoints(folder).save_best(model, 1)
    record = runs / "run.json"
    record.write_text("{}")
    return record
