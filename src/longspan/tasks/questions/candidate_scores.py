"""Questions with candidates: stored examples, and batches of the windows that a model reads."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from longspan.data.store import Examples, Spool
from longspan.shapes import Bool
from longspan.tasks.batching import PAD_TO_MULTIPLE_OF, Batch, text_inputs
from longspan.tasks.questions.candidates import CandidateEncoder, Parts, Windows
from longspan.tasks.questions.wikihop_files import CandidateQuestion

GlobalTokens = Literal["candidates", "boundaries", "first", "none"]
MOST_BOUNDARIES = 64  # documents of a window that may be marked; published questions have fewer

_ABSENT = -1  # position of a candidate that an example does not have


class CandidateWriter:
    """Questions of a split in files, since they may be larger than memory."""

    def __init__(self, folder: Path, encoder: CandidateEncoder):
        """Create empty files in a folder."""
        self.encoder = encoder
        self.tokens = Spool(folder / "tokens", encoder.dtype)
        self.details = Spool(folder / "details", np.uint8)
        self.labels: list[int] = []
        self.sizes: list[tuple[int, int]] = []  # candidates and documents

    def add(self, question: CandidateQuestion) -> None:
        """Append a question."""
        details = {
            "id": question.id,
            "question": question.text,
            "relation": question.relation,
            "candidates": question.candidates,
        }
        text = json.dumps(details, ensure_ascii=False, separators=(",", ":"))
        self.details.add(np.frombuffer(text.encode(errors="replace"), np.uint8))
        stored = self.encoder.store(question.text, question.candidates, question.documents)
        self.tokens.add(stored)
        self.labels.append(question.answer)
        self.sizes.append((len(question.candidates), len(question.documents)))

    def counts(self) -> dict[str, int]:
        """Return the number of questions, and the most candidates and documents of one."""
        candidates, documents = zip(*self.sizes, strict=True)
        return {
            "questions": len(self.sizes),
            "most_candidates": max(candidates),
            "most_documents": max(documents),
        }

    def examples(self) -> Examples:
        """Return all questions; their sequences are views of the files."""
        return Examples(
            tokens=self.tokens.ragged(),
            details=self.details.ragged(),
            labels=np.array(self.labels, np.uint16),
        )


def load_details(examples: Examples, row: int) -> dict[str, Any]:
    """Return id, question, relation and candidates of an example."""
    assert examples.details is not None
    return json.loads(examples.details[row].tobytes())


def shuffle_parts(parts: Parts, label: int, stream: np.random.Generator) -> tuple[Parts, int]:
    """Return a question with its candidates and documents in another order, and the new label.

    Args:
        parts: tokens of the question.
        label: index of the right candidate.
        stream: random numbers.
    """
    candidates = stream.permutation(len(parts.candidates))
    documents = stream.permutation(len(parts.documents))
    shuffled = Parts(
        question=parts.question,
        candidates=[parts.candidates[i] for i in candidates],
        documents=[parts.documents[i] for i in documents],
    )
    return shuffled, int(np.flatnonzero(candidates == label)[0])


def collate_windows(
    read: list[Windows],
    labels: np.ndarray,
    rows: np.ndarray,
    *,
    candidates: int,
    length: int,
    global_tokens: GlobalTokens,
) -> Batch:
    """Return windows as a batch as wide as the longest one, rounded up.

    Args:
        read: windows of each question.
        labels: index of the right candidate of each.
        rows: row of each in its split.
        candidates: maximum number of candidates of a question.
        length: maximum number of tokens of a window.
        global_tokens: tokens of each window that are global.
    """
    longest = max(len(text) for windows in read for text in windows.texts)
    rounded = -(-longest // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF
    shape = (len(read), max(len(x.texts) for x in read), min(rounded, length))
    ids, lengths = np.zeros(shape, np.int64), np.zeros((*shape[:2], 1), np.int64)
    positions = np.full((len(read), candidates), _ABSENT, np.int64)
    for row, windows in enumerate(read):
        positions[row, : len(windows.positions)] = windows.positions
        for number, text in enumerate(windows.texts):
            ids[row, number, : len(text)] = text
            lengths[row, number] = len(text)
    is_real = np.arange(shape[2]) < lengths
    inputs = text_inputs(torch.from_numpy(ids), is_real)
    inputs["candidate_positions"] = torch.from_numpy(positions)
    if (marked := _mark_global_tokens(read, is_real, global_tokens)) is not None:
        inputs["global_attention_mask"] = marked
    return Batch(inputs=inputs, targets=torch.from_numpy(labels), rows=torch.from_numpy(rows))


def _mark_global_tokens(
    read: list[Windows], is_real: np.ndarray, chosen: GlobalTokens
) -> Bool[torch.Tensor, "B W T"] | None:
    """Return the global tokens of windows, None for none.

    Args:
        read: windows of each question.
        is_real: True at real tokens, (B, W, T).
        chosen: tokens of each window that are global.
    """
    if chosen == "none":
        return None
    prefixes = [1 if chosen == "first" else x.num_prefix for x in read]
    marked = np.arange(is_real.shape[2]) < np.array(prefixes)[:, None, None]
    marked = marked & is_real
    if chosen == "boundaries":
        for row, windows in enumerate(read):
            for number, places in enumerate(windows.boundaries):
                marked[row, number, places[:MOST_BOUNDARIES]] = True
    return torch.from_numpy(marked)
