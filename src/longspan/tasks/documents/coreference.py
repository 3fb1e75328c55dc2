"""Coreference: the mentions in a document, and which of them are the same entity.

Pradhan et al., "CoNLL-2012 Shared Task: Modeling Multilingual Unrestricted Coreference in
OntoNotes", 2012 (https://aclanthology.org/W12-4501), with the coarse-to-fine model of Lee et al.
2018 and Joshi et al. 2019, as in Beltagy et al., "Longformer", 2020, section 6.2.

    [CLS] sentence sentence ... [SEP]

A document is stored whole, without special tokens, so that the same data serve every length, and
read in windows of whole sentences, which are independent (Joshi et al. 2019,
https://arxiv.org/abs/1908.09091, section 3).
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.source_files import SourceFiles
from longspan.data.store import Examples
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import DataError, OptionError
from longspan.metrics import Metric
from longspan.metrics.coreference import COUNTS, Mention
from longspan.shapes import Bool, Float, Int
from longspan.tasks.base import SPLITS, Batch, ProgressCallback, Split
from longspan.tasks.batching import pad_windows, text_inputs
from longspan.tasks.documents import conll
from longspan.tasks.documents.conll import Document, PublishedSplit
from longspan.tasks.example_writer import ExampleWriter, load_details
from longspan.tasks.grouping import Grouping
from longspan.tasks.info import TaskInfo
from longspan.tasks.pieces import PieceTask, PieceVocabulary, vocabulary_setting
from longspan.tasks.registry import register
from longspan.tasks.scoring import IGNORE

NO_SENTENCE = -1  # number of special tokens' sentence and word


class Window(NamedTuple):
    """Tokens of a window, special ones included.

    Attributes:
        ids: token ids, (T,).
        sentences: number of the sentence of each token in its document, or `NO_SENTENCE`.
        words: number of the word of each token in its document, or `NO_SENTENCE`.
    """

    ids: np.ndarray
    sentences: np.ndarray
    words: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class DocumentEncoder:
    """Encoder of documents.

    Attributes:
        tokenizer: tokenizer of the words.
        language: language of the words.
    """

    tokenizer: WordPieceTokenizer
    language: str = "english"

    def store(self, document: Document) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the ids of all words, and what else is known of the document, as JSON.

        Details are id, genre, words, the number of tokens of each word (`tokens`), of words of each
        sentence (`sentences`), the number of the speaker of each word (`speakers`), and clusters.
        """
        words = [word for sentence in document.sentences for word in sentence]
        texts = [f" {conll.read_word(word, self.language)}" for word in words]
        encoded = self.tokenizer.encode_texts(texts)
        unknown = np.array([self.tokenizer.fast.unk_token_id or 0], self.tokenizer.dtype)
        encoded = [ids if len(ids) else unknown for ids in encoded]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(document.speakers))}
        details = {
            "id": document.id,
            "genre": document.genre,
            "words": words,
            "tokens": [len(ids) for ids in encoded],
            "sentences": [len(sentence) for sentence in document.sentences],
            "speakers": [numbers[name] for name in document.speakers],
            "clusters": document.clusters,
        }
        return np.concatenate(encoded), details

    def make_windows(
        self, ids: np.ndarray, details: dict[str, Any], length: int, most: int
    ) -> list[Window]:
        """Return the windows of a document; sentences that exceed a window are cut in pieces.

        Args:
            ids: ids of all words.
            details: details of the document; see `store`.
            length: maximum number of tokens of a window.
            most: maximum number of windows; what follows is left out.

        Raises:
            OptionError: special tokens fill the window.
        """
        room = length - sum(map(len, self.tokenizer.frame))
        if room < 1:
            raise OptionError(
                f"length={length} leaves no room for a token beside {length - room} special ones"
            )
        words = np.repeat(np.arange(len(details["tokens"])), details["tokens"])
        sentences = np.repeat(np.arange(len(details["sentences"])), details["sentences"])[words]
        sentences = _cut_long(sentences, room)
        ends = [*(np.flatnonzero(np.diff(sentences)) + 1).tolist(), len(ids)]
        bounds, first = [], 0
        for end, following in zip(ends, [*ends[1:], None], strict=True):
            if following is None or following - first > room:
                bounds.append(slice(first, end))
                first = end
        return [self._frame(ids[x], sentences[x], words[x]) for x in bounds[:most]]

    def _frame(self, ids: np.ndarray, sentences: np.ndarray, words: np.ndarray) -> Window:
        """Return a window with its special tokens."""
        before, after = self.tokenizer.frame
        around = (len(before), len(after))
        return Window(
            ids=np.concatenate((before, ids, after)),
            sentences=np.pad(sentences, around, constant_values=NO_SENTENCE),
            words=np.pad(words, around, constant_values=NO_SENTENCE),
        )


