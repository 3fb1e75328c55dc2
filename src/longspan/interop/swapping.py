"""Replacement of the attention of a transformers model by a mechanism with parameters."""

import copy
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from longspan.attention import MECHANISMS
from longspan.attention.build import check_mechanism
from longspan.errors import InputError, LongspanError, OptionError
from longspan.interop.building import Recipe, layer_index
from longspan.interop.calls import may_be_cross_attention
from longspan.interop.sites import Site, find_sites, set_implementation
from longspan.interop.swapped import SWAPPED, Swapped, SwapSpec, record_swaps

FIELD = "longspan_swap"  # of the model's configuration: specification by module name
DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")


@dataclasses.dataclass(frozen=True)
class SwapReport:
    """Attention modules that `swap` replaced, and those that keep their attention.

    Attributes:
        attention: mechanism.
        swapped: parameters that each module gained, by its name in the base model.
        kept: reason why a module keeps exact attention, by its name.
        notes: consequences for training.
    """

    attention: str
    swapped: dict[str, int]
    kept: dict[str, str]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line per module."""
        lines = [f"{name}: {self.attention}, {n:,} parameters" for name, n in self.swapped.items()]
        lines += [f"{name}: kept ({reason})" for name, reason in self.kept.items()]
        return "\n".join((*lines, *self.notes))


def swap(
    model: PreTrainedModel,
    attention: str,
    *,
    layers: Sequence[int] | None = None,
    backend: str = "auto",
    max_length: int | None = None,
    global_positions: tuple[int, ...] = (),
    **options: Any,
) -> SwapReport:
    """Replace the attention of a transformers model, in place, by any mechanism.

    The projections, rotary embeddings, norms and weights of the model stay; the mechanism is added
    to every attention module and receives its queries, keys and values. Projections of the
    mechanism's own start as copies of the module's. The modules are found by running the model once
    on a few tokens. `save_pretrained` saves the result, and `load_swapped` loads it. Afterwards
    `model.set_attn_implementation("sdpa")` runs the original attention again. The model gets a copy
    of its configuration, which records the swap.

    Args:
        model: model whose attention modules call transformers' AttentionInterface; with adapters of
            peft or without.
        attention: key in `MECHANISMS`.
        layers: positions of the modules to replace, in the order of calls; None: all. Several swaps
            give layers different mechanisms; a module that has a mechanism gets the new one.
        backend: backend, as in `longspan.build`.
        max_length: longest input, for mechanisms that need it; None: `max_position_embeddings` of
            the model.
        global_positions: positions of tokens that attend to all and are attended by all, such as
            (0,) for the first; bidirectional models only.
        options: options of the mechanism; `options_of(attention)` lists them.

    Returns:
        The modules that were replaced, and those that were not, with the reason: not in `layers`, a
        sliding window of their own, or cross-attention that the mechanism does not have.

    Raises:
        UnknownNameError: there is no such mechanism, option or backend.
        OptionError: the mechanism cannot be built for this model; the model is unchanged.
        InputError: no attention module can be replaced, or this is no model of transformers; the
            model is unchanged.
    """
    if not hasattr(model, "base_model"):
        raise InputError(
            f"swap changes a model of transformers, got {type(model).__name__}; in other models "
            "replace the attention module itself, such as by longspan.nn.MultiheadAttention"
        )
    whole, model = model, _without_adapters(model)
    check_mechanism(attention, options, backend)
    recipe = Recipe(attention, options, backend, max_length, tuple(global_positions))
    sites = find_sites(model)
    _check_layers(layers, len(sites))
    cross = MECHANISMS[attention].traits.cross
    exclusions = {s.name: why for i, s in enumerate(sites) if (why := _keeps(s, i, layers, cross))}
    targets = [site for site in sites if site.name not in exclusions]
    if not targets:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in exclusions.items())
        raise InputError(f"{type(model).__name__} has no attention to replace: {reasons}")
    swaps = [(site, _make(site, recipe, model)) for site in targets]
    _take_own_config(whole)
    set_implementation(model, SWAPPED)
    for site, swapped in swaps:
        device = next(site.module.parameters()).device
        swapped.to(device=device).train(site.module.training)
        swapped.attach(site.module)
    setattr(model.config, FIELD, record_swaps(model.base_model))
    gained = {site.name: sum(p.numel() for p in x.parameters()) for site, x in swaps}
    return SwapReport(attention, gained, exclusions, _notes(model, [x for _, x in swaps]))


def _without_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model of transformers within one of peft, whose adapters are in its modules."""
    unwrap = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def _take_own_config(model: PreTrainedModel) -> None:
    """Give a model a copy of its configuration: that of another model may be the same object."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig) and id(config) in copies:
            module.config = copies[id(config)]


def _check_layers(layers: Sequence[int] | None, count: int) -> None:
    given = () if layers is None else layers
    if not isinstance(given, Collection) or not all(
        type(x) is int and 0 <= x < count for x in given
    ):
        raise OptionError(
            f"layers must be a list of integers between 0 and {count - 1}, got {layers!r:.60}"
        )


def _keeps(site: Site, index: int, layers: Sequence[int] | None, cross: bool) -> str | None:
    """Return the reason why a module keeps exact attention, or None."""
    if layers is not None and index not in layers:
        return "not in layers"
    if site.window is not None:
        return f"its own sliding window of {site.window}"
    if may_be_cross_attention(site.module, site.causal) and not cross:
        return "cross-attention is not supported (traits.cross)"
    return None


def _make(site: Site, recipe: Recipe, model: PreTrainedModel) -> Swapped:
    """Build the mechanism of a module, and start its projections as copies of the module's."""
    query = site.projections.get("q")
    width = None if query is None else query.linear(site.module).in_features
    sizes = site.causal, site.heads, site.head_dim, layer_index(site.module)
    spec = SwapSpec(recipe, *sizes, site.projections, width)
    swapped = Swapped(spec, model.config).to(dtype=model.dtype)
    mechanism, projections = swapped.mechanism, site.projections
    for name in ("scale", "bias", "sink_logits"):
        if getattr(site, name) and not getattr(mechanism.traits, name):
            what = "sinks beside" if name == "sink_logits" else f"a {name} of"
            raise InputError(
                f"{site.name} has {what} its scores, which {recipe.attention} does not "
                f"support (traits.{name})"
            )
    if mechanism.release_shared() is not None:
        raise InputError(
            f"{recipe.attention} with these options shares a parameter among all layers, which a "
            "model of transformers has no place for; choose other options"
        )
    if mechanism.traits.needs_layer_input and not {"q", "k", "v"} <= set(projections):
        missing = sorted({"q", "k", "v"} - set(projections))
        raise InputError(
            f"{recipe.attention} reads the layer's input, but the projections to {missing} of "
            f"{site.name} were not found: the module normalizes or reorders their output"
        )
    if mechanism.traits.inputs == "qkv" and {"q", "k", "v"} <= set(projections):
        rows = site.heads * site.head_dim
        copies: list[nn.Linear] = []
        for letter in "qkv":
            repeats = rows // (projections[letter].stop - projections[letter].start)
            copies.append(projections[letter].copy(site.module, repeats, site.head_dim))
        try:
            mechanism.copy_projections(*copies)
        except LongspanError as error:
            raise InputError(f"{recipe.attention} cannot be in {site.name}: {error}") from error
    return swapped


def _notes(model: PreTrainedModel, mechanisms: list[Swapped]) -> tuple[str, ...]:
    """Return consequences for training that are easily overlooked."""
    mechanism, notes = mechanisms[0].mechanism, []
    dropout = next((x for name in DROPOUTS if (x := getattr(model.config, name, 0))), 0)
    if dropout and not mechanism.traits.weight_dropout:
        notes.append(f"attention dropout of {dropout} is not applied: there are no weights to drop")
    if frozen := sum(p.numel() for swapped in mechanisms for p in swapped.frozen):
        inputs = " and ".join(mechanism.traits.inputs)
        notes.append(f"{frozen:,} parameters of unused projections are frozen: only {inputs} used")
    if mechanism.has_auxiliary_loss:
        notes.append(
            "the auxiliary loss is added in longspan's models only: here, what learns from it "
            "alone keeps its initial values"
        )
    if mechanism.redraw_every is not None:
        notes.append("features are redrawn in longspan's training loop only")
    return tuple(notes)
