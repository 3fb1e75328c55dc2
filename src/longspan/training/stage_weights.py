"""Weights of a checkpoint in a model: by name, with shapes checked, new and dropped ones listed."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan.config.architecture import declared
from longspan.errors import OptionError
from longspan.models import LongspanConfig, LongspanDualEncoder, LongspanPreTrainedModel
from longspan.models.conversion.family import POSITIONS
from longspan.models.conversion.positions import stretch_own_table
from longspan.models.conversion.source import read_tensors
from longspan.models.conversion.weights import matches, start_projections
from longspan.results import StartRecord
from longspan.training.checkpoint_folder import read_config
from longspan.wording import first_of

# Fields of an encoder-decoder that an encoder, from which it may start, does not have.
_OF_DECODERS = ("is_encoder_decoder",)


def load_checkpoint(
    model: LongspanPreTrainedModel,
    folder: Path,
    *,
    source: str = "",
    sha256: str = "",
    extend_positions: str | None = None,
    is_same_task: bool = False,
) -> StartRecord:
    """Load the weights of a checkpoint into the model of a stage; new ones keep their values.

    Weights of another mechanism than the checkpoint's are new, and so are buffers of another shape,
    such as hashes and random blocks: they are random, not trained. Projections for global tokens
    start as copies of those of their layers, as `longify` starts them.

    Args:
        model: model to change.
        folder: checkpoint of the stage before, of another run, or of a user.
        source: name of the folder in the record.
        sha256: of the weights, for the record.
        extend_positions: method of `longify` by which learned positions are extended to those of
            the model, where it has more; None: there must be as many.
        is_same_task: whether the checkpoint was trained on the task of the model, so that its head
            fits.

    Raises:
        OptionError: they do not fit; the message lists the reasons.
        DataError: the checkpoint cannot be read.
    """
    there, here, state = read_config(folder), model.config, model.state_dict()
    if reasons := find_architecture_refusals(there, here):
        raise OptionError(f"{folder} has another architecture: {'; '.join(reasons)}")
    weights = _named_as(model, read_tensors(folder), there)
    taken = _taken(weights, state, there, model, is_same_task)
    taken = _with_initial_rows(taken, state, there, here)
    extended = None
    if extend_positions is not None:
        extended = _extend_positions(taken, state, there, model, extend_positions)
    _check_shapes(folder, there, here, taken, state)
    model.load_state_dict(taken, strict=False)
    started = {} if there.attention == here.attention else start_projections(model, taken)
    new = [name for name in state if name not in taken]
    towers = {name for name in new if name.startswith("document_model.")}
    if towers and isinstance(model, LongspanDualEncoder):
        model.copy_query_tower()
        new = [name for name in new if name not in towers]
    _check_complete(folder, model, [x for x in new if x not in weights], there)
    return StartRecord(
        source=source,
        sha256=sha256,
        new=[name for name in new if name not in started],
        started=started,
        dropped=[name for name in weights if name not in taken],
        changed=_changed_fields(there, here),
        positions=extended,
    )


def find_architecture_refusals(there: LongspanConfig, here: LongspanConfig) -> list[str]:
    """Return the fields of two configurations that make weights of one useless in the other."""
    left_out = _OF_DECODERS if _is_encoder_of(there, here) else ()
    return [
        f"{name} is {there.resolve(name)!r} there, {here.resolve(name)!r} here"
        for name in declared(here, "weights")
        if name not in left_out and there.resolve(name) != here.resolve(name)
    ]


def _is_encoder_of(there: LongspanConfig, here: LongspanConfig) -> bool:
    """Return whether a checkpoint is an encoder, and the model an encoder-decoder."""
    return here.is_encoder_decoder and not (there.is_encoder_decoder or there.is_decoder)


def _changed_fields(there: LongspanConfig, here: LongspanConfig) -> dict[str, list]:
    """Return the other fields that differ, as JSON."""
    architecture = declared(LongspanConfig, "weights")
    names = [x for x in declared(LongspanConfig, "effect") if x not in architecture]
    pairs = {name: [getattr(there, name), getattr(here, name)] for name in names}
    return {name: json.loads(json.dumps(x)) for name, x in pairs.items() if x[0] != x[1]}


def _named_as(
    model: LongspanPreTrainedModel, weights: dict[str, Tensor], there: LongspanConfig
) -> dict[str, Tensor]:
    """Return weights under the names of a model with a head, tied ones under all of theirs.

    Those of an encoder have other names in an encoder-decoder; its head is no part of it, and keeps
    a name that the model does not have.
    """
    prefix = f"{model.base_model_prefix}."
    if not any(name.startswith(prefix) for name in weights):
        weights = {f"{prefix}{name}": x for name, x in weights.items()}
    if _is_encoder_of(there, model.config):
        weights = {
            f"{prefix}encoder.{x.removeprefix(prefix)}" if x.startswith(prefix) else f"head.{x}": y
            for x, y in weights.items()
        }
    tied = model.all_tied_weights_keys.items()
    return weights | {name: weights[source] for name, source in tied if source in weights}


def _taken(
    weights: dict[str, Tensor],
    state: dict[str, Any],
    there: LongspanConfig,
    model: LongspanPreTrainedModel,
    is_same_task: bool,
) -> dict[str, Tensor]:
    """Return the weights to load: without buffers of another shape, and heads of other outputs.

    The head of other classes or numbers says nothing about those of this task.
    """
    prefix, here = f"{model.base_model_prefix}.", model.config
    classes = [(x.problem_type, x.id2label) for x in (there, here)]
    keeps_head = classes[0] == classes[1] and here.problem_type != "regression"
    buffers = {name for name, _ in model.named_buffers()}

    def is_taken(name: str, x: Tensor) -> bool:
        fits = x.shape == state[name].shape
        if name in buffers and not fits:
            return False
        return is_same_task or name.startswith(prefix) or (keeps_head and fits)

    return {name: x for name, x in weights.items() if name in state and is_taken(name, x)}


def _with_initial_rows(
    weights: dict[str, Tensor], state: dict[str, Any], there: LongspanConfig, here: LongspanConfig
) -> dict[str, Tensor]:
    """Return weights with the model's own rows for token ids that the checkpoint does not have.

    These are markers that a task adds behind the ids of its tokenizer.
    """
    sizes = (there.vocab_size, here.vocab_size)
    if sizes[0] >= sizes[1]:
        return weights
    return {
        name: torch.cat((x, state[name][len(x) :].to(x.dtype)))
        if (len(x), len(state[name])) == sizes and x.shape[1:] == state[name].shape[1:]
        else x
        for name, x in weights.items()
    }


def _extend_positions(
    weights: dict[str, Tensor],
    state: dict[str, Any],
    there: LongspanConfig,
    model: LongspanPreTrainedModel,
    method: str,
) -> str | None:
    """Extend learned positions in place to those of the model; return what was done.

    The encoder and the decoder of one model have a table each. Other positions have no weights, and
    need no extension: None.
    """
    actions = []
    for part in ("", "encoder.", "decoder."):
        name = f"{model.base_model_prefix}.{part}{POSITIONS}"
        if name not in weights or name not in state:
            continue
        # A decoder with enough positions stays as it is; with too many, its shape is refused.
        if part == "decoder." and len(state[name]) <= len(weights[name]):
            continue
        weights[name], action = _extend_table(weights[name], state[name], there, method)
        actions.append(f"decoder: {action}" if part == "decoder." else action)
    return "; ".join(actions) or None


def _extend_table(
    table: Tensor, initial: Tensor, there: LongspanConfig, method: str
) -> tuple[Tensor, str]:
    """Return a table of learned positions with the rows of the initial one, and what was done."""
    if len(initial) < len(table):
        return table[: len(initial)], f"first {len(initial):,} of {len(table):,} rows"
    if method == "keep":
        # New rows are those of the random initialization, with the seed of the run.
        new = initial[len(table) :].to(table.dtype)
        return torch.cat((table, new)), f"copied, {len(new):,} new rows"
    first = there.max_sequence_length - there.max_position_embeddings
    return stretch_own_table(there, len(initial) - first, method, table)


def _check_shapes(
    folder: Path,
    there: LongspanConfig,
    here: LongspanConfig,
    weights: dict[str, Tensor],
    state: dict[str, Any],
) -> None:
    """Refuse weights of other shapes than the model's.

    Raises:
        OptionError: there are some; the message lists the first ones.
    """
    shapes = {x: (tuple(y.shape), tuple(state[x].shape)) for x, y in weights.items()}
    wrong = [f"{x} is {a} there, {b} here" for x, (a, b) in shapes.items() if a != b]
    if not wrong:
        return
    remedy = "use the options of the checkpoint's mechanism"
    lengths = [config.max_position_embeddings for config in (there, here)]
    if lengths[0] != lengths[1]:
        remedy = f"use {lengths[0]} tokens as the checkpoint does, not {lengths[1]}, and {remedy}"
    raise OptionError(f"weights of {folder} have other shapes: {first_of(wrong)}; {remedy}")


def _check_complete(
    folder: Path, model: LongspanPreTrainedModel, new: list[str], there: LongspanConfig
) -> None:
    """Refuse a checkpoint that lacks weights of the Transformer, other than new parts.

    Raises:
        OptionError: it does; the message lists the first ones.
    """
    new_parts, prefix = [], f"{model.base_model_prefix}."
    if _is_encoder_of(there, model.config):
        new_parts.append("decoder.*")
    if there.attention != model.config.attention:
        new_parts.append("*layers.*.attention.mechanism.*")
    if there.pooling != model.config.pooling == "attention":
        new_parts.append("pooling.*")
    inner = [x for x in new if x.startswith(prefix)]
    inner = [x for x in inner if not matches((x.removeprefix(prefix),), new_parts)]
    if inner:
        raise OptionError(
            f"{folder} lacks weights of the Transformer: {first_of(inner)}; keep the checkpoint's "
            "mechanism and pooling, or pretrain with those of this run"
        )
