"""Tasks made of imported corpora: masked or left-to-right language modeling, one class for each.

The tokens of a corpus are stored once, as whole documents. Length and packing choose windows of
them when the task is opened, and masks are drawn batch by batch, so no option but the corpus itself
takes space on the disk.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, Strict

from longspan.config import Length, NumExamples, setting, settings
from longspan.data.cache import BuildOutput, BuiltDataset
from longspan.data.corpora import imports
from longspan.data.corpora.imports import CorpusDescription
from longspan.data.store import Examples
from longspan.data.stream_vocabularies import StreamVocabulary, WordPieceVocabulary
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import OptionError
from longspan.tasks.base import SPLITS, ProgressCallback, Split, Task
from longspan.tasks.batching import Batch
from longspan.tasks.global_tokens import GlobalTokens, global_positions, mark_global_tokens
from longspan.tasks.grouping import Grouping, group_by_quantiles
from longspan.tasks.imported import ImportedTask, make_task, makes_tasks
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.language.windows import Windows, cut_documents, cut_stream, thin, weighted_rows
from longspan.tasks.masking import (
    MaskedTask,
    Masking,
    Probability,
    Share,
    check_shares,
    mask_rows,
)
from longspan.wording import counted

_NOTES = (
    "Documents are split by their sha256 unless files were given for the splits; equal documents "
    "count once. Held-out examples are windows of single documents under every packing, with one "
    "fixed mask each, and intervals are over documents. Perplexity is that of the masked tokens: "
    "it is comparable between models of one tokenizer only."
)
# JSON has lists in place of tuples.
Weights = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Strict(False), Field(min_length=1)]
_WEIGHTS = "share of each imported path in training batches, in any unit; none: by number of tokens"
_STREAM_NOTES = (
    "Documents are split by their sha256 unless files or folders were given for the splits; equal "
    "documents count once. Line ends are line feeds. The first token of a document is not "
    "predicted, nor is its end; a document of fewer than two tokens is left out. Bits per byte are "
    "comparable between vocabularies that give a text back as it was, up to the bytes of the first "
    "tokens; perplexity is comparable between models of one tokenizer only."
)
_METRICS = {"bytes": ("bits_per_byte",), "characters": ("bits_per_byte", "bits_per_character")}
_TOKENIZED = ("bits_per_byte", "perplexity")


class ImportedCorpus(ImportedTask):
    """Task whose documents were imported; subclasses define what is predicted."""

    description: ClassVar[CorpusDescription]

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Tokenize the documents of the files that were imported."""
        return imports.build_tokens(self.folder, self.description, scratch, progress)


@settings
class CorpusOptions:
    """Windows of documents, and masks."""

    length: Length = setting("tokens of an example, the first special token included", 512)
    pack: Literal["documents", "stream"] = setting(
        "training examples: windows of one document each, or of all documents joined by separators",
        "documents",
    )
    held_out_windows: NumExamples | None = setting(
        "most examples of a held-out document, at even distances in it; none: all of it", None
    )
    mask_probability: Probability = setting("share of the tokens that are masked", 0.15)
    replaced: Share = setting("share of the masked tokens that the mask token replaces", 0.8)
    random: Share = setting("share of the masked tokens that a random token replaces", 0.1)
    global_tokens: GlobalTokens = setting(
        "tokens that attend to all others and all others to them, for mechanisms with such tokens: "
        "none; the first special token; or a number: the first one of each passage of so many "
        "tokens (Xiong et al. 2022, section 4.3)",
        "none",
    )
    weights: Weights | None = setting(_WEIGHTS, None)

    def __post_init__(self) -> None:
        """Check that an example has room for a token, and that shares do not exceed 1.

        Raises:
            OptionError: they do.
        """
        if self.length < 2:
            raise OptionError(f"length must be at least 2, got {self.length}")
        check_shares(self.replaced, self.random)


