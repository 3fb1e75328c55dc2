"""Weights of a source by their names in a Longspan model, each accounted for in a table."""

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor, nn

from longspan.attention import Attention
from longspan.attention.ops.draws import draw_normal
from longspan.errors import DataError
from longspan.models.attention_layer import SelfAttention
from longspan.models.conversion.family import Weight
from longspan.models.conversion.source import SourceWeight
from longspan.wording import first_of

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class ConvertedWeight(NamedTuple):
    """Row of the table of weights.

    Attributes:
        source: name in the source's file, or None.
        target: name in the converted model, or None.
        shape: shape of the target, or of a source without one.
        action: what was done, such as "copied", "tiled, 512 to 4,096 rows", "started from ...",
            "dropped: ..." or "new".
    """

    source: str | None
    target: str | None
    shape: tuple[int, ...]
    action: str


def copy_weights(
    table: list[Weight],
    source: Mapping[str, SourceWeight],
    model: nn.Module,
    stretch: Mapping[str, Callable[[Tensor], tuple[Tensor, str]]],
    new: Collection[str],
) -> tuple[dict[str, Tensor], list[ConvertedWeight], set[str]]:
    """Return the tensors of the source under their names in the model, in one dtype.

    The dtype holds the values of all tensors exactly: float32 of float32 norms beside float16
    matrices. The table names what was converted to it.

    Args:
        table: weights of the family.
        source: weights by name.
        model: model to convert to.
        stretch: functions that return another tensor and a description of it, by target.
        new: patterns of targets that the source may lack.

    Returns:
        Tensors by name in the model, rows of the table, and the names of the source's weights that
        have a row.

    Raises:
        DataError: a weight is missing, has another shape or is not a finite floating number.
    """
    expected = model.state_dict()
    state: dict[str, Tensor] = {}
    rows: list[ConvertedWeight] = []
    used, missing, checked = set[str](), [], set[str]()
    for weight in table:
        names = [name for name in weight.sources if name in source]
        used.update(names)
        if not names:
            if weight.target in expected and not matches((weight.target,), new):
                missing.append(weight.sources[0])
            continue
        target = expected.get(weight.target)
        # Several weights may be parts of one matrix.
        if target is not None and target.is_floating_point() and names[0] not in checked:
            _check_values(source[names[0]])
            checked.add(names[0])
        rows.append(_copy(weight, source[names[0]], expected, stretch, state))
        for name in names[1:]:
            shape = tuple(source[name].tensor.shape)
            action = f"dropped: {source[names[0]].name} is used"
            rows.append(ConvertedWeight(source[name].name, None, shape, action))
    if missing:
        raise DataError(
            f"the checkpoint lacks {first_of(missing)}; complete it, or name weights to "
            "initialize randomly with --new"
        )
    return *_in_one_dtype(state, rows), used


