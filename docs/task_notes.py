"""Notes on the pages of tasks: accepted source files, and known pitfalls of the data sets."""

import dataclasses
from typing import Any

LRA = "https://github.com/google-research/long-range-arena"
NYSTROM = "https://github.com/mlpen/Nystromformer"
MEGA = "https://github.com/facebookresearch/mega"


def threads(repository: str, *numbers: int) -> str:
    """Return links to threads of a GitHub repository."""
    name = repository.rpartition("/")[2]
    return ", ".join(f"[{name} #{n}]({repository}/issues/{n})" for n in numbers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes:
    """Notes on one task.

    Attributes:
        files: accepted values of PATH in `longspan data import`.
        pitfalls: known problems of the data set and of published scores.
        example: task options of the example on the page.
    """

    files: str = ""
    pitfalls: tuple[str, ...] = ()
    example: dict[str, Any] = dataclasses.field(default_factory=dict)


RELEASE = f"the archive `lra_release.gz` ({LRA}; 8 GB), packed or unpacked, at any level of nesting"

NOTES = {
    "listops": Notes(
        files=f"{RELEASE}; or a folder with `basic_train.tsv`, `basic_val.tsv` and "
        "`basic_test.tsv`, each optionally with `.gz`",
        pitfalls=(
            "The released reader numbers the symbols in an order that depends on the hash seed of "
            "the Python process. A restored checkpoint then reads different symbols, a possible "
            f"cause of reported test scores of 17 % ({threads(LRA, 15, 60)}). Here the ids are "
            "fixed.",
            "The source text contains parentheses and has about three times as many tokens as the "
            "model reads. Bounds on the length count only operators, digits and closing brackets.",
            "Paper and code differ in the size of the model and the number of steps "
            f"({threads(LRA, 16, 17, 21, 33)}): report the protocol with every score.",
        ),
        example={"min_length": 20, "max_length": 60},
    ),
    "text": Notes(
        files="the archive `aclImdb_v1.tar.gz`, its folder `aclImdb`, or a folder with "
        "`train.parquet` and `test.parquet`",
        pitfalls=(
            "The data set has no validation split. Published scores come from the last checkpoint "
            f"or were selected on test ({threads(LRA, 22)}).",
            "The length is 1,000 in the code of Long Range Arena, the best of 1K to 4K in its "
            f"paper, and 4K in Nystromformer ({threads(NYSTROM, 13, 18)}): report it with every "
            "score.",
        ),
    ),
    "retrieval": Notes(
        files=f"{RELEASE}; a folder with `new_aan_pairs.{{train,eval,test}}.tsv`, each optionally "
        "with `.gz`; or a folder with `papers.parquet` and `pairs.{train,eval,test}.tsv`",
        pitfalls=(
            "The first release contained no texts, and its links to the anthology are dead "
            f"({threads(LRA, 1, 18, 45, 52)}); the texts are in `lra_release.gz`.",
            "The tables have no header and no quoting: a reader that interprets quotes merges "
            "lines.",
            "The same model differs by 20 points between recipes "
            f"({threads(LRA, 18)}, {threads(NYSTROM, 1)}): compare within one protocol only.",
        ),
    ),
    "image": Notes(
        files="the archive `cifar-10-python.tar.gz`, its folder `cifar-10-batches-py`, or a folder "
        "with `train.parquet` and `test.parquet`",
        pitfalls=(
            "Most implementations mask id 0 as padding, and with it every black pixel. Here every "
            "pixel is real.",
            "The sizes of the published models differ by more than the rules allow: the "
            f"Transformer has 52,266 parameters, the Performer 248,458 ({threads(LRA, 2)}).",
            "Copies in JPEG have different pixels; the data card names the kind that was read.",
        ),
    ),
    "pathfinder": Notes(
        files=f"{RELEASE}; or a folder `pathfinder32`",
        pitfalls=(
            "The paper does not say which of the three difficulty levels the task uses; it is the "
            f"hardest, `curv_contour_length_14` ({threads(LRA, 11)}, {threads(NYSTROM, 12)}).",
            "With the published configurations, users report models that stay at 50 % "
            f"({threads(LRA, 37, 41, 60)}, {threads(MEGA, 3)}).",
            "Most pixels of an image are black, and most implementations mask them as padding. "
            "Here every pixel is real.",
        ),
    ),
    "path_x": Notes(
        files=f"{RELEASE}; or a folder `pathfinder128`",
        pitfalls=(
            "The release contains `pathfinder128` twice. The outer copy is reported to be "
            f"unlearnable ({threads(LRA, 38)}) and is rejected here.",
            f"Settings for 256 x 256 were never published ({threads(LRA, 56)}, "
            f"{threads(MEGA, 15)}).",
        ),
    ),
    "recall": Notes(example={"length": 24, "pairs": 4, "vocabulary": 32}),
    "copying": Notes(example={"length": 32, "count": 4}),
}
