"""Source checkpoints: a local folder or a repository of the Hugging Face Hub."""

import shlex
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
)

from longspan.errors import DataError, OptionError
from longspan.files import check_file, check_folder, read_json
from longspan.models.conversion.checkpoint_files import has_tokenizer
from longspan.models.conversion.families import FAMILIES
from longspan.models.conversion.family import Family
from longspan.models.conversion.sentence_modules import (
    MODULES,
    SentenceModules,
    list_paths,
    read_modules,
)

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
BESIDE_WEIGHTS = ["*.json", "*.txt", "*.model"]  # configurations and tokenizers
_DOWNLOADED = [*BESIDE_WEIGHTS, "model*.safetensors"]
# Names of the first BERT checkpoints.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class SourceWeight(NamedTuple):
    """Tensor of the source under the name that its file has.

    Attributes:
        name: name in the file, or without a prefix if it is computed.
        tensor: the tensor.
        is_computed: whether the file lacks the tensor, which the source computes.
    """

    name: str
    tensor: Tensor
    is_computed: bool = False


class Source(NamedTuple):
    """Source checkpoint.

    Attributes:
        folder: folder of the Transformer.
        config: its configuration.
        family: family that it belongs to.
        embedding: modules of sentence-transformers around it; None: there are none.
    """

    folder: Path
    config: Any
    family: Family
    embedding: SentenceModules | None = None

    def read_weights(self) -> dict[str, SourceWeight]:
        """Return all tensors by their names without the prefix of the family.

        Raises:
            DataError: a file is missing or damaged, the weights are pickles, or a name occurs
                twice.
        """
        weights: dict[str, SourceWeight] = {}
        for name, tensor in read_tensors(self.folder).items():
            short = name.removeprefix(self.family.prefix)
            for old, new in RENAMED.items():
                short = short.replace(old, new)
            if short in weights:
                raise DataError(
                    f"{self.folder} has both {weights[short].name} and {name}; keep one"
                )
            weights[short] = SourceWeight(name, tensor)
        dtype = next((x.tensor.dtype for x in weights.values()), None)
        computed = self.family.computed(self.config).items()
        return {x: SourceWeight(x, tensor.to(dtype), True) for x, tensor in computed} | weights


def open_source(source: str | Path, revision: str | None) -> Source:
    """Return a local or downloaded checkpoint whose family is known.

    Raises:
        OptionError: a checkpoint of this kind cannot be converted; the message lists the kinds
            that can.
        DataError: there is no checkpoint, or its configuration cannot be read.
    """
    folder = Path(source)
    if folder.is_file():
        raise OptionError(
            f"{source} is a file, expected a folder; the model of a run becomes one by "
            f"longspan export {shlex.quote(str(source))} --output FOLDER"
        )
    if not folder.is_dir():
        folder = _download(str(source), revision)
    elif revision is not None:
        raise OptionError(f"{source} is a folder, which has no revision; omit revision={revision}")
    embedding = read_modules(folder)
    if embedding is not None:
        folder = embedding.folder
    content = read_json(folder / "config.json")
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind not in FAMILIES:
        raise OptionError(
            f"{source} has model_type {kind!r}, {describe_refusal(kind)}. Converted are "
            f"{', '.join(FAMILIES)}"
        )
    family, config = FAMILIES[kind], _read_config(folder)
    if reasons := family.refusals(config):
        raise OptionError(
            f"{source} cannot be converted: {'; '.join(reasons)}; choose another source"
        )
    return Source(folder, config, family, embedding)


def _download(name: str, revision: str | None) -> Path:
    try:
        folder = Path(
            snapshot_download(
                name, revision=revision, allow_patterns=_DOWNLOADED, ignore_patterns=["*/*"]
            )
        )
        if (folder / MODULES).is_file():
            nested = [f"{path}/{x}" for path in list_paths(folder) for x in _DOWNLOADED]
            snapshot_download(name, revision=revision, allow_patterns=nested)
        return folder
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{name} is no folder, and cannot be downloaded from the Hugging Face Hub ({reason}); "
            "check the name, the revision and the network"
        ) from error


