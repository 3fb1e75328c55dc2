"""Model folders for the Hugging Face hub: weights, code, tokenizer, model card."""

from longspan.publishing.export import export_run
from longspan.publishing.hub_folder import write_hub_folder

__all__ = ["export_run", "write_hub_folder"]
