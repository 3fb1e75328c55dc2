"""Tiny random checkpoints of transformers' long encoders, as sources of `convert`."""

import torch
import transformers
from transformers import LongformerConfig, PreTrainedModel

VOCABULARY, LENGTH, SEPARATOR, PADDING = 40, 64, 2, 1
LONGFORMER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "type_vocab_size": 2,
    "max_position_embeddings": LENGTH + 2,  # positions begin after the padding's row
    "attention_window": [4, 8],
    "sep_token_id": SEPARATOR,
    "pad_token_id": PADDING,
}


def make_longformer(name: str = "LongformerForMaskedLM", **fields) -> PreTrainedModel:
    """Return a model whose every parameter affects the outputs."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(LongformerConfig(**{**LONGFORMER, **fields})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def make_texts(padding: str = "right", length: int = 30) -> dict[str, torch.Tensor]:
    """Return ids, mask and types of three texts with three separators each, padded on a side.

    Args:
        padding: "right", "left", or "inside": after the first tokens too.
        length: number of positions.
    """
    torch.manual_seed(1)
    ids = torch.randint(5, VOCABULARY, (3, length))
    ids[:, [10, 11, 16]] = SEPARATOR
    mask = torch.ones_like(ids)
    mask[1, 22:], mask[2, 18:] = 0, 0
    if padding == "left":
        ids, mask = (
            torch.stack(
                [row.roll(int((real == 0).sum())) for row, real in zip(x, mask, strict=True)]
            )
            for x in (ids, mask)
        )
    if padding == "inside":
        mask[:, 3:5] = 0
    ids[mask == 0] = PADDING
    types = (torch.arange(length) >= length // 2).long().expand(3, length)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def make_global_mask(mask: torch.Tensor) -> torch.Tensor:
    """Return a different number of global tokens in each text, one of them at padding."""
    chosen = torch.zeros_like(mask)
    chosen[0, [0, 8, 29]], chosen[1, 13] = 1, 1
    chosen[2, mask[2].argmin()] = 1
    return chosen
