"""Small tasks, one for each layout: random words, of which each task asks something else."""

import dataclasses

import numpy as np
import torch

from longspan.config import setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.questions.encoding import (
    BOUNDARY,
    ELSEWHERE,
    ENDS,
    RELEVANT,
    STARTS,
    SUPPORTS,
)
from longspan.data.store import Examples, Ragged
from longspan.tasks import IGNORE, Task, TaskInfo
from longspan.tasks._multi_hop import joint_losses
from longspan.tasks.layout import (
    CandidateLayout,
    ChoiceLayout,
    MaskedLayout,
    MultiHopLayout,
    RetrievalLayout,
    SequenceLayout,
    SpanLayout,
    TextToTextLayout,
)

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
        first = torch.arange(batch.inputs.shape[1]) < self.num_global_tokens
        return dataclasses.replace(batch, global_mask=first & batch.key_mask)


def info(name, layout, metrics, num_classes):
    return TaskInfo(
        name=name, version=1, title=name, summary="A toy.", source="a test", checksum=None,
        license="none", sizes=SIZES, vocab_size=WORDS, num_classes=num_classes, layout=layout,
        metrics=metrics, chance=None, published=(),
    )  # fmt: skip


class ToyLabels(Toy):
    """Class: the first word is larger than the second."""

    info = info("toy_labels", SequenceLayout(), ("accuracy",), 2)


class ToyMasked(Toy):
    """Masked words, drawn for each batch in training."""

    info = info("toy_masked", MaskedLayout(), ("perplexity", "accuracy"), WORDS)

    @property
    def num_classes(self):
        return self.vocab_size

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        draws = np.random.default_rng(draw or (0, 0))
        masked = torch.from_numpy(draws.random(batch.inputs.shape) < 0.3) & batch.key_mask
        masked[:, 1] = True
        return dataclasses.replace(
            batch,
            inputs=batch.inputs.masked_fill(masked, MASK),
            targets=batch.inputs.masked_fill(~masked, IGNORE),
        )


class ToySpan(Toy):
    """Span from the largest word to the end."""

    info = info("toy_span", SpanLayout(), ("accuracy",), 2)

    def majority_baseline(self, split, rows=None):
        return None

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        ends = torch.stack((batch.inputs.argmax(1), batch.key_mask.sum(1) - 1), dim=1)
        return dataclasses.replace(batch, targets=ends)


class ToyMultiHop(Toy):
    """Span from the largest word, in the first two tokens the type, and support at even words."""

    info = info("toy_multi_hop", MultiHopLayout(), ("accuracy",), 67)

    def majority_baseline(self, split, rows=None):
        return None

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        words, mask = batch.inputs, batch.key_mask
        targets = BOUNDARY + (SUPPORTS | RELEVANT) * (words % 2)
        targets[torch.arange(len(words)), words.argmax(1)] |= STARTS | ENDS
        targets = targets.masked_fill(~mask, IGNORE)
        targets[:, 0] = ELSEWHERE + words[:, 0] % 3
        return dataclasses.replace(batch, targets=targets)

    def losses(self, logits, targets):
        return joint_losses(logits, targets, 1.0)

    def count_targets(self, targets):
        return torch.ones(len(targets), dtype=torch.long)

    def example_statistics(self, metrics, split, rows, logits, targets):
        return {"accuracy": torch.ones(len(rows), 2, dtype=torch.float64)}


class ToyChoice(Toy):
    """The text itself among three rotations of it."""

    info = info("toy_choice", ChoiceLayout(3), ("accuracy",), 3)

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)

        def repeated(x):
            return x[:, None].expand(-1, 3, -1).contiguous()

        ids = torch.stack([batch.inputs.roll(n, 1) for n in range(3)], dim=1)
        mask = batch.global_mask
        return dataclasses.replace(
            batch,
            inputs=ids,
            key_mask=repeated(batch.key_mask),
            global_mask=None if mask is None else repeated(mask),
        )


class ToyCandidates(Toy):
    """The larger of the first two words, read in two windows."""

    info = info("toy_candidates", CandidateLayout(2, windows=2), ("accuracy",), 2)

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        mask = batch.global_mask
        return dataclasses.replace(
            batch,
            inputs=torch.stack((batch.inputs, batch.inputs.flip(0)), dim=1),
            key_mask=torch.stack((batch.key_mask, batch.key_mask.flip(0)), dim=1),
            global_mask=None if mask is None else torch.stack((mask, mask), dim=1),
            candidate_positions=torch.tensor([[1, 0]]).repeat(len(rows), 1),
        )


class ToyRetrieval(Toy):
    """The text that begins with the query, and one negative for each query."""

    info = info("toy_retrieval", RetrievalLayout(4, negatives=1), ("mrr", "accuracy"), 2)

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        mask = batch.global_mask
        return dataclasses.replace(
            batch,
            targets=torch.zeros_like(batch.targets),
            inputs=batch.inputs[:, :4],
            key_mask=batch.key_mask[:, :4],
            global_mask=None if mask is None else mask[:, :4],
            inputs_b=batch.inputs,
            key_mask_b=batch.key_mask,
            global_mask_b=mask,
            negatives=batch.inputs.roll(1, 1)[:, None],
            negatives_mask=batch.key_mask[:, None],
            global_mask_negatives=None if mask is None else mask[:, None],
        )


class ToyTextToText(Toy):
    """The first words of the text."""

    info = info("toy_text_to_text", TextToTextLayout(5), ("perplexity",), WORDS)

    @property
    def model_fields(self):
        return {"decoder_start_token_id": START}

    def collate(self, examples, rows, draw=None):
        batch = super().collate(examples, rows, draw)
        words = batch.inputs[:, :5]
        start = torch.full_like(words[:, :1], START)
        return dataclasses.replace(
            batch,
            targets=words.masked_fill(words == 0, IGNORE),
            inputs_b=torch.cat((start, words[:, :-1]), dim=1),
            key_mask_b=batch.key_mask[:, :5],
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
