"""Named suites: the layer, the published tables and figures of speed, and decoding."""

import dataclasses
from collections.abc import Callable
from typing import Any

from longspan.arena.protocols import get
from longspan.attention import MECHANISMS
from longspan.attention.build import options_of
from longspan.bench.cases import BACKEND, IDENTITY, SCOPES
from longspan.bench.suite import Suite
from longspan.config import RunConfig
from longspan.results import BASELINE
from longspan.results.efficiency import Sizes

ALL = (BASELINE, *sorted(MECHANISMS.keys() - {BASELINE}))
LRA = "lra-paper"  # protocol with the model of the byte-text task
_LRA_LENGTHS = (1_000, 2_000, 3_000, 4_000)
_DOUBLINGS = tuple(2**n for n in range(9, 18))  # 512 to 131,072


def layer() -> Suite:
    """Return a training step of a layer of every mechanism."""
    return Suite(name="layer", mechanisms=(*ALL, IDENTITY))


def scopes() -> Suite:
    """Return operator, layer and model in every pass at one length."""
    return Suite(
        name="scopes",
        mechanisms=(*ALL, IDENTITY),
        scopes=SCOPES,
        works=("forward", "training", "inference"),
        lengths=(1_024, 4_096),
    )


def _lra_speed() -> Suite:
    """Return training and inference of LRA's byte-text model (Tay et al. 2021, table 2).

    Options of the mechanisms are those of the protocol `lra-paper`, batches have 32 rows.
    """
    config = _lra_config(BASELINE)
    model = config.model
    sizes = Sizes(
        hidden_size=model.hidden_size,
        heads=model.num_attention_heads,
        intermediate_size=model.intermediate_size,
        layers=model.num_hidden_layers,
    )
    return Suite(
        name="lra-speed",
        mechanisms=ALL,
        scopes=("model",),
        works=("training", "inference"),
        lengths=_LRA_LENGTHS,
        batch_size=config.training.batch_size,
        sizes=sizes,
        options=lambda mechanism, length: dict(_lra_config(mechanism).mechanism.options),
        runs=3,
    )


def scaling() -> Suite:
    """Return forward and training passes against the length, until memory ends.

    As in the figures of speed of Choromanski et al. 2021, Beltagy et al. 2020, Wang et al. 2020.
    """
    return Suite(
        name="scaling",
        mechanisms=(*ALL, IDENTITY),
        works=("inference", "training"),
        lengths=_DOUBLINGS,
        batch_size=1,
        runs=3,
    )


def windows() -> Suite:
    """Return windows of 256 keys on each side by several implementations (Beltagy et al. 2020).

    Figure 1 of the paper compares full attention, one diagonal at a time ("loop"), blocks
    ("chunks") and a kernel. Backends that the device does not have are refused.
    """
    bodies = ("diagonals", "torch", "flex", "varlen")
    return Suite(
        name="windows",
        mechanisms=(BASELINE, *(f"local{BACKEND}{body}" for body in bodies)),
        scopes=("operator",),
        works=("inference", "training"),
        lengths=_DOUBLINGS,
        batch_size=1,
        options=lambda mechanism, length: (
            {"window": 256} if "window" in options_of(mechanism) else {}
        ),
        runs=3,
    )


def decoding() -> Suite:
    """Return the decoding of one token after prefixes of several lengths."""
    causal = tuple(name for name in ALL if MECHANISMS[name].traits.causal)
    return Suite(
        name="decoding",
        mechanisms=causal,
        scopes=("layer", "model"),
        works=("decoding",),
        lengths=(1_024, 4_096, 16_384),
        runs=20,
    )


SUITES: dict[str, Callable[[], Suite]] = {
    "layer": layer,
    "scopes": scopes,
    "lra-speed": _lra_speed,
    "scaling": scaling,
    "windows": windows,
    "decoding": decoding,
}


def change_suite(suite: Suite, changes: dict[str, Any]) -> Suite:
    """Return a suite with other fields; fields that are None stay.

    Given mechanisms follow the baseline, which ratios need. `hidden_size`, `heads`,
    `intermediate_size` and `layers` are those of its sizes. Lengths do not fix the batch: give
    `tokens` or `batch_size`.

    Raises:
        OptionError: a value is out of range; `UnknownNameError`: a name is unknown.
    """
    values = {name: x for name, x in changes.items() if x is not None}
    if "mechanisms" in values:
        values["mechanisms"] = tuple(dict.fromkeys((BASELINE, *values["mechanisms"])))
    fields = {field.name for field in dataclasses.fields(Sizes)}
    size_values = {name: values.pop(name) for name in list(values) if name in fields}
    if "tokens" in values:
        values.setdefault("batch_size", None)
    sizes = dataclasses.replace(suite.sizes, **size_values)
    return dataclasses.replace(suite, sizes=sizes, **values)


def _lra_config(mechanism: str) -> RunConfig:
    return get(LRA).experiment("text", mechanism, 0).config
