"""Export of a finished run as a folder for the Hugging Face hub."""

import copy
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from longspan.arena.finished_run import evaluation_options, load_run
from longspan.arena.paths import RunPaths
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.files import check_new_folder
from longspan.models.heads.sequence_classification import LongspanClassifier
from longspan.publishing.hub_folder import write_hub_folder
from longspan.publishing.model_card import make_model_card
from longspan.publishing.served_folder import Serving, scored_threshold
from longspan.publishing.usage import example_of_use
from longspan.tasks.base import Task
from longspan.tasks.documents.own_texts import OwnTexts
from longspan.tasks.encoded_text import EncodedTextTask
from longspan.tasks.language.corpora import CorpusTask
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.pieces import PieceTask
from longspan.tokenizers import make_fast_tokenizer
from longspan.tokenizers.streams import make_stream_tokenizer
from longspan.training.arguments import takes_global_tokens


def export_run(record: Path, folder: Path, paths: RunPaths, *, license: str | None = None) -> Path:
    """Write the selected model of a run as a folder for the hub; return the folder.

    It has the weights, the code, a model card with the scores of the record and, for tasks of
    texts and language models, the tokenizer. Predicted numbers are in units of the file. The
    mechanism has the options of the run's evaluations.

    Args:
        record: record of a finished run.
        folder: folder to create.
        paths: folders of the run's data.
        license: identifier of the model's license; None: that of the data, where it has one.

    Raises:
        DataError: the record, the model or the data is absent, or the data differs.
        OptionError: the folder exists, or a class of the model cannot be imported from a file.
        UnknownNameError: a plug-in that registers the mechanism or the task is not loaded.
        RunError: the folder cannot be written.
    """
    check_new_folder(folder)
    run = load_run(record, paths)
    task, model = run.task, run.model
    if isinstance(task, OwnTexts) and task.is_regression:
        _write_units(cast(LongspanClassifier, model), task)
    if getattr(task.options, "global_tokens", None) == "first" and takes_global_tokens(model):
        # Pipelines of transformers pass no mask of global tokens.
        model.config.default_global_tokens = "first"
    tokenizer = _make_tokenizer(task)
    usage = example_of_use(model, task, has_tokenizer=tokenizer is not None)
    card = make_model_card(run.result, task, usage=usage, license=license)
    serving = None
    if isinstance(task, EncodedTextTask) and isinstance(model, LongspanClassifier):
        described = getattr(task, "description", None)
        kept = task.head_and_tail
        serving = Serving(
            columns=dict(getattr(described, "columns", {})),
            threshold=scored_threshold(record),
            kept=None if kept is None else list(kept),
            global_tokens=task.options.global_tokens,
        )
    options = cast("dict[str, Any]", model.config.attention_options)  # a run has one mechanism
    options |= run.result.effective_config.evaluation_changes
    with evaluation_options(run.result, model).applied("test"):  # with random draws of these
        return write_hub_folder(model, folder, tokenizer=tokenizer, card=card, serving=serving)


@torch.no_grad()
def _write_units(model: LongspanClassifier, task: OwnTexts) -> None:
    """Let a model of standardized numbers return numbers in units of the file.

    Where it is served, mean and deviation of the training texts are not known.
    """
    output, model.config.classifier_bias = model.classifier.output, True
    bias = output.weight.new_zeros(1) if output.bias is None else output.bias
    output.bias = nn.Parameter(task.predicted_numbers(bias[:, None]).to(bias.dtype))
    output.weight *= task.description.deviation


def _make_tokenizer(task: Task) -> PreTrainedTokenizerFast | None:
    """Return the tokenizer of a task's texts, limited to its length; None: it has no texts."""
    if isinstance(task, StreamTask):
        return make_stream_tokenizer(task.vocabulary)
    if not isinstance(task, EncodedTextTask | PieceTask | CorpusTask):
        return None
    vocabulary = task.tokenizer
    if not isinstance(vocabulary, WordPieceTokenizer):
        return make_fast_tokenizer(vocabulary, max_length=task.length)
    # The tokenizer is shared by all tasks of the process.
    tokenizer = copy.deepcopy(vocabulary.fast)
    # As tasks encode texts. Corpora do too, but pipelines fill their [MASK].
    reading = {
        "model_max_length": task.length,
        "padding_side": "right",
        "truncation_side": "right",
        "split_special_tokens": not isinstance(task, CorpusTask),
    }
    for name, value in reading.items():
        setattr(tokenizer, name, value)
    tokenizer.init_kwargs |= reading  # what `save_pretrained` writes
    return tokenizer
