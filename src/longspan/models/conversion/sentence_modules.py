"""Modules of a sentence-transformers checkpoint around its Transformer: pooling and normalization.

`modules.json` lists them. The Transformer may be in a folder of its own. A converted model has the
pooling; the similarity of a `LongspanDualEncoder` that loads it is the cosine if embeddings are
normalized.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from longspan.errors import DataError, OptionError
from longspan.files import read_json

MODULES, TRANSFORMER = "modules.json", "sentence_bert_config.json"
# Pooling of ours by the mode of the source.
POOLINGS = {"mean": "mean", "max": "max", "cls": "first", "lasttoken": "last"}
PREFIX = "pooling_mode_"  # of flags of modes
KINDS = ("Transformer", "Pooling", "Normalize")
REMEDY = "keep it in sentence-transformers, and replace the attention of its `auto_model` with swap"


class SentenceModules(NamedTuple):
    """Modules of a checkpoint.

    Attributes:
        folder: folder of the Transformer.
        pooling: pooling of ours.
        similarity: "cosine" if embeddings are normalized, else "dot".
        max_length: tokens after which texts are cut; None: the tokenizer's.
    """

    folder: Path
    pooling: str
    similarity: str
    max_length: int | None


def read_modules(folder: Path) -> SentenceModules | None:
    """Return the modules of a checkpoint; None if it has no list of them.

    Raises:
        OptionError: a module or an option of one has no counterpart.
        DataError: a file is missing or malformed.
    """
    if not (folder / MODULES).is_file():
        return None
    paths = _list_modules(folder)
    if tuple(kind for kind, _ in paths) not in (KINDS, KINDS[:2]):
        raise OptionError(
            f"{folder / MODULES} lists {', '.join(kind for kind, _ in paths)}; expected "
            f"{', '.join(KINDS[:2])} and perhaps {KINDS[2]}, others have no counterpart: {REMEDY}"
        )
    inner, pooling = (folder / path for _, path in paths[:2])
    return SentenceModules(
        folder=inner,
        pooling=_read_pooling(pooling / "config.json"),
        similarity="cosine" if len(paths) > 2 else "dot",
        max_length=_read_length(inner / TRANSFORMER),
    )


def list_paths(folder: Path) -> list[str]:
    """Return the folders of the modules, but for that of the checkpoint itself."""
    return [path for _, path in _list_modules(folder) if path]


def _list_modules(folder: Path) -> list[tuple[str, str]]:
    """Return the class and the folder of each module."""
    content = read_json(folder / MODULES)
    try:
        listed = [(module["type"].rpartition(".")[2], module["path"]) for module in content]
        inside = [(folder / path).resolve().is_relative_to(folder.resolve()) for _, path in listed]
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{folder / MODULES} lists no modules; download it again") from error
    if not all(inside):
        outside = listed[inside.index(False)][1]
        raise DataError(f"{folder / MODULES} lists {outside}, expected a folder inside {folder}")
    return listed


def _read_pooling(path: Path) -> str:
    content = _read_object(path)
    flags = [name.removeprefix(PREFIX) for name, x in content.items() if x is True]
    modes = [content["pooling_mode"]] if "pooling_mode" in content else flags
    modes = [re.sub("_tokens?$", "", mode) for mode in modes if mode != "include_prompt"]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise OptionError(
            f"{path} has the pooling {' and '.join(modes) or None}, expected one of "
            f"{', '.join(POOLINGS)}; others have no counterpart: {REMEDY}"
        )
    if not content.get("include_prompt", True):
        raise OptionError(
            f"{path} has include_prompt=False: the tokens of a prompt are left out of the pooling, "
            f"which has no counterpart; {REMEDY}"
        )
    return POOLINGS[modes[0]]


def _read_length(path: Path) -> int | None:
    content = _read_object(path) if path.is_file() else {}
    if content.get("do_lower_case"):
        raise OptionError(
            f"{path} has do_lower_case=True, which is no option of tokenizers here; lower texts "
            "before the tokenizer, or if it does so itself, set do_lower_case to false there"
        )
    length = content.get("max_seq_length")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise DataError(f"{path} has max_seq_length={length!r}, expected a positive number")
    return length


def _read_object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no options; download it again")
    return content
