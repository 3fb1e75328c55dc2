"""Models of experiments: configuration, construction, parameter and FLOP counts."""

import dataclasses
from typing import Any

import torch
from transformers import GenerationConfig

from longspan.arena.experiment import Experiment
from longspan.attention import MECHANISMS, options_of
from longspan.attention.allocation import sizes_alone
from longspan.config import EvaluationConfig, MechanismConfig, RunConfig, StartConfig
from longspan.errors import OptionError
from longspan.models import LongspanConfig, LongspanPreTrainedModel
from longspan.models.heads.sequence_classification import LongspanClassifier
from longspan.results import BASELINE
from longspan.space import check_memory
from longspan.tasks import TASKS, Task

TRAINING_COPIES = 4  # weights, gradients, and two moments of AdamW


def model_config(config: RunConfig, task: Task) -> LongspanConfig:
    """Return the configuration of a run's model; the task need not be open.

    Raises:
        OptionError: a value is invalid; the message lists every reason.
        UnknownNameError: there is no such choice or backend; the message suggests near names.
    """
    start = config.start
    if start is not None:
        _check_start(start, task)
    elif config.model.adaptive_cutoffs:
        _check_frequencies(task)
    if config.training.word_vectors != "random":
        _check_word_vectors(config, task)
    fields = {
        "vocab_size": max(task.vocab_size, start.vocabulary if start else 0),
        "input_features": task.input_features,
        "max_position_embeddings": max(task.length, start.positions if start else 0),
        "attention": config.mechanism.name,
        "attention_options": dict(config.mechanism.options),
        "attention_backend": config.mechanism.backend,
        **dataclasses.asdict(config.model),
        "adaptive_cutoffs": list(config.model.adaptive_cutoffs),
        "is_decoder": config.model.is_decoder or _starts_as(start, "is_decoder"),
        **_decoder_fields(task, start),
        **task.model_fields,
    }
    model = LongspanConfig(**{**(start.fields or {} if start else {}), **fields})
    _check_state(model, task)
    if not issubclass(task.head, LongspanClassifier):
        return model
    model.num_labels = task.num_classes
    if task.is_regression:
        model.problem_type = "regression"
    else:
        # Checkpoints then name their classes wherever transformers loads them.
        model.id2label = {label: task.class_name(label) for label in range(task.num_classes)}
        model.label2id = {name: label for label, name in model.id2label.items()}
    return model


def _check_state(model: LongspanConfig, task: Task) -> None:
    """Refuse a limit of positions for a state that passes from segment to segment."""
    if not task.keeps_state(model.attention_names) or not model.limits_length:
        return
    name, what = model.attention_names[0], f"model.position={model.position_encoding}"
    remedy = "set model.position=rotary or sinusoidal, or task.keep_state=none"
    if any("max_length" in traits.sizes for traits in model.layer_traits):
        what, remedy = f"the table of {name} by position", "set task.keep_state=none"
    raise OptionError(
        f"{what} ends at {model.max_position_embeddings} tokens, but the state of {name} passes "
        f"from segment to segment (task.keep_state), as far as documents go; {remedy}"
    )


def _decoder_fields(task: Task, start: StartConfig | None) -> dict[str, Any]:
    """Return the fields of a model's decoder: that of the checkpoint, or one for the task."""
    if (target := _target_length(task)) is None:
        return {"is_encoder_decoder": False}
    new_decoder = {"decoder_overrides": {"max_position_embeddings": target}}
    has_decoder = _starts_as(start, "is_encoder_decoder")
    return {"is_encoder_decoder": True, **({} if has_decoder else new_decoder)}


def _target_length(task: Task) -> int | None:
    """Return the maximum number of tokens of the decoder; None: the task has none."""
    return task.input_shapes.get("decoder_input_ids", (None,))[0]


def _starts_as(start: StartConfig | None, kind: str) -> bool:
    """Return whether a run starts from a checkpoint of a kind, such as is_decoder."""
    return start is not None and bool((start.fields or {}).get(kind))


def _decoder_refusal(start: StartConfig, task: Task) -> str | None:
    """Return the reason why a checkpoint's decoder is too short for the targets, or None."""
    if (target := _target_length(task)) is None or not _starts_as(start, "is_encoder_decoder"):
        return None
    overrides = (start.fields or {}).get("decoder_overrides", {})
    positions = overrides.get("max_position_embeddings", start.positions)
    if target <= positions:
        return None
    return (
        f"targets of {task.info.name} have up to {target} tokens, the "
        f"checkpoint's decoder {positions} positions; set {task.info.name}.task.target_length="
        f"{positions}, or less"
    )


