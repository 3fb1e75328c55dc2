"""Records of classified documents: a run beside TF-IDF, next to the record of the run.

The path is `<results>/<protocol>/<task>/classified/<file name of the record>`.
"""

import dataclasses
import math
from typing import Any, ClassVar

from longspan.config import settings
from longspan.errors import DataError
from longspan.results.reading import DOCUMENTS
from longspan.results.side_record import SideRecord

THRESHOLD = 0.5  # probability from which a label applies, unless another one is given
_DOCUMENT_SCHEMA = 1


@settings
class DocumentRow:
    """Scores of one way to classify the documents.

    Attributes:
        name: name of the way: "local", "TF-IDF".
        options: what distinguishes it, such as the length or the strength C.
        metrics: metrics by name, the main one first; None where one is undefined.
        seconds: time of training.
        classes: precision, recall, F1 and number of documents of each class; none of numbers.
        confusion: documents of each class (row) by predicted class; none of several labels.
        calibration: mean probability, share of correct predictions, and their number.
    """

    name: str
    options: dict[str, Any]
    metrics: dict[str, float | None]
    seconds: float
    classes: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    confusion: list[list[int]] = dataclasses.field(default_factory=list)
    calibration: list[list[float]] = dataclasses.field(default_factory=list)

    @property
    def options_text(self) -> str:
        """Options as text; empty without any."""
        return ", ".join(f"{name} {x}" for name, x in self.options.items())

    @property
    def label(self) -> str:
        """Name, with the options in brackets if there are some."""
        return f"{self.name} ({self.options_text})" if self.options else self.name


@settings
class DocumentScores(SideRecord):
    """Scores of a run on documents, and of the baselines.

    Attributes:
        split: split that is scored.
        documents: number of scored documents.
        rows_sha256: identity of the imported rows.
        covered_documents: share of the training documents that the run reads whole.
        covered_tokens: share of their tokens that it reads.
        class_weights: weights of the classes in training: "none" or "balanced".
        threshold: probability from which a label applies, where a document may have several.
        rows: the run, TF-IDF, and the shares of the classes, or the mean, in training.
        p_value: of the sign test whether run or TF-IDF has fewer errors on a document; None: both
            have equally many on each.
        fewer_errors: documents on which the run has fewer errors, and those of TF-IDF; none in
            records that did not count them.
    """

    subfolder: ClassVar[str] = DOCUMENTS
    title: ClassVar[str] = "a record of classified documents"
    remedy: ClassVar[str] = "run longspan finetune again"
    task: str
    split: str
    documents: int
    rows_sha256: str
    covered_documents: float
    covered_tokens: float
    class_weights: str
    threshold: float
    rows: list[DocumentRow]
    p_value: float | None
    fewer_errors: list[int] = dataclasses.field(default_factory=list)
    schema: int = _DOCUMENT_SCHEMA

    @property
    def scored(self) -> tuple[str, str, float]:
        """Split, rows and threshold, which scores that compare share."""
        return self.split, self.rows_sha256, self.threshold

    @property
    def metric(self) -> str:
        """Name of the main metric."""
        return next(iter(self.rows[0].metrics))

    def check(self) -> None:
        """Check that the numbers agree with each other.

        Raises:
            DataError: a share is outside [0, 1], or a confusion matrix has other documents.
        """
        shares = (self.covered_documents, self.covered_tokens, self.threshold)
        if not all(0 <= x <= 1 for x in shares):
            raise DataError(f"shares and threshold must be in [0, 1], got {shares}")
        for row in self.rows:
            counts = sum(map(sum, row.confusion))
            if row.confusion and counts != self.documents:
                raise DataError(
                    f"{row.name} has {counts} predictions of {self.documents} documents"
                )
            if not all(x is None or math.isfinite(x) for x in row.metrics.values()):
                raise DataError(f"{row.name} has a metric that is not finite")