def _restore_document(details: dict[str, Any], clusters: Sequence[Sequence[Mention]]) -> Document:
    """Return the document of some details, with other clusters.

    Names of speakers are not stored: all are "-".

    Args:
        details: details of a document; see `DocumentEncoder.store`.
        clusters: first and last word of each mention.
    """
    words, ends = details["words"], np.cumsum(details["sentences"]).tolist()
    bounds = zip([0, *ends], ends, strict=False)
    return Document(
        id=details["id"],
        sentences=tuple(tuple(words[first:end]) for first, end in bounds),
        speakers=("-",) * len(words),
        clusters=tuple(map(tuple, clusters)),
    )


def token_spans(details: dict[str, Any], limit: int) -> list[tuple[int, int, int]]:
    """Return first token, last token and cluster of the mentions within the first tokens.

    Args:
        details: details of a document; see `DocumentEncoder.store`.
        limit: number of tokens of the document that are read.
    """
    ends = np.cumsum(details["tokens"])
    spans = []
    for number, cluster in enumerate(details["clusters"]):
        for first, last in cluster:
            start = int(ends[first]) - details["tokens"][first]
            if (end := int(ends[last]) - 1) < limit:
                spans.append((start, end, number))
    return spans


def count_parts(details: dict[str, Any]) -> Counter[str]:
    """Return the numbers of words, sentences, clusters and mentions of a document."""
    return Counter(
        documents=1,
        words=len(details["words"]),
        sentences=len(details["sentences"]),
        clusters=len(details["clusters"]),
        mentions=sum(map(len, details["clusters"])),
    )


def _cut_long(sentences: np.ndarray, room: int) -> np.ndarray:
    """Return new numbers of sentences, of which none has more than `room` tokens."""
    _, first, number = np.unique(sentences, return_index=True, return_inverse=True)
    pieces = (np.arange(len(sentences)) - first[number]) // room
    keys = np.stack((sentences, pieces), axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].ravel()


_PUBLISHED_NAMES: dict[Split, PublishedSplit] = {
    "train": "train",
    "validation": "development",
    "test": "test",
}
GENRES = ("bc", "bn", "mz", "nw", "pt", "tc", "wb")
_SHOWN = 60  # words


SpansPerToken = Annotated[float, Field(gt=0, le=100)]


@settings
class CoreferenceOptions:
    """Encoding of documents, windows, and sizes of the head."""

    length: Length = setting("tokens of a window", 4096, in_data=False)
    windows: Length = setting(
        "maximum windows of a document: longer documents are read in several, cut between "
        "sentences; what follows is left out, and its mentions count as missed",
        1,
        in_data=False,
    )
    vocabulary: PieceVocabulary = vocabulary_setting()
    language: Literal["english", "chinese", "arabic"] = setting(
        "language of the documents", "english"
    )
    span_width: Length = setting("maximum tokens of a mention", 30, in_data=False)
    spans_per_token: SpansPerToken = setting(
        "spans that are kept for each token", 0.4, in_data=False
    )
    antecedents: Length = setting("antecedents of a span that get fine scores", 50, in_data=False)
    depth: Length = setting("times that fine scores are computed", 2, in_data=False)
    global_tokens: Literal["none", "first", "boundaries"] = setting(
        "global tokens of a window, for mechanisms that have such: none; first: the first one; "
        "boundaries: that one, and the first one of each sentence",
        "none",
        in_data=False,
    )
    boundaries: Length = setting(
        "maximum number of sentences of a window whose first token is global "
        "(global_tokens=boundaries)",
        128,
        in_data=False,
    )


