"""Small tasks, one for each head: random words, of which each task asks something else."""

import dataclasses

import numpy as np
import torch

from longspan.config import setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged
from longspan.tasks import IGNORE, Task, TaskInfo
from longspan.tasks.questions.encoding import (
    BOUNDARY,
    ELSEWHERE,
    ENDS,
    RELEVANT,
    STARTS,
    SUPPORTS,
    bit_labels,
)
from longspan.tasks.questions.hotpotqa import labels_of

MASK, START, WORDS = 1, 2, 13  # ids from 3 on are words; 0 is padding
SIZES = {"train": 48, "validation": 12, "test": 10}


@settings
class ToyOptions:
    """Length, vocabulary and global tokens."""

    length: int = setting("tokens of an example", 24)
    words: int = setting("token ids", WORDS)
    num_global: int = setting("first tokens that are global", 0)


class Toy(Task):
    """Random words of random length."""

    Options = ToyOptions
    options: ToyOptions

    @property
    def length(self):
        return self.options.length

    @property
    def vocab_size(self):
        return self.options.words

    @property
    def num_global_tokens(self):
        return self.options.num_global

    def build_splits(self, data, scratch, progress):
        draws = np.random.default_rng(7)
        splits = {}
        for split, count in SIZES.items():
            lengths = draws.integers(6, self.length + 1, count)
            rows = [draws.integers(3, self.vocab_size, n).astype(np.uint8) for n in lengths]
            labels = np.array([row[0] > row[1] for row in rows], np.uint8)
            splits[split] = Examples(tokens=Ragged.pack(rows, np.uint8), labels=labels)
        return BuildOutput(splits=splits, source="drawn in a test", license="none", facts={})

    def show(self, split, row):
        return str(self._example(split, row))

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        if not self.num_global_tokens:
            return batch
        first = torch.arange(batch.inputs["input_ids"].shape[1]) < self.num_global_tokens
        mask = first & batch.inputs["attention_mask"]
        return replaced(batch, global_attention_mask=mask)


def replaced(batch, targets=None, **inputs):
    """Return a batch with other inputs; those of None are left out."""
    found = {name: x for name, x in {**batch.inputs, **inputs}.items() if x is not None}
    targets = batch.targets if targets is None else targets
    return dataclasses.replace(batch, inputs=found, targets=targets)


def parts(batch):
    """Return ids, mask and global mask, None without one."""
    names = ("input_ids", "attention_mask", "global_attention_mask")
    return [batch.inputs.get(name) for name in names]


def info(name, head, metrics, num_classes):
    return TaskInfo(
        name=name, title=name, summary="A toy.", source="a test",
        license="none", sizes=SIZES, vocab_size=WORDS, num_classes=num_classes, head=head,
        metrics=metrics,
    )  # fmt: skip


class ToyLabels(Toy):
    """Class: the first word is larger than the second."""

    info = info("toy_labels", "sequence_classification", ("accuracy",), 2)


class ToyMasked(Toy):
    """Masked words, drawn for each batch in training."""

    info = info("toy_masked", "masked_lm", ("perplexity", "accuracy"), WORDS)

    @property
    def num_classes(self):
        return self.vocab_size

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        draws = np.random.default_rng(draw or (0, 0))
        ids, mask, _ = parts(batch)
        masked = torch.from_numpy(draws.random(ids.shape) < 0.3) & mask
        masked[:, 1] = True
        targets = ids.masked_fill(~masked, IGNORE)
        return replaced(batch, targets, input_ids=ids.masked_fill(masked, MASK))


class ToySpan(Toy):
    """Span from the largest word to the end."""

    info = info("toy_span", "question_answering", ("accuracy",), 2)

    def majority_baseline(self, split, rows=None):
        return None

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        ids, mask, _ = parts(batch)
        targets, places = torch.zeros_like(ids), torch.arange(len(ids))
        targets[places, ids.argmax(1)] |= STARTS
        targets[places, mask.sum(1) - 1] |= ENDS
        return replaced(batch, targets.masked_fill(~mask, IGNORE))

    def label_arguments(self, targets):
        sides = {"start_positions": STARTS, "end_positions": ENDS}
        return {name: bit_labels(targets, bit) for name, bit in sides.items()}

    def example_statistics(self, metrics, split, rows, logits, targets):
        return {"accuracy": torch.ones(len(rows), 2, dtype=torch.float64)}