class CorpusTask(ImportedCorpus, MaskedTask):
    """Masked tokens of documents; subclasses are made by `_make`."""

    Options = CorpusOptions
    options: CorpusOptions
    unit = "document"

    def __init__(self, options: object | None = None):
        """Store the given options, or the defaults.

        Raises:
            OptionError: the number of weights is not that of the imported paths.
        """
        super().__init__(options)
        self._windows: dict[str, Windows] = {}
        weights, paths = self.options.weights, self.description.training_paths
        if weights is not None and len(weights) != len(paths):
            raise OptionError(
                f"weights needs a number for each of the {len(paths)} imported paths, got "
                f"{len(weights)}"
            )

    def data_options(self) -> dict[str, Any]:
        """Return no option: every length, packing and weighting reads the same tokens."""
        return {}

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens of an example."""
        return int(global_positions(self.options.global_tokens, self.length).sum())

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Unknown: the number of windows follows from the lengths of the documents."""
        return dict.fromkeys(SPLITS)

    @functools.cached_property
    def tokenizer(self) -> WordPieceTokenizer:
        """Tokenizer that is stored with the corpus."""
        return imports.load_corpus_tokenizer(self.folder, self.description)

    @functools.cached_property
    def masking(self) -> Masking:
        """Masks of these options."""
        return self.make_masking(self.tokenizer.token_id("mask"), self.tokenizer.special_ids)

    @property
    def model_fields(self) -> dict[str, Any]:
        """Special tokens of the tokenizer, so that a checkpoint agrees with it."""
        return {"pad_token_id": self.tokenizer.token_id("pad")}

    def _training_rows(self, batch_size: int, seed: int, start: int) -> Iterator[np.ndarray]:
        """Return the rows of training batches, in which sources have their weights.

        Raises:
            OptionError: a path has a weight, but no training documents.
        """
        if (weights := self.options.weights) is None:
            return super()._training_rows(batch_size, seed, start)
        counts = self.facts["training_sources"]
        for path, count in zip(self.description.training_paths, counts, strict=False):
            if not count:
                raise OptionError(
                    f"{path} has a weight, but no training documents; import the corpus without it"
                )
        documents = self._examples("train").labels
        sources = np.searchsorted(self._source_bounds, documents, side="right") - 1
        return weighted_rows(sources, np.array(weights), batch_size, seed, start)

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some windows behind their first special tokens, with masked tokens.

        Masks of a training batch depend on its seed and number alone, those of an evaluation on
        the tokens of each example alone.

        Raises:
            DataError: a row has changed on disk since it was written.
        """
        examples.check(rows)
        before = self._first_ids
        batch = mask_rows(examples.tokens, rows, self.masking, draw, self.length, before)
        return mark_global_tokens(batch, self.options.global_tokens)

    def units(self, split: Split) -> np.ndarray:
        """Return the number of the document that each example begins in, (N,)."""
        return self._examples(split).labels

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by length, in quarters of the split."""
        return group_by_quantiles("length", examples.tokens.lengths, 4)

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example."""
        return [self.tokenizer.symbols[token] for token in ids.tolist()]

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids."""
        return self.tokenizer.decode(ids)

    def show(self, split: Split, row: int) -> str:
        """Return the text of an example, unmasked."""
        tokens, document = self._example(split, row)
        return f"document {document}: {self.decode(tokens)}"

    def _use_dataset(self, dataset: BuiltDataset | None) -> None:
        super()._use_dataset(dataset)
        self._windows = {}

    @functools.cached_property
    def _first_ids(self) -> np.ndarray:
        """Special tokens before every example."""
        return self.tokenizer.frame[0][: self.length - 1]

    def _examples(self, split: str) -> Windows:
        """Return the windows of a split; their labels are the numbers of the documents."""
        if split not in self._windows:
            examples = super()._examples(split)
            size = self.length - len(self._first_ids)
            if split == "train" and self.options.pack == "stream":
                self._windows[split] = cut_stream(examples, size, self._source_bounds)
            else:
                windows = cut_documents(examples, size)
                most = None if split == "train" else self.options.held_out_windows
                self._windows[split] = windows if most is None else thin(windows, most)
        return self._windows[split]

    @property
    def _source_bounds(self) -> np.ndarray:
        """Number of the first training document of each source."""
        return np.cumsum([0, *self.facts["training_sources"][:-1]])


class CorpusStreamTask(ImportedCorpus, StreamTask):
    """Next tokens of documents; subclasses are made by `_make`."""

    @functools.cached_property
    def vocabulary(self) -> StreamVocabulary:
        """Bytes, the characters of the corpus, or the tokenizer that is stored with it."""
        return imports.load_corpus_vocabulary(self.folder, self.description)

    @property
    def model_fields(self) -> dict[str, Any]:
        """A decoder, with the padding token of the tokenizer, if it has one."""
        if not isinstance(self.vocabulary, WordPieceVocabulary):
            return super().model_fields
        fast = self.vocabulary.tokenizer.fast
        return {**super().model_fields, "pad_token_id": fast.pad_token_id}

    @property
    def build_notes(self) -> list[str]:
        """Documents that were left out, and parts that the tokenizer does not give back."""
        short, num_changed = (
            sum(self.facts["too_short"].values()),
            self.facts.get("changed_parts", 0),
        )
        left_out = "document|documents of fewer than two tokens was|were left out"
        notes = [counted(short, left_out)] if short else []
        if num_changed:
            notes.append(
                f"the tokenizer does not give {num_changed:,} of {self.facts['parts']:,} parts of "
                "documents back as they were: bits per byte are those of its own text, and not "
                "comparable with other vocabularies"
            )
        return notes


@makes_tasks(CorpusDescription)
def _make(folder: Path, description: CorpusDescription) -> type[Task]:
    """Return the task class of a corpus."""
    files = ", ".join(Path(source["path"]).name for source in description.sources)
    ids = description.tokenizer["ids"]
    fields = {"vocab_size": ids, "num_classes": ids}
    if description.objective == "next":
        has_tokenizer = "saved_sha256" in description.tokenizer
        return make_task(
            CorpusStreamTask,
            folder,
            description,
            files,
            summary="Predict the next token of a document.",
            metrics=_TOKENIZED if has_tokenizer else _METRICS[description.tokenizer["name"]],
            head="causal_lm",
            notes=_STREAM_NOTES,
            **fields,
        )
    cls = make_task(
        CorpusTask,
        folder,
        description,
        files,
        summary="Predict the masked tokens of a document from the others.",
        metrics=("perplexity", "accuracy"),
        chance=float(ids),
        head="masked_lm",
        notes=_NOTES,
        **fields,
    )
    cls.Options = _options(description)
    return cls


def _options(description: CorpusDescription) -> type[CorpusOptions]:
    """Return the options of a corpus, whose default weights are those of its import."""
    default_weights = tuple(description.weights) or None

    @settings
    class Options(CorpusOptions):
        """Windows of documents, masks, and the weights of the import."""

        weights: Weights | None = setting(_WEIGHTS, default_weights, is_fixed=False)

    return Options
