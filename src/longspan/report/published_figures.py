"""Figures of papers other than test scores: costs, training accuracy, pretraining and what follows.

Sources: tables 2 and 3 of Long Range Arena (Tay et al. 2021), tables 1 and 2 of Simple Local
Attentions Remain Competitive (Xiong et al. 2022). Values are as printed, in the unit of the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from longspan.report.numbers import Number

LRA = "Tay et al. 2021, Long Range Arena, table {}"
XIONG = "Xiong et al. 2022, Simple Local Attentions Remain Competitive, table {}"
TPU = "batch 32, 4x4 TPU v3"


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """A figure that others published.

    Attributes:
        task: task that it was measured on; of pretraining, a name that no task has.
        quantity: name of a quantity; see `tables.published_figures`.
        value: value in the unit of the quantity.
        protocol: protocol that it was obtained under.
        source: publication.
        length: tokens of an example; None where the protocol decides.
        condition: how it was measured.
    """

    task: str
    mechanism: str
    quantity: str
    value: Number
    protocol: str
    source: str
    length: int | None = None
    condition: str = ""


LENGTHS = (1000, 2000, 3000, 4000)
STEPS_PER_SECOND = {
    "full": (8.1, 4.9, 2.3, 1.4),
    "local": (9.2, 8.4, 7.4, 7.4),
    "linformer": (9.3, 9.1, 8.5, 7.7),
    "reformer": (4.4, 2.2, 1.5, 1.1),
    "sinkhorn": (9.1, 7.9, 6.6, 5.3),
    "synthesizer": (8.7, 5.7, 6.6, 1.9),
    "bigbird": (7.4, 3.9, 2.7, 1.5),
    "linear": (9.1, 9.3, 8.6, 7.8),
    "performer": (9.5, 9.4, 8.7, 8.0),
}
MEMORY = {
    "full": (0.85, 2.65, 5.51, 9.48),
    "local": (0.42, 0.76, 1.06, 1.37),
    "linformer": (0.37, 0.55, 0.99, 0.99),
    "reformer": (0.48, 0.99, 1.53, 2.28),
    "sinkhorn": (0.47, 0.83, 1.13, 1.48),
    "synthesizer": (0.65, 1.98, 4.09, 6.99),
    "bigbird": (0.77, 1.49, 2.18, 2.88),
    "linear": (0.37, 0.57, 0.80, 1.03),
    "performer": (0.37, 0.59, 0.82, 1.06),
}
TRAIN_ACCURACY = {
    "full": 69.45,
    "local": 63.19,
    "sparse_transformer": 66.74,
    "longformer": 71.65,
    "linformer": 97.23,
    "reformer": 68.45,
    "sinkhorn": 69.21,
    "synthesizer": 97.31,
    "bigbird": 71.49,
    "linear": 65.61,
    "performer": 73.90,
}
# The paper names no task; the counted FLOPs of the protocol reproduce them on ListOps.
GFLOPS = {
    "sinkhorn": 0.289,
    "reformer": 0.273,
    "linformer": 0.271,
    "nystrom": 0.256,
    "performer": 0.205,
    "long_short": 0.199,
    "local": 0.153,
    "blockwise": 0.146,
}
PRETRAINING = (
    ("masked language modeling", "perplexity"),
    ("masked language modeling", "words_per_second"),
    ("triviaqa", "exact_match"),
    ("triviaqa", "f1"),
    ("document retrieval", "mrr"),
    ("hyperpartisan", "accuracy"),
)
PRETRAINED = {
    "sinkhorn": (4.03, 11_800, 63.3, 68.5, 80.9, 95.0),
    "reformer": (3.63, 10_000, 62.9, 67.5, 83.6, 92.2),
    "linformer": (4.14, 24_600, 59.8, 65.2, 80.3, 88.7),
    "nystrom": (3.79, 9_500, 51.5, 57.3, 83.1, 89.5),
    "performer": (5.58, 17_200, 24.5, 31.9, 66.8, 94.9),
    "long_short": (3.36, 8_400, 66.5, 71.4, 84.5, 91.5),
    "local": (3.47, 9_200, 65.6, 70.7, 83.2, 95.3),
    "blockwise": (3.39, 13_500, 68.1, 72.9, 85.0, 95.0),
}


def _by_length(
    quantity: str, rows: Mapping[str, Sequence[Number]], condition: str
) -> Iterator[PublishedFigure]:
    for mechanism, values in rows.items():
        for length, value in zip(LENGTHS, values, strict=True):
            # Between 5.7 steps/s at 2K and 1.9 at 4K.
            odd = (quantity, mechanism, length) == ("steps_per_second", "synthesizer", 3000)
            yield PublishedFigure(
                task="text",
                mechanism=mechanism,
                quantity=quantity,
                value=value,
                protocol="lra-paper",
                source=LRA.format(2),
                length=length,
                condition=condition + (", as printed: probably a misprint" if odd else ""),
            )


def _of_image() -> Iterator[PublishedFigure]:
    for mechanism, value in TRAIN_ACCURACY.items():
        yield PublishedFigure(
            task="image",
            mechanism=mechanism,
            quantity="train_accuracy",
            value=value,
            protocol="lra-paper",
            source=LRA.format(3),
        )


def _of_xiong() -> Iterator[PublishedFigure]:
    for mechanism, value in GFLOPS.items():
        yield PublishedFigure(
            task="listops",
            mechanism=mechanism,
            quantity="gflops",
            value=value,
            protocol="xiong",
            source=XIONG.format(1),
            condition="multiply-adds",
        )
    for mechanism, values in PRETRAINED.items():
        for (task, quantity), value in zip(PRETRAINING, values, strict=True):
            yield PublishedFigure(
                task=task,
                mechanism=mechanism,
                quantity=quantity,
                value=value,
                protocol="xiong",
                source=XIONG.format(2),
                condition="pretrained, 4096 tokens",
            )


PUBLISHED_FIGURES = (
    *_by_length("steps_per_second", STEPS_PER_SECOND, TPU),
    *_by_length("memory", MEMORY, f"{TPU}, per device"),
    *_of_image(),
    *_of_xiong(),
)
