"""Base of the summarization tasks: encoding, generation, ROUGE, the rule of leading sentences."""

import dataclasses
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from longspan.bounds import LONGEST
from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples
from longspan.data.summarized_document import SummarizedDocument, leading_sentences, split_sentences
from longspan.data.tokenizers import UNKNOWN, Tokenizer
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import OptionError
from longspan.metrics import Metric, get_metric
from longspan.metrics.summaries import ROUGE, RougeRule, has_token, loses_letters, rouge
from longspan.shapes import Int
from longspan.tasks import source_report as reporting
from longspan.tasks.base import HELD_OUT, SPLITS, Batch, ProgressCallback, Split
from longspan.tasks.batching import pad_sequences, text_inputs
from longspan.tasks.encoded_text import EncodedTextTask, EncodingOptions, encode_text
from longspan.tasks.example_writer import ExampleWriter, load_details
from longspan.tasks.grouping import Grouping, group_by_quantiles
from longspan.tasks.scoring import IGNORE, statistics_of_mean
from longspan.tasks.source_report import Report
from longspan.wording import counted
from longspan.words import count_words

METRICS = {rule: (*names, "perplexity") for rule, names in ROUGE.items()}
_SELECTION = ("perplexity",)
ROUGE_TOKENS = (
    "tokens of ROUGE: unicode: words of any script; rouge-score: runs of a-z and 0-9, as in "
    "published scores"
)

Beams = Annotated[int, Field(ge=1, le=64)]
LengthPenalty = Annotated[float, Field(ge=-10, le=10)]
TokenCount = Annotated[int, Field(ge=0, lt=LONGEST)]


@settings
class SummaryOptions(EncodingOptions):
    """Encoding of documents and summaries, and the generation of summaries."""

    length: Length = setting("tokens of a document that are kept", 1_024)
    target_length: Length = setting(
        "tokens of a summary that are kept, its end token included; as many are generated at most",
        256,
    )
    minimum: PositiveInt = setting(
        "occurrences in the training texts that make a character known", 2
    )
    beams: Beams = setting("beams of the generated summaries; 1: greedy", 4, in_data=False)
    length_penalty: LengthPenalty = setting(
        "exponent of the length by which the log-probability of a beam is divided",
        1.0,
        in_data=False,
    )
    no_repeat_ngram_size: TokenCount = setting(
        "length of the token sequences that a generated summary has only once; 0: any may be "
        "repeated",
        3,
        in_data=False,
    )
    min_tokens: TokenCount = setting(
        "tokens of a generated summary before it may end", 0, in_data=False
    )
    rouge: RougeRule = setting(ROUGE_TOKENS, "unicode")

    def __post_init__(self) -> None:
        """Check that a summary has room for a token and for the shortest generated one.

        Raises:
            OptionError: it has not.
        """
        EncodingOptions.__post_init__(self)
        if self.target_length <= max(1, self.min_tokens):
            raise OptionError(
                f"target_length={self.target_length} leaves no room for min_tokens="
                f"{self.min_tokens}, at least one token, and the end; raise target_length"
            )


_LEAD = "lead"
_UNREAD = WITHOUT_TOKEN, LOSING_LETTERS = "without_token", "losing_letters"
EMPTY_DOCUMENT, EMPTY_SUMMARY = "empty_document", "empty_summary"


def is_kept(split: Split, one: SummarizedDocument, report: Report) -> bool:
    """Return whether a document is an example of its split; list those without a text."""
    line = int(number) if (number := one.where.rpartition("line ")[2]).isdigit() else None
    for reason, text in ((EMPTY_DOCUMENT, one.document), (EMPTY_SUMMARY, one.summary)):
        if not text:
            report.add(reason, one.id, one.where, line)
    return bool(one.summary) and (bool(one.document) or split != "train")


