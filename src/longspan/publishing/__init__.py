"""Model folders for the Hugging Face hub: weights, code, tokenizer, model card; logs of records."""

from longspan.publishing.evaluation_log import evaluation_log, export_evaluation_logs
from longspan.publishing.export import export_run
from longspan.publishing.hub_folder import write_hub_folder

__all__ = ["evaluation_log", "export_evaluation_logs", "export_run", "write_hub_folder"]
