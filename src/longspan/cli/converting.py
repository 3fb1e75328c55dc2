"""`longspan longify` and `longspan convert`: checkpoints of transformers in our classes."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.common import Json, parse_changes, print_json, print_table, print_text
from longspan.cli.plugins import Imports
from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.models import Conversion
    from longspan.models.conversion.weights import ConvertedWeight

LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # number of a layer in the name of a weight
COLUMNS = ("source", "target", "shape", "count", "action")


SourceModel = Annotated[
    str, typer.Argument(help="Folder of a checkpoint, or its name on the Hugging Face Hub.")
]
Target = Annotated[Path, typer.Option("--out", help="Folder to write.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--set", help="Option of the mechanism: window=256. Repeatable."),
]
PositionMethod = Annotated[
    str | None,
    typer.Option(
        help="How positions are extended: tile, keep or interpolate learned ones; keep or rescale "
        "rotary ones; continue sinusoidal ones; keep relative ones.",
        show_default="tile, continue or keep",
    ),
]
Freeze = Annotated[
    str, typer.Option(help="all-but-positions: train only the positions that the source lacks.")
]
DecoderLength = Annotated[
    int | None,
    typer.Option(help="Maximum number of tokens of a decoder.", show_default="that of the source"),
]
Dropped = Annotated[
    list[str] | None,
    typer.Option(help="Pattern of weights of the source to drop. Repeatable."),
]
New = Annotated[
    list[str] | None,
    typer.Option(help="Pattern of weights that the source may lack. Repeatable."),
]
Revision = Annotated[str | None, typer.Option(help="Revision of a source on the Hub.")]
Seed = Annotated[int, typer.Option(help="Seed of new weights.")]


def longify(
    source: SourceModel,
    max_length: Annotated[int, typer.Option(help="Maximum number of tokens of the encoder.")],
    out: Target,
    attention: Annotated[
        str | None,
        typer.Option(
            help="Mechanism of every layer of the encoder, `longspan list mechanisms`.",
            show_default="that of the source",
        ),
    ] = None,
    changes: Options = None,
    positions: PositionMethod = None,
    freeze: Freeze = "none",
    decoder_max_length: DecoderLength = None,
    drop: Dropped = None,
    new: New = None,
    revision: Revision = None,
    seed: Seed = 0,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Convert a pretrained model into a longer one, with the same attention or another.

    Sources are checkpoints of BERT, RoBERTa, DistilBERT, MPNet, ALBERT, ELECTRA, ModernBERT, GPT-2,
    BART, mBART, Pegasus, T5 (encoders), Longformer, LED, BigBird, Nystromformer and Reformer, also
    of sentence-transformers, and encoders of ours.
    The table accounts for every weight of the source and of the new model; * stands for the layers.
    """
    from longspan import models

    made = models.longify(
        source,
        attention=attention,
        max_length=max_length,
        out=out,
        options=parse_changes(changes),
        positions=positions,
        freeze=freeze,
        decoder_max_length=decoder_max_length,
        drop=drop or (),
        new=new or (),
        revision=revision,
        seed=seed,
    )
    _print_conversion(made, max_length, out, as_json)


def convert(
    source: SourceModel,
    out: Target,
    to: Annotated[
        str | None,
        typer.Option(
            help="Way back: model type of transformers, such as longformer, for a folder of ours."
        ),
    ] = None,
    drop: Dropped = None,
    new: New = None,
    revision: Revision = None,
    seed: Seed = 0,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint of transformers into a model of ours with the same outputs, or back.

    Sources are those of `longspan longify`. With --to, the source is a folder of ours, and the
    folder that is written loads with the class of transformers.
    """
    from longspan import models

    if to is None:
        made = models.convert(
            source, out=out, drop=drop or (), new=new or (), revision=revision, seed=seed
        )
        _print_conversion(made, made.model.config.max_position_embeddings, out, as_json)
        return
    if drop or new or revision:
        raise OptionError("--drop, --new and --revision are of sources of transformers; omit --to")
    _print_conversion(models.to_transformers(source, out, to=to), None, out, as_json)


def _print_conversion(made: "Conversion", length: int | None, out: Path, as_json: bool) -> None:
    """Print the table of the weights and a line, with the length of a model of ours."""
    if as_json:
        print_json(_describe(made, out))
        return
    print_table(COLUMNS, _merge_layers(made.weights), right=("count",))
    tokenizer = "tokenizer" if made.tokenizer else "no tokenizer: the source has none"
    tokens = f" for {length:,} tokens" if length else ""
    print_text(f"{type(made.model).__name__}{tokens}, {tokenizer}: {out}")


def _describe(made: "Conversion", out: Path) -> dict[str, Any]:
    weights = [weight._asdict() for weight in made.weights]
    return {"output": str(out), "class": type(made.model).__name__, "weights": weights}


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