def _check_start(start: StartConfig, task: Task) -> None:
    """Refuse a checkpoint for fewer tokens or ids than the task has."""
    reasons = []
    lengths = (
        f"{task.info.name} has up to {task.length} tokens, the checkpoint {start.positions} "
        "positions"
    )
    if task.length > start.positions and start.extend_positions is None:
        remedies = (
            "copy positions with --extend-positions tile",
            f"lengthen it with longspan longify CHECKPOINT --max-length {task.length} "
            "--output FOLDER",
        )
        if start.checkpoint is None:
            remedies = (
                f"copy positions with {task.info.name}.start.extend_positions=tile",
                f"give {start.task} the length {task.length}",
            )
        shorter = f"set {task.info.name}.task.length={start.positions}"
        reasons.append(f"{lengths}; {', '.join(remedies)}, or {shorter}")
    if task.length <= start.positions and start.extend_positions is not None:
        reasons.append(
            f"{lengths}, so there is nothing to extend; omit extend_positions, or raise task.length"
        )
    if reason := _decoder_refusal(start, task):
        reasons.append(reason)
    num_ids = task.vocab_size - task.num_added_tokens
    if task.input_features is None and num_ids > start.vocabulary:
        reasons.append(
            f"{task.info.name} has {num_ids} token ids, the checkpoint {start.vocabulary}; "
            "encode the task with the checkpoint's tokenizer"
        )
    if reasons:
        raise OptionError("; ".join(reasons))


def _check_frequencies(task: Task) -> None:
    """Refuse clusters of words for a task whose ids are not in the order of frequency."""
    if task.sorts_by_frequency:
        return
    able = sorted(name for name, cls in TASKS.items() if cls.sorts_by_frequency)
    raise OptionError(
        f"model.adaptive_cutoffs require ids in the order of decreasing frequency, which "
        f"{task.info.name} does not have; use one of {', '.join(able)}, or set them to []"
    )


def _check_word_vectors(config: RunConfig, task: Task) -> None:
    """Refuse vectors of words where a checkpoint has them, or the model has no table of them.

    Raises:
        OptionError: the message names what the run has instead.
    """
    other = None
    if config.start is not None:
        other = "the run starts from a checkpoint, whose embeddings it keeps"
    elif task.input_features is not None:
        other = f"the inputs of {task.info.name} are numbers"
    elif config.model.adaptive_cutoffs:
        other = "model.adaptive_cutoffs give words several tables"
    if other:
        raise OptionError(
            f"training.word_vectors={config.training.word_vectors} makes a table of embeddings, "
            f"but {other}; set training.word_vectors=random"
        )


def make_model(experiment: Experiment, task: Task) -> LongspanPreTrainedModel:
    """Build a model, randomly initialized with the experiment's seed.

    Raises:
        NoMemoryError: the weights are larger than the available memory.
    """
    check_weights(experiment.config, task)
    config, cls = model_config(experiment.config, task), task.head
    config.architectures = [cls.__name__]  # as save_pretrained writes, so that checkpoints name it
    # Weights are initialized on the CPU, so generators of other devices keep their state.
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(experiment.seed)
        model = cls(config)
    if task.generation is not None:
        # Checkpoints then generate as they were scored.
        model.generation_config = GenerationConfig(**task.generation)
    return model


def check_weights(config: RunConfig, task: Task, copies: int = 1, device: str = "cpu") -> None:
    """Refuse a model whose weights cannot fit into memory; activations are not counted.

    Args:
        config: configuration of the run.
        task: its task, which need not be open.
        copies: number of tensors of the size of the weights, such as `TRAINING_COPIES`.
        device: type of the device, cpu or cuda.

    Raises:
        NoMemoryError: they cannot fit.
    """
    check_parameters(config.mechanism.name, num_parameters(config, task), copies, device)


def check_parameters(mechanism: str, parameters: int, copies: int, device: str) -> None:
    """Refuse a number of parameters that cannot fit into memory; see `check_weights`."""
    what = f"{mechanism} with {parameters:,} parameters" + (
        ", their gradients and AdamW's moments" if copies == TRAINING_COPIES else ""
    )
    needed = copies * parameters * torch.get_default_dtype().itemsize
    available = free_cuda_memory() if device == "cuda" else None
    check_memory(needed, what, "choose a smaller model or smaller options", available)


def free_cuda_memory() -> int:
    """Return the bytes that tensors of this process can still take on the CUDA device."""
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return torch.cuda.mem_get_info()[0] + unused


def forward_flops(config: RunConfig, task: Task) -> int:
    """Return the forward FLOPs of one example of the task's length; see `Head.flops`."""
    with sizes_alone():
        return task.head.flops(model_config(config, task), task.input_shapes)


def num_parameters(config: RunConfig, task: Task) -> int:
    """Count the parameters of a run's model, without allocating them."""
    with sizes_alone():
        return task.head(model_config(config, task)).num_parameters(only_trainable=True)


def is_dense(config: RunConfig, task: Task) -> bool:
    """Return whether every layer of the mechanism is full attention on the task's tokens."""
    with sizes_alone():
        model = task.head(model_config(config, task))
    length = model.config.sequence_length(task.length)
    mechanism = MECHANISMS[config.mechanism.name]
    return all(x.is_dense(length) for x in model.modules() if isinstance(x, mechanism))


def full_num_parameters(config: RunConfig, task: Task) -> int:
    """Count the parameters of the same model around the baseline mechanism."""
    return num_parameters(with_baseline(config), task)


def with_baseline(config: RunConfig) -> RunConfig:
    """Return the configuration of the same model around the baseline mechanism."""
    baseline = MechanismConfig(name=BASELINE, options=options_of(BASELINE))
    # Stages and evaluations may change options that the baseline lacks, and no parameters.
    training = dataclasses.replace(config.training, stages=())
    return dataclasses.replace(
        config, mechanism=baseline, training=training, evaluation=EvaluationConfig()
    )
