"""What the pages of tasks say beyond the code: which files are read, and what others ran into."""

import dataclasses
from typing import Any

LRA = "https://github.com/google-research/long-range-arena"
NYSTROM = "https://github.com/mlpen/Nystromformer"
MEGA = "https://github.com/facebookresearch/mega"


def threads(repository: str, *numbers: int) -> str:
    name = repository.rpartition("/")[2]
    return ", ".join(f"[{name} #{n}]({repository}/issues/{n})" for n in numbers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes:
    files: str = ""  # what PATH of `longspan data import` may be
    pitfalls: tuple[str, ...] = ()
    example: dict[str, Any] = dataclasses.field(default_factory=dict)  # options of the example


RELEASE = f"the archive `lra_release.gz` ({LRA}; 8 GB), unpacked or not, in any of its nestings"

NOTES = {
    "listops": Notes(
        files=f"{RELEASE}; or a folder with `basic_train.tsv`, `basic_val.tsv` and "
        "`basic_test.tsv`, each with `.gz` or without",
        pitfalls=(
            "The released reader numbers the symbols in an order that depends on the hash seed of "
            "the Python process: a restored checkpoint sees other symbols, which may be why users "
            f"got 17 % at test ({threads(LRA, 15, 60)}). Here the ids are fixed.",
            "The source text is written with parentheses, about three times as many tokens as are "
            "read. Bounds on the length count operators, digits and closing brackets alone.",
            "Paper and code disagree about the size of the model and the number of steps "
            f"({threads(LRA, 16, 17, 21, 33)}): a score needs its protocol beside it.",
        ),
        example={"min_length": 20, "max_length": 60},
    ),
    "text": Notes(
        files="the archive `aclImdb_v1.tar.gz`, its folder `aclImdb`, or a folder with "
        "`train.parquet` and `test.parquet`",
        pitfalls=(
            "The set has no validation split. Published scores are of the last checkpoint or were "
            f"selected on test ({threads(LRA, 22)}).",
            "The length is 1,000 in the code of Long Range Arena, the best of 1K to 4K in its "
            f"paper, and 4K in Nystromformer ({threads(NYSTROM, 13, 18)}): name it with the score.",
        ),
    ),
    "retrieval": Notes(
        files=f"{RELEASE}; a folder with `new_aan_pairs.{{train,eval,test}}.tsv`, each with `.gz` "
        "or without; or a folder with `papers.parquet` and `pairs.{train,eval,test}.tsv`",
        pitfalls=(
            "The first release held no texts, and links to the anthology are dead "
            f"({threads(LRA, 1, 18, 45, 52)}); the texts are in `lra_release.gz`.",
            "The tables have no header and no quoting: a reader that honours quotes joins lines.",
            "The recipe moves the same model by 20 points "
            f"({threads(LRA, 18)}, {threads(NYSTROM, 1)}): compare within a protocol only.",
        ),
    ),
    "image": Notes(
        files="the archive `cifar-10-python.tar.gz`, its folder `cifar-10-batches-py`, or a folder "
        "with `train.parquet` and `test.parquet`",
        pitfalls=(
            "Most code masks id 0 as padding, and with it every black pixel. Here all are real.",
            "The sizes of the published models differ by more than the rules allow: 52,266 "
            f"parameters of the Transformer, 248,458 of the Performer ({threads(LRA, 2)}).",
            "Copies in JPEG have other pixels; the card of a set says which kind was read.",
        ),
    ),
    "pathfinder": Notes(
        files=f"{RELEASE}; or a folder `pathfinder32`",
        pitfalls=(
            "Which of the three levels is the task was left open; it is the hard one, "
            f"`curv_contour_length_14` ({threads(LRA, 11)}, {threads(NYSTROM, 12)}).",
            "Users found models that stay at 50 % with the configurations that were published "
            f"({threads(LRA, 37, 41, 60)}, {threads(MEGA, 3)}).",
            "Black pixels are most of an image, and most code masks them as padding. Here all are "
            "real.",
        ),
    ),
    "path_x": Notes(
        files=f"{RELEASE}; or a folder `pathfinder128`",
        pitfalls=(
            "The release holds `pathfinder128` twice; the outer copy is reported unlearnable "
            f"({threads(LRA, 38)}) and is refused here.",
            f"Settings for 256 x 256 were never published ({threads(LRA, 56)}, "
            f"{threads(MEGA, 15)}).",
        ),
    ),
    "recall": Notes(example={"length": 24, "pairs": 4, "vocabulary": 32}),
    "copying": Notes(example={"length": 32, "count": 4}),
}
