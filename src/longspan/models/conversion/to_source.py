"""Models of ours in the classes of transformers: `to_transformers`."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from longspan.attention import MECHANISMS, options_of
from longspan.config.architecture import declared
from longspan.errors import DataError, OptionError, check_name
from longspan.files import check_new_folder, read_json
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.config import LongspanConfig
from longspan.models.conversion.checkpoint_files import copy_generation, load_tokenizer, save_folder
from longspan.models.conversion.converter import OUTPUT, Conversion, set_head_fields
from longspan.models.conversion.families import FAMILIES
from longspan.models.conversion.family import DECODER, POSITIONS, WORDS, Family, Head, Weight
from longspan.models.conversion.plan import keep_all, make_config
from longspan.models.conversion.weights import ConvertedWeight, fit_axes, join_dtypes, matches
from longspan.models.parts import decoder_config


def to_transformers(
    model: LongspanPreTrainedModel | str | Path,
    out: str | Path,
    *,
    to: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Conversion[PreTrainedModel]:
    """Convert a model of ours into one of transformers' classes with the same outputs.

    It is the way back of `convert`: every weight is written as it is. Weights that a class has and
    that no output of ours reads, such as its pooler, are left out of the folder.

    Args:
        model: model, or its folder.
        out: folder to write.
        to: `model_type` of the class; None: the first that has the form of the model.
        tokenizer: tokenizer to write too, in place of that of the folder.

    Raises:
        OptionError: no class has the form of the model, or `out` exists; the message lists every
            reason.
        UnknownNameError: no model of this type is known.
        DataError: the folder cannot be read.
        RunError: `out` cannot be written.
    """
    folder = check_new_folder(Path(out))
    families = {name: family for name, family in FAMILIES.items() if family.architectures}
    if to is not None:
        families = {check_name(to, families, "model type to convert to"): families[to]}
    if not isinstance(model, LongspanPreTrainedModel):
        source = Path(model)
        model = _load(source, families)
        tokenizer = tokenizer or load_tokenizer(source)
    family, config = _select_class(model, families)
    target, state, rows = _convert(model, family, config)
    copy_generation(model, target)
    save_folder(folder, target, tokenizer, state)
    return Conversion(target, tokenizer, rows)


def _load(folder: Path, families: Mapping[str, Family]) -> LongspanPreTrainedModel:
    """Load a model of ours whose class has a counterpart in one of the families."""
    content = read_json(folder / "config.json")
    content = content if isinstance(content, dict) else {}
    if (kind := content.get("model_type")) != LongspanConfig.model_type:
        raise OptionError(
            f"{folder} has model_type {kind!r}, expected {LongspanConfig.model_type!r}: a model of "
            "longspan; convert others with `convert` first"
        )
    classes = {cls.__name__: cls for x in families.values() for cls in x.architectures}
    name = (content.get("architectures") or [None])[0]
    if name not in classes:
        raise OptionError(f"{folder} has a {name}, expected one of {', '.join(classes)}")
    try:
        cls: Any = classes[name]
        model, loaded = cls.from_pretrained(folder, use_safetensors=True, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{folder} cannot be read ({error}); write it again") from error
    if missing := sorted(loaded["missing_keys"]):
        raise DataError(f"{folder} lacks {missing[0]}; write it again")
    return model.eval()


def _select_class(
    model: LongspanPreTrainedModel, families: Mapping[str, Family]
) -> tuple[Family, PreTrainedConfig]:
    """Return the first family that has the form of a model, and the configuration in it.

    Raises:
        OptionError: none has; the message lists the reasons.
    """
    refused = []
    for name, family in families.items():
        try:
            return family, _express(model, family)
        except OptionError as error:
            refused.append(f"{name}: {error}")
    raise OptionError(f"the model has no form in transformers: {'; '.join(refused)}")


def _express(model: LongspanPreTrainedModel, family: Family) -> PreTrainedConfig:
    """Return the configuration of the class for a model.

    Raises:
        OptionError: the class is another function; the message lists every difference.
    """
    if type(model) not in family.architectures:
        able = ", ".join(cls.__name__ for cls in family.architectures)
        raise OptionError(f"expected one of {able}, got {type(model).__name__}")
    name = family.architectures[type(model)]
    config: Any = family.source_config(model.config, name)
    config.architectures = [name]
    for field in ("id2label", "label2id", "problem_type"):
        setattr(config, field, getattr(model.config, field))
    again = make_config(family, config, keep_all(family, config))
    head = _find_head(model, family, config)
    set_head_fields(again, head)
    fields = () if head is None else head.fields
    reasons = family.refusals(config) + list_differences(model.config, again, fields)
    if reasons:
        raise OptionError("; ".join(reasons))
    return config


def _find_head(model: LongspanPreTrainedModel, family: Family, config: Any) -> Head | None:
    """Return the head of a model in a family, or None if the model has none."""
    if type(model) is family.base:
        return None
    for make in family.heads.values():
        head = make(config)
        if isinstance(head, Head) and head.model is type(model):
            return head
    reasons = [x for x in (make(config) for make in family.heads.values()) if isinstance(x, str)]
    raise OptionError("; ".join(reasons) or f"{type(model).__name__} has no counterpart")


def _convert(
    model: LongspanPreTrainedModel, family: Family, config: Any
) -> tuple[PreTrainedModel, dict[str, Tensor], tuple[ConvertedWeight, ...]]:
    """Return the model of transformers, its weights that come from ours, and a row for each."""
    with torch.random.fork_rng(devices=()):
        target = getattr(transformers, config.architectures[0])(config).eval()
    places, ours = target.state_dict(), model.state_dict()
    head = _find_head(model, family, config)
    parts: dict[str, dict[int, Weight]] = {}
    for weight in _table(model, family, head, config):
        for source in weight.sources:
            prefixed = f"{family.prefix}{source}"
            name = prefixed if prefixed in places else source
            if name in places and weight.target in ours:
                parts.setdefault(name, {})[weight.part[0]] = weight
    _check_complete(family, places, ours, parts)
    before = family.rows_before(config)
    state, rows = {}, []
    for name, by_part in parts.items():
        weights = [by_part[index] for index in sorted(by_part)]
        state[name] = fit_axes(_join(weights, ours, before), places[name].shape)
        rows += [
            ConvertedWeight(x.target, name, tuple(state[name].shape), _action(weights, before))
            for x in weights
        ]
    target.to(dtype=join_dtypes(state.values()))
    target.load_state_dict(state, strict=False)
    written = {name: x for name, x in target.state_dict().items() if name in state}
    return target, written, tuple(rows)


def _table(
    model: LongspanPreTrainedModel, family: Family, head: Head | None, config: Any
) -> list[Weight]:
    """Return the table of the base model and the head, with the names of the model."""
    table = family.weights(config)
    if family.decoder_words is not None:
        table.append(Weight(DECODER + WORDS, (family.decoder_words,)))
    if head is None:
        return table
    base = f"{model.base_model_prefix}."
    table = [weight._replace(target=base + weight.target) for weight in table]
    output = [] if head.output is None else [Weight(OUTPUT, (head.output,))]
    return table + head.weights + output


def _check_complete(
    family: Family,
    places: Mapping[str, Tensor],
    ours: Mapping[str, Tensor],
    parts: Mapping[str, Mapping[int, Weight]],
) -> None:
    """Raise OptionError unless every weight of both models has its counterpart."""
    used = {weight.target for weights in parts.values() for weight in weights.values()}
    lacking = [
        name
        for name in places
        if name not in parts
        and not matches((name, name.removeprefix(family.prefix)), family.dropped)
    ]
    reasons = [f"it has no place for {name}" for name in ours if name not in used]
    reasons += [f"the model has no {name}" for name in lacking]
    if reasons:
        raise OptionError("; ".join(reasons))


def _join(weights: list[Weight], ours: Mapping[str, Tensor], before: int) -> Tensor:
    """Return the tensor of the source for its parts, after `before` rows of zeros of positions."""
    tensors = [ours[x.target] if x.factor == 1 else ours[x.target] / x.factor for x in weights]
    if weights[0].target.endswith(POSITIONS) and before:
        tensors.insert(0, tensors[0].new_zeros(before, tensors[0].shape[1]))
    joined = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
    return joined.mT.contiguous() if weights[0].transposed else joined


def _action(weights: list[Weight], before: int) -> str:
    first = weights[0]
    if first.target.endswith(POSITIONS) and before:
        return f"copied, after {before} rows of zeros (padding)"
    changes = ["transposed"] if first.transposed else []
    changes += [f"divided by {first.factor:g}"] if first.factor != 1 else []
    changes += [f"as one of {len(weights)} parts"] if len(weights) > 1 else []
    return ", ".join(["copied", *changes])


def list_differences(
    ours: LongspanConfig, theirs: LongspanConfig, head_fields: Collection[str]
) -> list[str]:
    """Return the differences of a model from the one that a class of transformers has.

    Args:
        ours: configuration of the model.
        theirs: configuration of the same model, converted from the class.
        head_fields: fields that its head reads.
    """
    effects = declared(ours, "effect")
    names = [x for x, effect in effects.items() if effect == "model" or x in head_fields]
    pairs = {name: (ours.resolve(name), theirs.resolve(name)) for name in names}
    reasons = [f"{name} must be {y!r}, got {x!r}" for name, (x, y) in pairs.items() if x != y]
    reasons += _attention_differences(ours, theirs)
    if not (ours.is_encoder_decoder and theirs.is_encoder_decoder):
        return reasons
    of_decoder = list_differences(decoder_config(ours), decoder_config(theirs), head_fields)
    shared = {name for name, (x, y) in pairs.items() if x != y}
    return reasons + [f"decoder: {x}" for x in of_decoder if x.split()[0] not in shared]


def _attention_differences(ours: LongspanConfig, theirs: LongspanConfig) -> list[str]:
    """Return the differences of the mechanisms and of their options, each once."""
    reasons = []
    for layer, (name, other) in enumerate(
        zip(ours.attention_names, theirs.attention_names, strict=True)
    ):
        if name != other:
            reasons.append(f"attention of layer {layer} must be {other!r}, got {name!r}")
            continue
        expected, got = _layer_options(theirs, layer), _layer_options(ours, layer)
        reasons += [
            f"option {key} of {name!r} must be {value!r}, got {got[key]!r}"
            for key, value in expected.items()
            if got[key] != value
        ]
    return list(dict.fromkeys(reasons))


def _layer_options(config: LongspanConfig, layer: int) -> dict[str, Any]:
    """Return all options of a layer; that of its size may be a list of layers."""
    cls = MECHANISMS[config.attention_names[layer]]
    options = options_of(cls.name) | config.layer_options(layer)
    size = cls.size_option
    if size and "layer" in cls.traits.sizes and isinstance(options[size], list):
        options[size] = options[size][layer]
    return options
