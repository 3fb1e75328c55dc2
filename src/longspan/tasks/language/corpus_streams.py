"""Tasks made of imported corpora: left-to-right language modeling, one class for each corpus.

The tokens of a corpus are stored once, as whole documents, from which segments are cut when the
task is opened.
"""

import functools
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.cache import BuildOutput
from longspan.data.corpora import imports
from longspan.data.corpora.imports import CorpusDescription
from longspan.data.stream_vocabularies import StreamVocabulary, WordPieceVocabulary
from longspan.tasks.base import ProgressCallback, Task
from longspan.tasks.imported import ImportedTask, make_task
from longspan.tasks.language.streams import StreamTask
from longspan.wording import counted

_NOTES = (
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


def make_corpus(
    base: type[ImportedCorpus], folder: Path, description: CorpusDescription, **fields: Any
) -> type[Any]:
    """Return the task class of a corpus; `fields` are further ones of `TaskInfo`."""
    files = ", ".join(Path(source["path"]).name for source in description.sources)
    ids = description.tokenizer["ids"]
    fields = {"version": 1, "vocab_size": ids, "num_classes": ids, **fields}
    return make_task(base, folder, description, files, **fields)


class CorpusStreamTask(ImportedCorpus, StreamTask):
    """Next tokens of documents; subclasses are made by `make_stream`."""

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


def make_stream(folder: Path, description: CorpusDescription) -> type[Task]:
    """Return the task class of a corpus whose tokens predict the next one."""
    has_tokenizer = "saved_sha256" in description.tokenizer
    return make_corpus(
        CorpusStreamTask,
        folder,
        description,
        summary="Predict the next token of a document.",
        metrics=_TOKENIZED if has_tokenizer else _METRICS[description.tokenizer["name"]],
        chance=None,
        head="causal_lm",
        notes=_NOTES,
    )