@register
class Coreference(PieceTask):
    """Documents with clusters of mentions."""

    Options = CoreferenceOptions
    options: CoreferenceOptions
    class_names = GENRES
    info = TaskInfo(
        name="coreference",
        version=2,
        title="Coreference (OntoNotes)",
        summary="Find the mentions in a document that are the same entity.",
        source=f"CoNLL-2012, Pradhan et al. 2012, {conll.URL}, from OntoNotes 5 (LDC2013T19)",
        license="LDC user agreement (OntoNotes 5); not for redistribution",
        sizes={"train": 2_802, "validation": 343, "test": 348},
        num_classes=len(GENRES),
        metrics=("conll_f1", "muc_f1", "b_cubed_f1", "ceaf_f1"),
        head="coreference",
        notes=(
            "Scores are those of whole documents, including mentions behind the last window; they "
            "follow the reference scorer for mentions with the right ends. The label of an "
            "example is the genre of the document, a feature of the model. Published scores are "
            "of pretrained models: 78.6 % of the development set with Longformer-base, 78.4 % "
            "with RoBERTa-base (Beltagy et al. 2020, table 7)."
        ),
    )

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Windows of a document."""
        return {"input_ids": (self.options.windows, self.length)}

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Documents by split; unknown before the build in other languages than English."""
        return super().sizes if self.options.language == "english" else dict.fromkeys(SPLITS)

    @property
    def model_fields(self) -> dict[str, Any]:
        """Padding id of the tokenizer, and the sizes of the head."""
        options = self.options
        return {
            **super().model_fields,
            "coreference": {
                "span_width": options.span_width,
                "spans_per_token": options.spans_per_token,
                "antecedents": options.antecedents,
                "depth": options.depth,
                "genres": len(GENRES),
                "speakers": True,
            },
        }

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens of a window."""
        most = {"none": 0, "first": 1, "boundaries": 1 + self.options.boundaries}
        return min(self.length, most[self.options.global_tokens])

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the files of all splits."""
        return conll.find(data, self.options.language)

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the number and total size of the files of each split."""
        source = self.find_source(data)
        sizes = {x: sum(path.stat().st_size for path in y) for x, y in source.files.items()}
        counts = {split: len(paths) for split, paths in source.files.items()}
        return {"form": source.form, "files": counts, "bytes": sizes}

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Encode the documents, whole, one at a time."""
        files = self.find_source(data)
        splits: dict[str, Examples] = {}
        counts: dict[str, Counter[str]] = {}
        for split, name in _PUBLISHED_NAMES.items():
            writer = ExampleWriter(scratch / split, tokens=self.tokenizer.dtype)
            count = counts[split] = Counter()
            for number, path in enumerate(files.files[name]):
                progress(f"encoding CoNLL-2012 ({name})", number, len(files.files[name]))
                for document in conll.read_documents(path):
                    self._write(document, writer, count)
            if not len(writer):
                raise DataError(f"{files.files[name][0]}: the split {name!r} has no document")
            splits[split] = writer.examples()
        return BuildOutput(
            splits=splits,
            facts={
                "source_sha256": conll.checksums(files),
                "counts": {split: dict(sorted(count.items())) for split, count in counts.items()},
                **self.tokenizer.facts,
            },
        )

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some documents as a batch of windows, with their mentions and global tokens.

        Raises:
            DataError: a row has changed on disk since it was written.
        """
        examples.check(rows)
        documents = [(examples.tokens[row], load_details(examples, row)) for row in rows.tolist()]
        options = self.options
        all_windows = [
            self._encoder.make_windows(ids, details, options.length, options.windows)
            for ids, details in documents
        ]
        sizes = [sum(int((x.sentences >= 0).sum()) for x in windows) for windows in all_windows]
        mentions = [token_spans(x, size) for (_, x), size in zip(documents, sizes, strict=True)]
        targets = np.full((len(rows), max(1, *map(len, mentions)), 3), IGNORE, np.int64)
        for row_targets, spans in zip(targets, mentions, strict=True):
            row_targets[: len(spans)] = np.array(spans).reshape(-1, 3)
        ids, sentences, words = (
            pad_windows([[x[part] for x in y] for y in all_windows], self.length, NO_SENTENCE)
            for part in range(3)
        )
        # The last of the numbers is that of special tokens.
        speakers = [
            np.append(x["speakers"], 0)[y] for (_, x), y in zip(documents, words, strict=True)
        ]
        inputs = text_inputs(torch.from_numpy(ids.clip(min=0)), ids >= 0)
        sentence_ids = torch.from_numpy(sentences)
        if options.global_tokens != "none":
            mask = self._global_tokens(inputs["attention_mask"], sentence_ids)
            inputs["global_attention_mask"] = mask
        return Batch(
            inputs={
                **inputs,
                "sentence_ids": sentence_ids,
                "word_ids": torch.from_numpy(words),
                "speaker_ids": torch.from_numpy(np.stack(speakers)),
                "genre_ids": torch.from_numpy(examples.labels[rows].astype(np.int64)),
            },
            targets=torch.from_numpy(targets),
            rows=torch.from_numpy(rows),
        )

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B K _"],
        targets: Int[Tensor, "B N 3"],
    ) -> dict[str, Tensor]:
        """Return the counts of precision and recall of the predicted clusters."""
        predicted = self.clusters(split, rows, logits)
        right = [
            [list(map(tuple, x)) for x in self.load_details(split, row)["clusters"]]
            for row in rows.tolist()
        ]
        pairs = list(zip(predicted, right, strict=True))
        return {
            metric.name: torch.tensor([COUNTS[metric.name](*x) for x in pairs], dtype=torch.float64)
            for metric in metrics
        }

    def clusters(
        self, split: Split, rows: Int[Tensor, " B"], logits: Float[Tensor, "B K _"]
    ) -> list[list[list[Mention]]]:
        """Return the predicted clusters of documents: first and last word of each mention.

        Args:
            split: split of the examples.
            rows: their rows.
            logits: see `LongspanForCoreference.scores`.
        """
        # The models import transformers, which lists of tasks do not need.
        from longspan.models.heads.coreference_head import decode_clusters, unpack_scores

        all_clusters = []
        for row, scores in zip(rows.tolist(), unpack_scores(logits), strict=True):
            tokens = self.load_details(split, row)["tokens"]
            words = np.repeat(np.arange(len(tokens)), tokens).tolist()
            clusters = decode_clusters(scores.spans, scores.antecedents, scores.scores)
            all_clusters.append(
                [[(words[a], words[b]) for a, b in cluster] for cluster in clusters]
            )
        return all_clusters

    def answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B K _"],
        targets: Int[Tensor, "B N 3"],
    ) -> dict[str, str]:
        """Return documents with the predicted clusters as columns of CoNLL-2012, by id."""
        texts = {}
        for row, clusters in zip(rows.tolist(), self.clusters(split, rows, logits), strict=True):
            details = self.load_details(split, row)
            texts[details["id"]] = conll.format_document(_restore_document(details, clusters))
        return texts

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by genre."""
        return [Grouping(name="genre", labels=GENRES, group=examples.labels.astype(np.int64))]

    def show(self, split: Split, row: int) -> str:
        """Return the beginning of a document, with the clusters of its mentions."""
        self._example(split, row)
        details = self.load_details(split, row)
        words = details["words"]
        shown = "; ".join(
            ", ".join(" ".join(words[a : b + 1]) for a, b in cluster)
            for cluster in details["clusters"]
        )
        return f"{details['id']}: {' '.join(words[:_SHOWN])} = {shown}"

    @functools.cached_property
    def _encoder(self) -> DocumentEncoder:
        return DocumentEncoder(self.tokenizer, self.options.language)

    def _write(self, document: conll.Document, writer: ExampleWriter, counts: Counter[str]) -> None:
        if document.genre not in GENRES:
            raise DataError(
                f"document {document.id} is of genre {document.genre!r}; expected one of "
                f"{', '.join(GENRES)}"
            )
        ids, details = self._encoder.store(document)
        writer.add(GENRES.index(document.genre), details, tokens=ids)
        counts.update(count_parts(details))

    def _global_tokens(
        self, real: Bool[Tensor, "B W T"], sentences: Int[Tensor, "B W T"]
    ) -> Bool[Tensor, "B W T"]:
        """Return the global tokens of windows, from their real tokens and sentences."""
        is_global = real & (torch.arange(real.shape[-1]) == 0)
        if self.options.global_tokens == "first":
            return is_global
        begins = (sentences >= 0) & (sentences != sentences.roll(1, -1))
        return is_global | (begins & (begins.cumsum(-1) <= self.options.boundaries))
