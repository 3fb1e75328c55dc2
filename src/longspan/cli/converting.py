"""`longspan longify | convert | export`: checkpoints of transformers in our classes, and back."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from longspan.cli.activity import Activity
from longspan.cli.common import err, print_json, print_table, print_text
from longspan.cli.options import (
    DataOptions,
    Json,
    Pairs,
    Record,
    Text,
    argument,
    field,
    option,
    options,
)
from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.models import Conversion
    from longspan.models.conversion.weights import ConvertedWeight

LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # number of a layer in the name of a weight
COLUMNS = ("source", "target", "shape", "count", "action")
SourceModel = Annotated[
    str, argument("Folder of a checkpoint, or its name on the Hugging Face Hub.")
]
Target = Annotated[Path, option("Folder to create.", flag="--output")]
Patterns = list[str] | None


@options
class WeightOptions:
    """Weights of a conversion, as keyword arguments of `longify` and `convert`."""

    drop: Patterns = field("Pattern of weights of the source to drop. Repeatable.")
    new: Patterns = field("Pattern of weights that the source may lack. Repeatable.")
    revision: Text = field("Revision of a source on the Hub.")
    seed: int = field("Seed of new weights.", default=0)

    def values(self) -> dict[str, Any]:
        """Return the keyword arguments."""
        return {**vars(self), "drop": self.drop or (), "new": self.new or ()}


def longify(
    source: SourceModel,
    max_length: Annotated[int, option("Maximum number of tokens of the encoder.")],
    out: Target,
    changes: Annotated[
        Pairs, option("Option of the mechanism: window=256. Repeatable.", flag="--set")
    ],
    weights: WeightOptions,
    attention: Text = field(
        "Mechanism of every layer of the encoder, `longspan list mechanisms`.",
        "that of the source",
        flag="--mechanism",
    ),
    positions: Text = field(
        "How positions are extended: tile, keep or interpolate learned ones; keep or "
        "rescale rotary ones; continue sinusoidal ones; keep relative ones.",
        "tile, continue or keep",
    ),
    freeze: str = field(
        "all-but-positions: train only those that the source lacks.", default="none"
    ),
    decoder_max_length: int | None = field(
        "Maximum number of tokens of a decoder.", "that of the source"
    ),
    as_json: Json = False,
) -> None:
    """Convert a pretrained model into a longer one, with the same attention or another.

    Sources are checkpoints of BERT, RoBERTa, DistilBERT, MPNet, ALBERT, ELECTRA, ModernBERT, GPT-2,
    BART, mBART, Pegasus, T5 (encoders), Longformer, LED, BigBird, Nystromformer and Reformer, also
    of sentence-transformers, and encoders of ours.
    The table accounts for every weight of the source and of the new model; * stands for the layers.
    """
    from longspan import models

    with Activity(err, f"converting {source}"):
        conversion = models.longify(
            source,
            attention=attention,
            max_length=max_length,
            out=out,
            options=changes,
            positions=positions,
            freeze=freeze,
            decoder_max_length=decoder_max_length,
            **weights.values(),
        )
    _print_conversion(conversion, max_length, out, as_json)


def convert(
    source: SourceModel,
    out: Target,
    weights: WeightOptions,
    to: str | None = field(
        "Way back: model type of transformers, such as longformer, for a folder of ours."
    ),
    as_json: Json = False,
) -> None:
    """Convert a checkpoint of transformers into a model of ours with the same outputs, or back.

    Sources are those of `longspan longify`. With --to, the source is a folder of ours, and the
    folder that is written loads with the class of transformers.
    """
    from longspan import models

    if to is None:
        with Activity(err, f"converting {source}"):
            conversion = models.convert(source, out=out, **weights.values())
        _print_conversion(conversion, conversion.model.config.max_position_embeddings, out, as_json)
        return
    if weights.drop or weights.new or weights.revision:
        raise OptionError("--drop, --new and --revision are of sources of transformers; omit --to")
    _print_conversion(models.to_transformers(source, out, to=to), None, out, as_json)


def export(
    record: Record,
    output: Annotated[Path, option("Folder to create.")],
    folders: DataOptions,
    license: str | None = field(
        "License of the model, such as apache-2.0.", "the data's, if known"
    ),
    as_json: Json = False,
) -> None:
    """Write the saved model of a run as a folder for the Hugging Face hub.

    The folder has the weights, the code that loads them where longspan is not installed, the
    tokenizer of a task of texts, and a model card with the scores. `hf upload NAME FOLDER` uploads
    it.
    """
    from longspan.publishing import export_run

    folder = export_run(record, output, folders.run_paths(device="cpu"), license=license)
    files = sorted(path.name for path in folder.iterdir())
    if as_json:
        print_json({"output": str(folder), "files": files})
    else:
        print_text(
            f"{len(files)} files in {folder}; upload them with: "
            f"hf upload NAME {shlex.quote(str(folder))}"
        )


def _print_conversion(
    conversion: "Conversion", length: int | None, out: Path, as_json: bool
) -> None:
    """Print the table of the weights and a line, with the length of a model of ours."""
    if as_json:
        print_json(_describe(conversion, out))
        return
    print_table(COLUMNS, _merge_layers(conversion.weights), right=("count",))
    tokenizer = "tokenizer" if conversion.tokenizer else "no tokenizer: the source has none"
    tokens = f" for {length:,} tokens" if length else ""
    print_text(f"{type(conversion.model).__name__}{tokens}, {tokenizer}: {out}")


def _describe(conversion: "Conversion", out: Path) -> dict[str, Any]:
    weights = [weight._asdict() for weight in conversion.weights]
    return {"output": str(out), "class": type(conversion.model).__name__, "weights": weights}


def _merge_layers(weights: Iterable["ConvertedWeight"]) -> list[tuple[str, ...]]:
    """Return one row for the same weight of all layers, with their number."""
    rows = Counter(
        (
            *(LAYER.sub("*", name or "-") for name in (weight.source, weight.target)),
            " x ".join(map(str, weight.shape)),
            LAYER.sub("*", weight.action),
        )
        for weight in weights
    )
    return [(*row[:3], str(count), row[3]) for row, count in rows.items()]
