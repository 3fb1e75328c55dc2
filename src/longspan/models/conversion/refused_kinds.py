"""Model types of transformers that are not converted: what to do with each."""

from typing import Any

from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
)

# Nearest family by the first of the lists of transformers that has the type.
LISTS = {
    "bart": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    "bert": MODEL_FOR_MASKED_LM_MAPPING,
    "gpt2": MODEL_FOR_CAUSAL_LM_MAPPING,
}
DISENTANGLED = "its scores have products of contents and positions (disentangled attention)"
GROUPED = "its heads may share keys and values, and its norms are root mean squares"
REASONS = {
    "deberta": DISENTANGLED,
    "deberta-v2": DISENTANGLED,
    **dict.fromkeys(("gemma", "gemma2", "llama", "mistral", "phi3", "qwen2", "qwen3"), GROUPED),
    "xlnet": "its two streams permute the order of prediction",
    "funnel": "it pools the states between layers",
    "fnet": "its layers have Fourier transforms in place of attention",
}


def describe_refusal(kind: str | None) -> str:
    """Return why a model type is not converted, the nearest family that is, and the remedy.

    Args:
        kind: `model_type` of a source.
    """
    if kind is None or kind not in CONFIG_MAPPING:
        return "which transformers does not know; check config.json"
    config: Any = CONFIG_MAPPING[kind]
    parts = [f"which is not converted: {REASONS[kind]}"] if kind in REASONS else []
    parts = parts or ["which is not converted"]
    nearest = next((family for family, models in LISTS.items() if config in models), None)
    if nearest is None:
        parts.append("it is no language model, and no family is near")
    else:
        parts.append(f"the nearest family that is converted is {nearest}")
    return "; ".join([*parts, _remedy(config)])


def _remedy(config: Any) -> str:
    """Return what to do with a model that keeps its class."""
    try:
        found: Any = MODEL_MAPPING.get(config, None)
    except ValueError:  # transformers lists classes that it does not have
        found = None
    classes = found if isinstance(found, tuple | list) else (found,)
    if all(getattr(cls, "_supports_sdpa", False) for cls in classes):
        return (
            "keep its own class and replace its attention: "
            "longspan.swap(AutoModel.from_pretrained(SOURCE), MECHANISM)"
        )
    return "longspan.swap cannot replace its attention, which calls no AttentionInterface"