class ToyMultiHop(Toy):
    """Span from the largest word, in the first two tokens the type, and support at even words."""

    info = info("toy_multi_hop", "multi_hop", ("accuracy",), 67)

    def majority_baseline(self, split, rows=None):
        return None

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        words, mask, _ = parts(batch)
        targets = BOUNDARY + (SUPPORTS | RELEVANT) * (words % 2)
        targets[torch.arange(len(words)), words.argmax(1)] |= STARTS | ENDS
        targets = targets.masked_fill(~mask, IGNORE)
        targets[:, 0] = ELSEWHERE + words[:, 0] % 3
        return replaced(batch, targets)

    def label_arguments(self, targets):
        return labels_of(targets)

    def example_statistics(self, metrics, split, rows, logits, targets):
        return {"accuracy": torch.ones(len(rows), 2, dtype=torch.float64)}


class ToyChoice(Toy):
    """The text itself among three rotations of it."""

    info = info("toy_choice", "multiple_choice", ("accuracy",), 3)

    @property
    def input_shapes(self):
        return {"input_ids": (3, self.length)}

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)

        def repeated(x):
            return None if x is None else x[:, None].expand(-1, 3, -1).contiguous()

        ids, mask, marked = parts(batch)
        return replaced(
            batch,
            input_ids=torch.stack([ids.roll(n, 1) for n in range(3)], dim=1),
            attention_mask=repeated(mask),
            global_attention_mask=repeated(marked),
        )


class ToyCandidates(Toy):
    """The larger of the first two words, read in two windows."""

    info = info("toy_candidates", "candidates", ("accuracy",), 2)

    @property
    def input_shapes(self):
        return {"input_ids": (2, self.length), "candidate_positions": (2,)}

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        ids, mask, marked = parts(batch)
        return replaced(
            batch,
            input_ids=torch.stack((ids, ids.flip(0)), dim=1),
            attention_mask=torch.stack((mask, mask.flip(0)), dim=1),
            global_attention_mask=None if marked is None else torch.stack((marked, marked), dim=1),
            candidate_positions=torch.tensor([[1, 0]]).repeat(len(rows), 1),
        )


class ToyRetrieval(Toy):
    """The text that begins with the query, and one negative for each query."""

    info = info("toy_retrieval", "dual_encoder", ("mrr", "accuracy"), 2)

    @property
    def input_shapes(self):
        shapes = {"query": (4,), "document": (self.length,), "negative": (1, self.length)}
        return {f"{name}_input_ids": shape for name, shape in shapes.items()}

    def label_arguments(self, targets):
        return {}

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        ids, mask, marked = parts(batch)
        texts = {
            "query": [None if x is None else x[:, :4] for x in (ids, mask, marked)],
            "document": [ids, mask, marked],
            "negative": [None if x is None else x[:, None] for x in (ids.roll(1, 1), mask, marked)],
        }
        inputs = {
            f"{text}_{name}": x
            for text, values in texts.items()
            for name, x in zip(
                ("input_ids", "attention_mask", "global_attention_mask"), values, strict=True
            )
            if x is not None
        }
        return dataclasses.replace(batch, inputs=inputs, targets=torch.zeros_like(batch.targets))


class ToyTextToText(Toy):
    """The first words of the text."""

    info = info("toy_text_to_text", "seq2seq", ("perplexity",), WORDS)

    @property
    def model_fields(self):
        return {"decoder_start_token_id": START}

    @property
    def input_shapes(self):
        return {"input_ids": (self.length,), "decoder_input_ids": (5,)}

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        ids, mask, _ = parts(batch)
        words = ids[:, :5]
        start = torch.full_like(words[:, :1], START)
        return replaced(
            batch,
            words.masked_fill(words == 0, IGNORE),
            decoder_input_ids=torch.cat((start, words[:, :-1]), dim=1),
            decoder_attention_mask=mask[:, :5],
        )


TOYS = (
    ToyLabels,
    ToyMasked,
    ToySpan,
    ToyMultiHop,
    ToyChoice,
    ToyCandidates,
    ToyRetrieval,
    ToyTextToText,
)
