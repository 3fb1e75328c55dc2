"""Start of a run from a checkpoint: where it is, whether it fits, and its weights by name."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from longspan.arena.experiment import Experiment
from longspan.arena.lock import hold_lock
from longspan.arena.paths import RunPaths
from longspan.arena.run_state import read_state, write_state
from longspan.errors import DataError, OptionError, RunError
from longspan.files import file_sha256, read_json
from longspan.models import LongspanConfig, LongspanDualEncoder, LongspanPreTrainedModel
from longspan.results import FAILED, StartRecord, load_result
from longspan.tasks import Task, build
from longspan.tasks.vocabulary import describe_other_tokens
from longspan.training.checkpoint import WEIGHTS, Checkpoints
from longspan.training.checkpoint_pointer import saved_step

INDEX = f"{WEIGHTS}.index.json"
# Fields that decide what the weights compute. The others are of heads, of training, or of the
# mechanism, whose weights are checked by name and shape.
ARCHITECTURE = (
    *("type_vocab_size", "embedding_size", "scale_embedding", "input_features", "hidden_size"),
    *("num_hidden_layers", "num_attention_heads", "attention_head_size", "intermediate_size"),
    *("feed_forward", "linear_bias", "qkv_bias", "attention_output_bias", "hidden_act"),
    *("position_encoding", "axial_shape", "axial_widths", "rotary_base", "positions_skip_padding"),
    *("relative_attention_num_buckets", "relative_attention_max_distance", "relative_clamp"),
    *("stem", "norm", "norm_bias", "residual", "embedding_norm", "first_attention_norm"),
    *("layer_norm_eps", "is_decoder", "cross_attention", "is_encoder_decoder"),
)
MOST_NAMES = 5  # names of weights that one message lists


class Source(NamedTuple):
    """Checkpoint that a run starts from.

    Attributes:
        folder: folder with the configuration and the weights.
        name: folder as a record names it.
        record: record of the run that wrote it; None: a given checkpoint.
    """

    folder: Path
    name: str
    record: Path | None


def start_model(
    experiment: Experiment, model: LongspanPreTrainedModel, task: Task, paths: RunPaths
) -> StartRecord | None:
    """Load the weights that an experiment starts from; None where it starts from drawn ones.

    An interrupted run keeps the record of its start, and its own weights are loaded later.

    Raises:
        BusyError: another process trains the run that this one starts from.
        RunError: that run is not finished, its model is gone, or a resumed run would start from
            other weights than it did.
        OptionError: the checkpoint does not fit; the message lists the reasons.
        DataError: the checkpoint cannot be read.
    """
    start, run_dir = experiment.config.start, paths.run_dir(experiment)
    if start is None:
        return None
    state = read_state(run_dir)
    known = None if state is None else state.start
    if known is not None and saved_step(run_dir) is not None:
        return known
    source = find_source(experiment, paths)
    if source.record is not None:
        _check_tokens(source.record, task, paths)
    made = load_start(model, source)
    if known is not None and known.sha256 != made.sha256:
        raise RunError(
            f"{run_dir} started from other weights, {known.sha256[:12]}, than those of "
            f"{source.folder}, {made.sha256[:12]}; remove {run_dir} to start the run over"
        )
    return made


def record_start(run_dir: Path, start: StartRecord | None) -> None:
    """Add a start to the state of a run directory."""
    state = read_state(run_dir)
    if state is not None and state.start != start:
        write_state(run_dir, dataclasses.replace(state, start=start))


def find_source(experiment: Experiment, paths: RunPaths) -> Source:
    """Return the checkpoint that an experiment starts from.

    Raises:
        BusyError: another process trains the run that it starts from.
        RunError: that run is not finished, its model is gone, or the given checkpoint has changed.
        DataError: the model is damaged.
    """
    start = experiment.config.start
    assert start is not None
    if start.checkpoint is not None:
        return _given(experiment, start.checkpoint)
    folder = paths.source_folder / experiment.protocol / str(start.task)
    pattern = f"*-{start.run}-{experiment.seed}"
    found = [x for x in folder.glob(f"{pattern}.json") if not x.name.endswith(FAILED)]
    if not found:
        for run_dir in (folder / "work").glob(pattern):
            with hold_lock(run_dir, "run"):  # another process may train it now
                pass
        raise RunError(
            f"{experiment.name} starts from run {start.run} of {start.task} with seed "
            f"{experiment.seed}, which has no record in {folder}; run it first, or both with "
            f"longspan arena --protocol {experiment.protocol}"
        )
    record = found[0]
    best = Checkpoints(folder / "work" / record.stem).best()
    if best is None:
        raise RunError(f"{record} has no saved model beside it; run it again to start from it")
    return Source(best, best.relative_to(paths.source_folder).as_posix(), record)


def _given(experiment: Experiment, sha256: str) -> Source:
    """Return the given checkpoint, if its weights are those of the configuration."""
    folder = experiment.checkpoint
    if folder is None:
        raise RunError(
            f"{experiment.name} starts from a checkpoint with sha256 {sha256[:12]}, and no folder "
            "of it is known; name it"
        )
    if (found := weights_sha256(folder)) != sha256:
        raise RunError(
            f"the weights of {folder} have sha256 {found[:12]}, expected {sha256[:12]}; name the "
            "folder of the checkpoint that the configuration names"
        )
    return Source(folder, folder.as_posix(), None)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint's weights: one, or its shards.

    Raises:
        DataError: the folder has no weights in the format of safetensors.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise DataError(
            f"{folder} holds no {WEIGHTS}; name a folder of save_pretrained, such as longspan "
            "longify writes"
        )
    names = read_json(folder / INDEX)["weight_map"].values()
    return [folder / name for name in sorted(set(names))]


def weights_sha256(folder: Path) -> str:
    """Return the sha256 of a checkpoint's weights; of shards, that of their list.

    Raises:
        DataError: the folder has no weights.
    """
    digests = [file_sha256(file) for file in weight_files(folder)]
    return digests[0] if len(digests) == 1 else hashlib.sha256(str(digests).encode()).hexdigest()


def read_config(folder: Path) -> LongspanConfig:
    """Return the configuration of a checkpoint.

    Raises:
        DataError: it cannot be read, or is no configuration of this library.
    """
    content = read_json(folder / "config.json")
    if (kind := content.get("model_type")) != LongspanConfig.model_type:
        raise DataError(
            f"{folder} is a checkpoint of model_type {kind!r}, expected "
            f"{LongspanConfig.model_type!r}; convert it with longspan convert or longspan longify"
        )
    return LongspanConfig.from_pretrained(folder)


def load_start(model: LongspanPreTrainedModel, source: Source) -> StartRecord:
    """Load the weights of a checkpoint into a model by name; new ones keep their values.

    Raises:
        OptionError: they do not fit; the message lists the reasons.
        DataError: the checkpoint cannot be read.
    """
    folder = source.folder
    there = read_config(folder)
    if reasons := architecture_misfits(there, model.config):
        raise OptionError(f"{folder} has another architecture: {'; '.join(reasons)}")
    weights = _named_as(model, _read_weights(folder))
    state = model.state_dict()
    _check_shapes(folder, weights, state)
    model.load_state_dict({x: y for x, y in weights.items() if x in state}, strict=False)
    new = [name for name in state if name not in weights]
    if isinstance(model, LongspanDualEncoder) and model.document_model is not None:
        towers = [name for name in new if name.startswith("document_model.")]
        if towers:
            model.copy_query_tower()
            new = [name for name in new if name not in towers]
    _check_complete(folder, model, new)
    return StartRecord(
        source=source.name,
        sha256=weights_sha256(folder),
        new=new,
        dropped=[name for name in weights if name not in state],
        changed=_changed_fields(there, model.config),
    )


def architecture_misfits(there: LongspanConfig, here: LongspanConfig) -> list[str]:
    """Return the fields of two configurations that make weights of one useless in the other."""
    return [
        f"{name} is {getattr(there, name)!r} there, {getattr(here, name)!r} here"
        for name in ARCHITECTURE
        if getattr(there, name) != getattr(here, name)
    ]


def _changed_fields(there: LongspanConfig, here: LongspanConfig) -> dict[str, list]:
    """Return the other fields that differ, as JSON."""
    names = [name for name in LongspanConfig.__annotations__ if name not in ARCHITECTURE]
    pairs = {name: [getattr(there, name), getattr(here, name)] for name in names}
    return {name: json.loads(json.dumps(x)) for name, x in pairs.items() if x[0] != x[1]}


def _read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{file} cannot be read ({error}); write the checkpoint again") from (
                error
            )
    return weights


def _named_as(model: LongspanPreTrainedModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under the names of a model with a head, tied ones under all of theirs."""
    prefix = f"{model.base_model_prefix}."
    if not any(name.startswith(prefix) for name in weights):
        weights = {f"{prefix}{name}": x for name, x in weights.items()}
    tied = model.all_tied_weights_keys.items()
    return weights | {name: weights[source] for name, source in tied if source in weights}


