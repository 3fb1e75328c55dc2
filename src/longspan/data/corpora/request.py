"""Request of an import of a corpus: sources, splits, objective and vocabulary."""

import dataclasses
import math
from pathlib import Path
from typing import Literal, get_args

from longspan.data.imports.stored import resolve_splits
from longspan.data.own_splits import SPLITS, TEST, TRAIN, VALIDATION
from longspan.data.sources.documents import CorpusSource
from longspan.data.sources.folders import find_split_files, find_split_folders
from longspan.data.sources.text import FileFormat
from longspan.data.tokenizer_training import TokenizerKind
from longspan.errors import OptionError, check_name

HELD_OUT_SHARE = 0.05
VOCAB_SIZE = 8_192
Objective = Literal["masked", "next"]
VocabularyKind = Literal["bytes", "characters", "tokenizer"]
_OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
VOCABULARIES: tuple[VocabularyKind, ...] = get_args(VocabularyKind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusRequest:
    """Sources, splits, objective and vocabulary of an import.

    Attributes:
        paths: files, folders, or data sets "hf:NAME".
        weights: share of each path in training batches, in any unit; none: by number of tokens.
        validation: share of the documents to hold out, or a path; None: see `resolve`.
        test: likewise.
        objective: tokens that are predicted: masked ones, or the next one.
        vocabulary: bytes, the characters that occur, or those of a tokenizer; None: see `resolve`.
        tokenizer: folder or name of a Hugging Face tokenizer; None: train one on the training
            documents.
        vocab_size: number of ids of a tokenizer that is trained.
        kind: its kind.
        form: format of the files.
    """

    paths: tuple[str, ...]
    weights: tuple[float, ...] = ()
    validation: float | str | None = None
    test: float | str | None = None
    objective: Objective = "masked"
    vocabulary: VocabularyKind | None = None
    tokenizer: str | None = None
    vocab_size: int = VOCAB_SIZE
    kind: TokenizerKind = "byte-level"
    form: FileFormat = dataclasses.field(default_factory=FileFormat)

    def resolve(self) -> tuple["CorpusRequest", list[CorpusSource], dict[int, float]]:
        """Return the request with its vocabulary, its sources, and shares to hold out by split.

        One folder with subfolders or files for the splits, such as `train`, as PG-19 has, or
        `train.jsonl`, has these splits. Otherwise the default is a share. The default vocabulary is
        a tokenizer for masked tokens, or if one is named; else bytes.

        Raises:
            DataError: the subfolders or files of such a folder are ambiguous.
            OptionError: a share is out of range, or nothing is left for training.
        """
        only = Path(self.paths[0])
        has_splits = len(self.paths) == 1 and only.is_dir()
        places = (find_split_folders(only) or find_split_files(only)) if has_splits else {}
        split_sources = {split: str(path) for split, path in places.items()}
        options = {VALIDATION: self.validation, TEST: self.test}
        held_out, shares = resolve_splits(options, split_sources, HELD_OUT_SHARE, "document")
        paths = (split_sources[TRAIN],) if split_sources else self.paths
        sources = [
            *(CorpusSource(path=path) for path in paths),
            *(CorpusSource(path=path, split=SPLITS[x]) for x, path in held_out.items()),
        ]
        is_tokenized = self.objective == "masked" or self.tokenizer is not None
        vocabulary = self.vocabulary or ("tokenizer" if is_tokenized else "bytes")
        return dataclasses.replace(self, vocabulary=vocabulary), sources, shares

    def check(self) -> None:
        """Check weights, objective and vocabulary.

        Raises:
            OptionError: one is out of range, or does not go with another one.
            UnknownNameError: there is no such objective or vocabulary.
        """
        if self.weights and (
            len(self.weights) != len(self.paths) or not all(0 < x < math.inf for x in self.weights)
        ):
            raise OptionError(
                f"--weights needs a number above 0 for each of the {len(self.paths)} paths, got "
                f"{', '.join(f'{x:g}' for x in self.weights)}"
            )
        check_name(self.objective, _OBJECTIVES, "objective")
        kind = check_name(str(self.vocabulary), VOCABULARIES, "vocabulary")
        if self.objective == "masked" and kind != "tokenizer":
            raise OptionError(
                f"--vocabulary {kind} has no mask token; pass --objective next, or omit it to "
                "train a tokenizer"
            )
        if self.objective == "next" and self.weights:
            raise OptionError(
                "--weights does not go with --objective next: rows of a batch walk through whole "
                "documents, each once in an epoch; omit it"
            )
        if self.tokenizer is not None and kind != "tokenizer":
            raise OptionError(f"--vocabulary {kind} has no tokenizer; omit it or --tokenizer")
