"""Loading of models whose attention was swapped."""

import os
from typing import Any

import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from longspan.attention.initial_values import reset_tensors
from longspan.errors import DataError
from longspan.interop.swapped import SWAPPED, Swapped, SwapSpec, missing_buffers
from longspan.interop.swapping import FIELD

_LOCATION = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")


def load_swapped(
    source: str | os.PathLike[str],
    model_class: type[PreTrainedModel] | None = None,
    **arguments: Any,
) -> PreTrainedModel:
    """Load a model that `swap` changed and `save_pretrained` saved.

    Args:
        source: folder, or repository on the Hub.
        model_class: class of the model, such as `BertForSequenceClassification`; None: the class
            that was saved. A head that the checkpoint does not have is new.
        arguments: further arguments of `from_pretrained`.

    Returns:
        The model, with its mechanisms and their weights.

    Raises:
        DataError: the configuration records no swap, or names a class that transformers does not
            have.
    """
    where = {name: arguments[name] for name in _LOCATION if name in arguments}
    config = arguments.get("config") or AutoConfig.from_pretrained(source, **where)
    if not getattr(config, FIELD, None):
        raise DataError(f"{source} records no swap ({FIELD} in config.json); use from_pretrained")
    cls = model_class or _saved_class(config)

    class Restored(cls):  # type: ignore[misc, valid-type]
        """Model that has its mechanisms before transformers loads the weights."""

        def __init__(self, config: PretrainedConfig, *args: Any, **kwargs: Any):
            super().__init__(config, *args, **kwargs)
            _attach_recorded(self)

    # transformers finds classes, and saves their names, by these attributes.
    Restored.__name__, Restored.__qualname__ = cls.__name__, cls.__qualname__
    Restored.__module__ = cls.__module__
    arguments |= {"attn_implementation": SWAPPED, "output_loading_info": True}
    model, info = Restored.from_pretrained(source, **arguments)
    model.__class__ = cls
    _complete(model, set(info["missing_keys"]))
    return model


def _attach_recorded(model: PreTrainedModel) -> None:
    """Add the mechanisms that the configuration of a model records."""
    for name, values in getattr(model.config, FIELD).items():
        module = model.base_model.get_submodule(name)
        swapped = Swapped(SwapSpec.from_dict(values), model.config)
        swapped.to(device=next(module.parameters()).device, dtype=model.dtype)
        swapped.attach(module)


def _saved_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    name = (config.architectures or ["None"])[0]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise DataError(f"transformers has no class {name!r}, which was saved; pass model_class=")
    return cls


def _complete(model: PreTrainedModel, missing: set[str]) -> None:
    """Set tensors of mechanisms that the checkpoint does not hold to their initial values."""
    for name, module in model.named_modules():
        if isinstance(module, Swapped):
            start = f"{name}."
            lost = {key.removeprefix(start) for key in missing if key.startswith(start)}
            fresh = Swapped(module.spec, model.config)
            reset_tensors(module, lost | missing_buffers(module), fresh)