def _check_shapes(folder: Path, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Refuse weights of other shapes than the model's.

    Raises:
        OptionError: there are some; the message lists the first ones.
    """
    shapes = {x: (tuple(y.shape), tuple(state[x].shape)) for x, y in weights.items() if x in state}
    wrong = [f"{x} is {a} there, {b} here" for x, (a, b) in shapes.items() if a != b]
    if wrong:
        raise OptionError(
            f"weights of {folder} have other shapes: {_list(wrong)}; use the options of the "
            "checkpoint's mechanism, or convert it with longspan longify"
        )


def _check_complete(folder: Path, model: LongspanPreTrainedModel, new: list[str]) -> None:
    """Refuse a checkpoint that lacks weights of the Transformer itself.

    Raises:
        OptionError: it does; the message lists the first ones.
    """
    inner = [name for name in new if name.startswith(f"{model.base_model_prefix}.")]
    if inner:
        raise OptionError(
            f"{folder} lacks weights of the Transformer: {_list(inner)}; convert it to "
            f"{model.config.attention_names[0]} with longspan longify, or keep its mechanism and "
            "pooling"
        )


def _list(items: list[str]) -> str:
    more = len(items) - MOST_NAMES
    return ", ".join(items[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _check_tokens(record: Path, task: Task, paths: RunPaths) -> None:
    """Refuse a run on a task whose token ids mean other tokens.

    Raises:
        OptionError: they do.
    """
    config = load_result(record).config.task
    source = build(config.name, config.options)
    if task.input_features is not None or not source.open_built(paths.cache):
        return
    if reason := describe_other_tokens(source, task):
        raise OptionError(
            f"{record.name} has another vocabulary than {task.info.name}: {reason}; give both "
            "tasks one tokenizer"
        )
