"""Published accuracies on the tasks of Long Range Arena, in percent, one table for each source."""

from typing import NamedTuple

from longspan.tasks.info import Published

# Columns of every table; a shorter row lacks the last ones.
_COLUMNS = ("listops", "text", "retrieval", "image", "pathfinder")


class _Table(NamedTuple):
    protocol: str
    source: str
    rows: dict[str, tuple[float, ...]]


_TABLES = (
    _Table(
        "lra-paper",
        "Tay et al. 2021, Long Range Arena, table 1",
        {
            "full": (36.37, 64.27, 57.46, 42.44, 71.40),
            "strided_local": (15.82, 52.98, 53.39, 41.46, 66.63),
            "sparse_transformer": (17.07, 63.58, 59.59, 44.24, 71.71),
            "longformer": (35.63, 62.85, 56.89, 42.22, 69.71),
            "linformer": (35.70, 53.94, 52.27, 38.56, 76.34),
            "reformer": (37.27, 56.10, 53.40, 38.07, 68.50),
            "sinkhorn": (33.67, 61.20, 53.83, 41.23, 67.45),
            "synthesizer": (36.99, 61.68, 54.67, 41.61, 69.45),
            "bigbird": (36.05, 64.02, 59.29, 40.83, 74.87),
            "linear": (16.13, 65.90, 53.09, 42.34, 75.30),
            "performer": (18.01, 65.40, 53.82, 42.77, 77.05),
        },
    ),
    _Table(  # submitted by others, who chose data, sizes and training themselves
        "lra-repo",
        "google-research/long-range-arena, README: external models",
        {
            "igloo": (39.23, 82.0, 75.5, 47.0, 67.5),
            "temporal-latent-bottleneck": (37.05, 81.88, 76.91, 57.51, 79.06),
        },
    ),
    _Table(
        "lra-small",
        "Xiong et al. 2021, Nystromformer, LRA table of its repository",
        {
            "full": (37.10, 65.02, 79.35, 38.20, 74.16),
            "reformer": (19.05, 64.88, 78.64, 43.29, 69.36),
            "linformer": (37.25, 55.91, 79.37, 37.84, 67.60),
            "performer": (18.80, 63.81, 78.62, 37.07, 69.87),
            "nystrom": (37.15, 65.52, 79.56, 41.58, 70.94),
        },
    ),
    _Table(
        "lra-small",
        "xformers v0.0.22, BENCHMARKS.md",
        {
            "full": (37.5, 62.66, 79.24, 38.69, 70.37),
            "nystrom": (36.29, 63.24, 78.18, 42.86, 67.49),
            "performer": (19.56, 62.76, 81.1, 36.09, 67.23),
            "fouriermix": (36.29, 60.72, 76.41, 36.53, 54.07),
            "linformer": (36.69, 57.39, 76.41, 35.57, 65.12),
            "lambda": (19.76, 62.47, 79.11, 35.04, 49.74),
            "orthoformer": (27.42, 63.96, 77.96, 34.5, 67.11),
        },
    ),
    _Table(
        "xiong",
        "Xiong et al. 2022, Simple Local Attentions Remain Competitive, table 1",
        {
            "sinkhorn": (37.6, 63.8, 80.4),
            "reformer": (37.9, 62.5, 80.5),
            "linformer": (37.7, 61.9, 78.4),
            "nystrom": (37.9, 66.1, 81.0),
            "performer": (37.1, 66.1, 79.8),
            "long_short": (37.7, 65.7, 81.6),
            "local": (37.4, 65.7, 81.6),
            "blockwise": (37.4, 65.6, 81.3),
        },
    ),
)

# Models of the image task that are no mechanisms; the first two are reference rows of the protocol.
_IMAGE_SOURCE = "Tay et al. 2021, Long Range Arena, appendix A.2.1 with table 3"
_IMAGE_MODELS = {"cnn-stem": 75.32, "relative-2d": 61.72, "wide-resnet": 89.21}


def published_scores(task: str) -> tuple[Published, ...]:
    """Return the published scores of one task of Long Range Arena."""
    column = _COLUMNS.index(task)
    scores = tuple(
        Published(
            mechanism=mechanism,
            value=round(row[column] / 100, 6),
            protocol=table.protocol,
            source=table.source + _remark(task, table.protocol),
        )
        for table in _TABLES
        for mechanism, row in table.rows.items()
        if column < len(row)
    )
    return scores + _image_models() if task == "image" else scores


def _image_models() -> tuple[Published, ...]:
    return tuple(
        Published(
            mechanism=name, value=round(x / 100, 6), protocol="lra-paper", source=_IMAGE_SOURCE
        )
        for name, x in _IMAGE_MODELS.items()
    )


def _remark(task: str, protocol: str) -> str:
    is_best_length = (task, protocol) == ("text", "lra-paper")
    return " (best of lengths 1K to 4K)" if is_best_length else ""