def join_dtypes(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the dtype that holds the floating numbers of all tensors exactly."""
    dtypes = [x.dtype for x in tensors if x.is_floating_point()]
    return functools.reduce(torch.promote_types, dtypes)


def _in_one_dtype(
    tensors: Mapping[str, Tensor], table: list[ConvertedWeight]
) -> tuple[dict[str, Tensor], list[ConvertedWeight]]:
    """Return the floating tensors in one dtype; the table names those that are converted to it."""
    state, rows, dtype = dict(tensors), [], join_dtypes(tensors.values())
    for row in table:
        tensor = tensors.get(row.target or "")
        if tensor is not None and tensor.is_floating_point() and tensor.dtype != dtype:
            state[str(row.target)] = tensor.to(dtype)
            names = [str(x).removeprefix("torch.") for x in (tensor.dtype, dtype)]
            row = row._replace(action=f"{row.action}, {names[0]} to {names[1]}")
        rows.append(row)
    return state, rows


def _check_values(source: SourceWeight) -> None:
    """Raise DataError unless all values are finite floating numbers."""
    if source.tensor.dtype not in DTYPES:
        raise DataError(
            f"{source.name} has dtype {source.tensor.dtype}, expected one of "
            f"{', '.join(map(str, DTYPES))}; save dequantized weights (model.dequantize())"
        )
    if count := int((~source.tensor.isfinite()).sum()):
        raise DataError(
            f"{source.name} has {count:,} of {source.tensor.numel():,} values that are not finite; "
            "take a checkpoint without them, or replace the weight with --drop and --new"
        )


def _copy(
    weight: Weight,
    source: SourceWeight,
    expected: Mapping[str, Tensor],
    stretch: Mapping[str, Callable[[Tensor], tuple[Tensor, str]]],
    state: dict[str, Tensor],
) -> ConvertedWeight:
    """Add one tensor of the source to the state, and return its row of the table."""
    index, parts = weight.part
    whole = source.tensor.mT if weight.transposed else source.tensor
    tensor = whole.chunk(parts)[index]
    if weight.factor != 1:
        tensor = tensor * weight.factor
    part = ", transposed" if weight.transposed else ""
    part += f", times {weight.factor:g}" if weight.factor != 1 else ""
    part += f", part {index + 1} of {parts}" if parts > 1 else ""
    if weight.target not in expected:
        action = f"dropped{part}: the mechanism has no such projection"
        return ConvertedWeight(source.name, None, tuple(tensor.shape), action)
    target = expected[weight.target]
    action = f"copied{part}"
    if weight.target in stretch:
        tensor, action = stretch[weight.target](tensor)
    tensor = fit_axes(tensor, tuple(target.shape))
    if tensor.shape != target.shape:
        raise DataError(
            f"{source.name} has shape {tuple(source.tensor.shape)}, which gives "
            f"{tuple(tensor.shape)} for {weight.target}, expected {tuple(target.shape)}; "
            "the weights are not those of config.json"
        )
    state[weight.target] = tensor
    name, action = (None, "computed") if source.is_computed else (source.name, action)
    return ConvertedWeight(name, weight.target, tuple(tensor.shape), action)


def fit_axes(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the tensor in a shape with other axes of size one, or as it is."""
    sizes = [[size for size in x if size != 1] for x in (tensor.shape, shape)]
    return tensor.reshape(shape) if sizes[0] == sizes[1] else tensor


def drop_weights(
    source: Mapping[str, SourceWeight],
    used: Collection[str],
    reasons: Mapping[str, str],
) -> list[ConvertedWeight]:
    """Return the rows of the weights that are not used.

    Raises:
        DataError: no pattern of `reasons` names one of them.
    """
    rows, left = [], []
    for name, weight in source.items():
        if name in used:
            continue
        patterns = [x for x in reasons if matches((name, weight.name), (x,))]
        if not patterns:
            left.append(weight.name)
            continue
        shape = tuple(weight.tensor.shape)
        rows.append(ConvertedWeight(weight.name, None, shape, f"dropped: {reasons[patterns[0]]}"))
    if left:
        raise DataError(
            f"the checkpoint has {first_of(left)}, which the model has no use for; "
            "name weights that shall be dropped with --drop"
        )
    return rows


def start_projections(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Start projections of the mechanisms' own as copies of those of their layers.

    Args:
        model: converted model; tensors of `state` keep their values.
        state: tensors that the source has, by name in the model.

    Returns:
        A description for each that was started so.
    """
    started = {}
    for name, module in model.named_modules():
        if not isinstance(module, SelfAttention) or module.query is None or module.key is None:
            continue
        parts = {"query": module.query, "key": module.key, "value": module.value}
        copied = _copied_parameters(module.mechanism, parts)
        module.mechanism.copy_projections(*parts.values())
        for parameter_name, parameter in module.mechanism.named_parameters():
            target = f"{name}.mechanism.{parameter_name}"
            if target in state:
                with torch.no_grad():
                    parameter.copy_(state[target])
            elif parameter_name in copied:
                started[target] = f"started from {name}.{copied[parameter_name]}"
    return started


def _copied_parameters(mechanism: Attention, parts: Mapping[str, nn.Linear]) -> dict[str, str]:
    """Return the parameters that `copy_projections` copies, with the names of the originals.

    Copies of marked projections are compared: the biases of many models are all zeros.
    """
    generator = torch.Generator().manual_seed(0)
    marked = {part: copy.deepcopy(linear) for part, linear in parts.items()}
    originals = {
        f"{part}.{x}": y for part, linear in marked.items() for x, y in linear.named_parameters()
    }
    probe = copy.deepcopy(mechanism)
    with torch.no_grad():
        for parameter in originals.values():
            parameter.copy_(draw_normal(parameter.shape, generator, torch.float32))
    probe.copy_projections(*marked.values())
    names = {}
    for parameter_name, parameter in probe.named_parameters():
        shape = parameter.shape
        equal = [x for x, y in originals.items() if y.shape == shape and y.equal(parameter)]
        if equal:
            names[parameter_name] = equal[0]
    return names


def load_weights(
    model: nn.Module, state: Mapping[str, Tensor], started: Mapping[str, str]
) -> list[ConvertedWeight]:
    """Give a model the tensors of a source, and return the rows of those that the source lacks.

    Args:
        model: converted model.
        state: tensors that the source has, by name in the model.
        started: descriptions of tensors that do not start with values of their own; projections of
            the mechanisms' own are added here.
    """
    nn.Module.to(model, join_dtypes(state.values()))
    model.load_state_dict(state, strict=False)
    started = {**started, **start_projections(model, state)}
    return [
        ConvertedWeight(None, name, tuple(x.shape), started.get(name, "new"))
        for name, x in model.state_dict().items()
        if name not in state
    ]


def matches(names: Collection[str], patterns: Collection[str]) -> bool:
    """Return whether one of the names of a weight matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