def _read_config(folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(check_folder(folder))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder / 'config.json'} cannot be read ({error})") from error


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a folder by name.

    Raises:
        DataError: there are none, they are pickles, or a file is missing or damaged.
    """
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors |= load_file(check_file(path))
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path} cannot be read ({error}); download it again") from error
    listed = () if (folder / WEIGHTS).is_file() else _read_index(folder)
    if missing := sorted(set(listed) - tensors.keys()):
        raise DataError(f"{folder} lacks {missing[0]}, which {INDEX} lists; download it again")
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a folder's weights: one, or its shards.

    Raises:
        DataError: there are none, or they are pickles.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return [folder / Path(file).name for file in sorted(set(_read_index(folder).values()))]
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not pickles:
        raise DataError(
            f"{folder} holds no {WEIGHTS}; download it again, or name a folder of "
            "save_pretrained, such as longspan longify writes"
        )
    raise DataError(
        f"{folder} has weights in {', '.join(pickles)} only, expected {WEIGHTS}: pickled weights "
        "can execute code and are not read; save a checkpoint that you trust again with the "
        f"following command, and convert FOLDER:\n{_saving_command(folder)}"
    )


def _read_index(folder: Path) -> dict[str, str]:
    """Return the shard of each weight."""
    content = read_json(folder / INDEX)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict):
        raise DataError(f"{folder / INDEX} has no weight_map; download it again")
    return shards


def _saving_command(folder: Path) -> str:
    """Return the command that saves a checkpoint, all its heads included, as safetensors."""
    content = read_json(folder / "config.json")
    name = ((content.get("architectures") if isinstance(content, dict) else None) or [None])[0]
    cls = name if name and hasattr(transformers, name) else "AutoModelForPreTraining"
    saved = [cls, "AutoTokenizer"] if has_tokenizer(folder) else [cls]
    calls = [f"t.{x}.from_pretrained({str(folder)!r}).save_pretrained('FOLDER')" for x in saved]
    return shlex.join(["python", "-c", "; ".join(["import transformers as t", *calls])])


# Nearest family by the first of the lists of transformers that has the type.
LISTS = {
    "bart": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    "bert": MODEL_FOR_MASKED_LM_MAPPING,
    "gpt2": MODEL_FOR_CAUSAL_LM_MAPPING,
}
_DISENTANGLED = "its scores have products of contents and positions (disentangled attention)"
GROUPED = "its heads may share keys and values, and its norms are root mean squares"
_REASONS = {
    "deberta": _DISENTANGLED,
    "deberta-v2": _DISENTANGLED,
    **dict.fromkeys(("gemma", "gemma2", "llama", "mistral", "phi3", "qwen2", "qwen3"), GROUPED),
    "xlnet": "its two streams permute the order of prediction",
    "funnel": "it pools the states between layers",
    "fnet": "its layers have Fourier transforms in place of attention",
}


def describe_refusal(kind: str | None) -> str:
    """Return why a model type is not converted, the nearest family that is, and the remedy.

    Args:
        kind: `model_type` of a source.
    """
    if kind == "longspan":
        return "which is ours already; convert --to writes it as another, longify makes it longer"
    if kind is None or kind not in CONFIG_MAPPING:
        return "which transformers does not know; check config.json"
    config: Any = CONFIG_MAPPING[kind]
    parts = [f"which is not converted: {_REASONS[kind]}"] if kind in _REASONS else []
    parts = parts or ["which is not converted"]
    nearest = next((family for family, models in LISTS.items() if config in models), None)
    if nearest is None:
        parts.append("it is no language model, and no family is near")
    else:
        parts.append(f"the nearest family that is converted is {nearest}")
    return "; ".join([*parts, _remedy(config)])


def _remedy(config: Any) -> str:
    """Return what to do with a model that keeps its class."""
    try:
        entry: Any = MODEL_MAPPING.get(config, None)
    except ValueError:  # transformers lists classes that it does not have
        entry = None
    classes = entry if isinstance(entry, tuple | list) else (entry,)
    if all(getattr(cls, "_supports_sdpa", False) for cls in classes):
        return (
            "keep its own class and replace its attention: "
            "longspan.swap(AutoModel.from_pretrained(SOURCE), MECHANISM)"
        )
    return "longspan.swap cannot replace its attention, which calls no AttentionInterface"