def _measure(one: SummarizedDocument, cut: tuple[bool, bool], rule: RougeRule) -> dict[str, int]:
    """Return what is summed over a split: words, texts that are cut, what ROUGE does not read."""
    reads = has_token(one.summary_text, rule)
    return {
        "words": count_words(one.summary_text),
        "cut": int(cut[0]),
        "cut_summaries": int(cut[1]),
        WITHOUT_TOKEN: int(not reads),
        LOSING_LETTERS: int(reads and loses_letters(one.summary_text, rule)),
    }


def _describe_references(counts: Mapping[str, int], rule: RougeRule) -> list[str]:
    """Return a sentence for each kind of references that the rule of ROUGE does not read.

    Args:
        counts: `references` of the writers.
        rule: rule of the tokens.
    """
    texts = {
        WITHOUT_TOKEN: "summary|summaries has|have no token under the rule of ROUGE and is|are "
        "scored 0",
        LOSING_LETTERS: "summary|summaries has|have letters that the rule of ROUGE drops",
    }
    remedy = "; rouge=unicode reads every script" if rule == "rouge-score" else ""
    return [f"{counted(counts[x], text)}{remedy}" for x, text in texts.items() if counts[x]]


_END_SYMBOL = "<end>"  # of vocabularies without an end token


class SummaryTask(EncodedTextTask):
    """Documents and their summaries; a subclass reads them (`read`).

    Models are trained and selected on the tokens of the reference summaries, and scored by the
    summaries that they generate. The tokens of an example are those of its document, its `second`
    ones those of its summary, and its details the summary as text.
    """

    Options: ClassVar[type] = SummaryOptions
    options: SummaryOptions

    @abstractmethod
    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, SummarizedDocument]]:
        """Yield the documents and their splits, those of training first.

        Args:
            data: folder or file of the source.
            reports: receive what is wrong with the source, by split.

        Raises:
            DataError: the source is missing or malformed.
        """

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Documents and summaries of these lengths."""
        shapes = {"input_ids": self.length, "decoder_input_ids": self.options.target_length}
        return {name: (length,) for name, length in shapes.items()}

    @property
    def vocab_size(self) -> int:
        """Number of token ids, that of the end included."""
        return super().vocab_size + self.num_added_tokens

    @property
    def num_added_tokens(self) -> int:
        """1 for the end of summaries, unless the tokenizer has such a token."""
        return int(self._tokenizer_end is None)

    @property
    def num_classes(self) -> int:
        """Number of tokens that may come next."""
        return self.vocab_size

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """ROUGE of the chosen rule, and perplexity."""
        return tuple(map(get_metric, METRICS[self.options.rouge]))

    @property
    def selection_metrics(self) -> tuple[Metric, ...]:
        """Perplexity of the reference summaries."""
        return tuple(map(get_metric, _SELECTION))

    @property
    def end_token(self) -> int:
        """Token that ends a summary, and that is the first input of the decoder, as in BART."""
        end = self._tokenizer_end
        return super().vocab_size if end is None else end

    @property
    def generation(self) -> dict[str, Any]:
        """Beam search of these options."""
        options, pieces = self.options, self._word_pieces
        padding = 0 if pieces is None else pieces.fast.pad_token_id
        has_beams = options.beams > 1
        return {
            "do_sample": False,
            "num_beams": options.beams,
            # Without beams these have no effect, and transformers warns about other values.
            "length_penalty": options.length_penalty if has_beams else 1.0,
            "early_stopping": has_beams,
            "no_repeat_ngram_size": options.no_repeat_ngram_size,
            "min_new_tokens": options.min_tokens,
            "max_new_tokens": options.target_length,
            "decoder_start_token_id": self.end_token,
            "eos_token_id": self.end_token,
            "pad_token_id": self.end_token if padding is None else padding,
            "suppress_tokens": list(self._textless_tokens()) or None,
        }

    @property
    def model_fields(self) -> dict[str, Any]:
        """Tokens of the decoder."""
        names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        return {"decoder_start": "token", **{name: self.generation[name] for name in names}}

    @property
    def rule_names(self) -> tuple[str, ...]:
        """Leading sentences of the document."""
        return (_LEAD,)

    def rule_scores(self, split: Split) -> dict[str, float]:
        """Return the main metric of the leading sentences, computed when the data was built.

        They are the first sentences of the document, with as many words as the mean summary of the
        training split.
        """
        return {_LEAD: self.facts[_LEAD][split][self.metrics[0].name]}

    @property
    def build_notes(self) -> list[str]:
        """Texts that were cut, and the number of listed cases, by reason."""
        notes = super().build_notes
        notes += _describe_references(self.facts["references"], self.options.rouge)
        if cut := sum(self.facts["cut_summaries"].values()):
            limit = f"{self.options.target_length:,} tokens"
            longer = f"summary|summaries is|are longer than {limit} and was|were cut for training"
            notes.append(f"{counted(cut, longer)}; scores are against the whole ones")
        cases = self.facts["cases"]
        return notes + reporting.describe_cases(cases, "document|documents", self.dataset.folder)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Encode the documents and summaries, one at a time, and score the leading sentences.

        Documents without a summary are left out, and of training those without a text, too. Those
        of the held-out splits are kept: they count in scores. All are listed.
        """
        tokenizer = self.make_tokenizer(lambda: self._training_texts(data))
        reports, rule = {split: Report() for split in SPLITS}, self.options.rouge
        second = np.min_scalar_type(self.vocab_size - 1).type
        parts = {
            split: ExampleWriter(scratch / split, tokens=tokenizer.dtype, second=second)
            for split in SPLITS
        }
        sums, lead = ({split: Counter[str]() for split in SPLITS} for _ in range(2))
        for number, (split, one) in enumerate(self.read(data, reports)):
            if number % 100 == 0:
                progress(f"encoding {self.info.name}", number, 0)
            if not is_kept(split, one, reports[split]):
                continue
            document, summary, cut = self._encode_pair(tokenizer, one)
            details = {"id": one.id, "summary": "\n".join(one.summary)}
            parts[split].add(0, details, tokens=document, second=summary)
            sums[split].update(_measure(one, cut, rule))
            if split in HELD_OUT:
                words = sums["train"]["words"] / max(1, len(parts["train"]))
                leading = leading_sentences(one.document, words)
                lead[split].update(rouge("\n".join(leading), details["summary"], rule))
        remedy = "use other files"
        lacks = "no document with a summary"
        reporting.refuse_empty(self.info.name, parts, reports, lacks, remedy)
        cases = reporting.count_cases(reports)
        return BuildOutput(
            splits={split: part.examples() for split, part in parts.items()},
            facts={
                **{x: {s: sums[s][x] for s in SPLITS} for x in ("cut", "cut_summaries")},
                "cases": cases,
                _LEAD: {s: {x: y / len(parts[s]) for x, y in lead[s].items()} for s in HELD_OUT},
                "references": {x: sum(y[x] for y in sums.values()) for x in _UNREAD},
                "lead_words": round(sums["train"]["words"] / len(parts["train"]), 2),
                **tokenizer.facts,
            },
            reports={reporting.FILE: reporting.format_cases(reports)} if cases else {},
        )

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some examples as a batch; new documents have the end token for a summary."""
        batch = super().collate(examples, rows, draw)
        if examples.second is None:
            ids = np.full((len(rows), 1), self.end_token)
            mask = np.ones_like(ids, bool)
        else:
            padded, mask = pad_sequences(examples.second, rows, self.options.target_length)
            ids = padded.astype(np.int64)
        first = np.full((len(rows), 1), self.end_token)
        shifted = torch.from_numpy(np.concatenate((first, ids[:, :-1]), axis=1))
        return dataclasses.replace(
            batch,
            inputs={name: x for name, x in batch.inputs.items() if not name.endswith("_b")}
            | text_inputs(shifted, mask, "decoder_input_ids"),
            targets=torch.from_numpy(np.where(mask, ids, IGNORE)),
        )

    def generation_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        generated: Int[Tensor, "B U"],
    ) -> dict[str, Tensor]:
        """Return the ROUGE of each summary and the number of summaries, 1."""
        scores = [
            rouge(
                "\n".join(split_sentences(self.decode_generated(ids))),
                self.reference(split, row),
                self.options.rouge,
            )
            for row, ids in zip(rows.tolist(), generated.numpy(), strict=True)
        ]
        return {x.name: statistics_of_mean([score[x.name] for score in scores]) for x in metrics}

    def reference(self, split: Split, row: int) -> str:
        """Return the whole summary of an example, one sentence in each line."""
        return load_details(self._examples(split), row)["summary"]

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a new document, whose sentences are joined as those of the splits."""
        return self._encode_document(self.tokenizer, " ".join(split_sentences(text)))[0]

    def decode_generated(self, ids: np.ndarray) -> str:
        """Return the text of generated tokens, without special tokens and what follows the end."""
        ends = np.flatnonzero(ids == self.end_token)
        # A tokenizer's end may stand before the text as well, as in BART's first token.
        text_ids = ids[: ends[0]] if len(ends) else ids
        tokenizer = self.tokenizer
        if isinstance(tokenizer, WordPieceTokenizer):
            special = tokenizer.special_ids
            text_ids = np.array([x for x in text_ids.tolist() if x not in special], np.int64)
        else:
            text_ids = text_ids[(text_ids > 0) & (text_ids < tokenizer.vocab_size)]
        return " ".join(tokenizer.decode(text_ids).split())

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by the lengths of document and summary, in quarters of the split."""
        assert examples.second is not None
        return [
            *group_by_quantiles("document tokens", examples.tokens.lengths, 4),
            *group_by_quantiles("summary tokens", examples.second.lengths, 4),
        ]

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token; the added one is the end of summaries."""
        symbols = (*self.tokenizer.symbols, _END_SYMBOL)
        return [symbols[token] for token in ids.tolist()]

    def show(self, split: Split, row: int) -> str:
        """Return the document, as far as it is read, and the summary."""
        tokens, _ = self._example(split, row)
        return f"{self.decode(tokens)} = {' '.join(self.reference(split, row).splitlines())}"

    @property
    def _tokenizer_end(self) -> int | None:
        """End token of a Hugging Face tokenizer: the last one of each text, or its EOS token."""
        if (pieces := self._word_pieces) is None:
            return None
        after = pieces.frame[1]
        end = after[-1] if len(after) else pieces.fast.eos_token_id
        return None if end is None else int(end)

    def _textless_tokens(self) -> tuple[int, ...]:
        """Return the ids of unknown and absent words or characters, once these are learned."""
        if self._dataset is None or self._word_pieces or self.options.vocabulary == "bytes":
            return ()
        symbols = self.tokenizer.symbols
        return tuple(token for token, text in enumerate(symbols) if text == symbols[UNKNOWN])

    def _training_texts(self, data: Path | None) -> Iterator[tuple[bytes, int]]:
        """Yield the texts that a vocabulary is learned from."""
        for split, one in self.read(data, {split: Report() for split in SPLITS}):
            if split != "train":
                return
            yield from ((text.encode(), 1) for text in (one.text, one.summary_text))

    def _encode_pair(
        self, tokenizer: Tokenizer, one: SummarizedDocument
    ) -> tuple[np.ndarray, np.ndarray, tuple[bool, bool]]:
        """Return the tokens of a document and its summary, and which of them were cut."""
        document, is_cut = self._encode_document(tokenizer, one.text)
        limit = self.options.target_length
        summary, is_summary_cut = encode_text(tokenizer, one.summary_text.encode(), limit)
        if not len(summary) or summary[-1] != self.end_token:
            room = limit - 1
            is_summary_cut = is_summary_cut or len(summary) > room
            summary = np.append(summary[:room].astype(np.int64), self.end_token)
        return document, summary, (is_cut, is_summary_cut)

    def _encode_document(self, tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, bool]:
        """Return the tokens of a document, and whether it was cut; a space where it has none."""
        ids, is_cut = encode_text(tokenizer, text.encode(), self.length)
        # Examples need a token; those of characters and bytes are none without a text.
        return (ids, is_cut) if len(ids) else encode_text(tokenizer, b" ", self.length)
