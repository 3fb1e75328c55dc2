"""Upgrade of analyses written under an older schema."""

import dataclasses
from typing import Any

import numpy as np

from longspan.errors import DataError
from longspan.results.packing import quantize
from longspan.results.rollout import pack_levels, pack_tokens

# Names of schema 2, and those of schema 1.
SPAN_FIELDS = {
    "samples": "samples",
    "available": "available",
    "mean_length": "mean_length",
    "uniform": "uniform",
    "negative": "negative",
    "mean": "span",
    "layers": "layers",
    "heads": "heads",
}


def upgrade_analysis(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of an analysis of schema 1 under schema 2.

    Schema 2 added models without attention weights and rollouts of several examples, and packs
    numbers. A matrix of cosines becomes vectors of which it is the product.

    Raises:
        DataError: a field is missing or malformed.
    """
    try:
        rollout = content.pop("rollout")
        spans = {new: content.pop(old) for new, old in SPAN_FIELDS.items()}
        return {
            **content,
            "spans": spans,
            "refusal": None,
            "positions": _factorize(content["positions"]),
            "tokens": _factorize(content["tokens"]),
            "rollouts": [_pack_rollout(rollout)] if rollout else [],
            "schema": 2,
        }
    except (KeyError, TypeError, ValueError, AttributeError, np.linalg.LinAlgError) as error:
        raise DataError(f"is not a valid analysis of schema 1 ({error!r})") from error


def _pack_rollout(rollout: dict[str, Any]) -> dict[str, Any]:
    levels, tokens, start = (rollout.pop(name) for name in ("levels", "tokens", "start"))
    return {
        **rollout,
        "part": 1,
        "start": start if start.startswith("token") else f"the {start}",
        "label": None,
        "prediction": None,
        "shares": dataclasses.asdict(quantize(rollout["shares"], 16)),
        "levels": None if levels is None else dataclasses.asdict(pack_levels(levels)),
        **({"text": None} if tokens is None else pack_tokens(tokens)),
    }


def _factorize(similarity: dict[str, Any] | None) -> dict[str, Any] | None:
    if similarity is None:
        return None
    values, axes = np.linalg.eigh(np.array(similarity["matrix"], np.float64))
    vectors = axes * np.sqrt(values.clip(0))
    return {
        "count": similarity["count"],
        "grid": similarity["grid"],
        "dimensions": len(vectors),
        "vectors": dataclasses.asdict(quantize(vectors, 16)),
    }
