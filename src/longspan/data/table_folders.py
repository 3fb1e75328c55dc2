"""Files of tables by their names, and folders of them: splits and shards, as on a hub.

A folder may have one file or several shards for each split (`train-00000-of-00002.parquet`), in
itself or in a folder `data`; or numbered shards without such names, which are one table.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from longspan.data import json_lines
from longspan.data.class_folders import SPLITS, find_split_folders, visible_entries
from longspan.data.corpora.text import unpacked_path
from longspan.data.own_splits import NAMES, TRAIN
from longspan.errors import DataError

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = ".parquet"
SUFFIXES = (*DELIMITERS, *json_lines.SUFFIXES, PARQUET)
_DATA = "data"  # folder of the tables of a data set on the Hugging Face hub
_ARROW = ".arrow"
# Files that the Hugging Face libraries write beside tables.
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_SPLIT = re.compile(rf"({'|'.join(SPLITS)})(?![a-z])", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+")
_SHARD = re.compile(r"(.*)-([0-9]+)-of-([0-9]+)\.[a-z.]+", re.IGNORECASE)


def table_suffix(path: Path) -> str:
    """Return the suffix of a table in lower case, without that of packing.

    Parquet is compressed in itself and not packed: such a file has the suffix of packing alone.
    """
    suffix = unpacked_path(path).suffix.lower()
    return path.suffix.lower() if suffix == PARQUET else suffix


def table_name(path: Path) -> str:
    """Return the name of a table without its suffixes; that of a folder is unchanged."""
    if path.is_dir():
        return path.resolve().name
    return unpacked_path(path).stem


def find_tables(folder: Path) -> dict[int, tuple[Path, ...]]:
    """Return the tables in a folder, by split; all are of training if they name no other split.

    Returns:
        Tables of each split in the order of their names; nothing if the folder has none.

    Raises:
        DataError: a shard is missing, a split has tables that are no numbered shards, only some
            tables name a split, or the folder has files of `save_to_disk`.
    """
    entries = list(visible_entries(folder))
    if any(path.suffix == _ARROW for path in entries):
        raise DataError(
            f"{folder} is a data set of save_to_disk; write it as parquet with "
            "Dataset.to_parquet, and pass the file"
        )
    tables = [x for x in entries if _is_table(x)]
    if not tables:
        return _find_below(folder, entries)
    found: dict[int, list[Path]] = {}
    others: list[Path] = []
    for path in tables:
        named = _SPLIT.match(path.name)
        (found.setdefault(SPLITS[named[1].lower()], []) if named else others).append(path)
    if not found and any(path.is_dir() for path in entries):
        return {}  # subfolders of classes, with a table beside them
    if len(found) < 2 and TRAIN not in found:
        found, others = {TRAIN: tables}, []
    _check_splits(folder, found, others)
    return {split: tuple(paths) for split, paths in found.items()}


def has_columns(path: Path) -> bool:
    """Return whether a path is a table or a folder of tables, not one of texts."""
    if not path.is_dir():
        return True
    folders = find_split_folders(path).values()
    return bool(find_tables(path)) or any(find_tables(folder) for folder in folders)


def _is_table(path: Path) -> bool:
    is_known = table_suffix(path) in SUFFIXES and path.name not in _DESCRIPTIONS
    return is_known and not path.is_dir()


def _find_below(folder: Path, entries: Sequence[Path]) -> dict[int, tuple[Path, ...]]:
    """Return the tables of the one subfolder that has parquet files, or of `data`."""
    below = [x for x in entries if x.is_dir() and any(x.glob(f"*{PARQUET}"))]
    if not below or all(x.name in SPLITS for x in below):
        return {}
    chosen = [x for x in below if x.name == _DATA] or below
    if len(chosen) > 1:
        raise DataError(
            f"{folder} has parquet files in {', '.join(x.name for x in below)}; pass one of these "
            "folders"
        )
    return find_tables(chosen[0])


def _check_splits(folder: Path, found: dict[int, list[Path]], others: Sequence[Path]) -> None:
    """Check that all tables are of a split, whose shards are complete."""
    splits = ", ".join(NAMES[split] for split in sorted(found))
    if others:
        raise DataError(
            f"{folder} has tables of {splits}, and also {others[0].name}; move it elsewhere, or "
            "pass the files of each split"
        )
    if TRAIN not in found:
        raise DataError(f"{folder} has tables of {splits}, and none of train; add one")
    for split, paths in found.items():
        kinds = {_DIGITS.sub("", path.name): path.name for path in paths}
        if len(kinds) > 1:
            raise DataError(
                f"{folder} has several tables of {NAMES[split]} that are no numbered shards, such "
                f"as {' and '.join(sorted(kinds.values())[:2])}; keep one of them, or pass its file"
            )
        _check_shards(folder, paths)


def _check_shards(folder: Path, paths: Sequence[Path]) -> None:
    """Check that there are all shards of a table."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        if shard := _SHARD.fullmatch(path.name):
            numbers.setdefault((shard[1], int(shard[3])), set()).add(int(shard[2]))
    for (name, count), present in numbers.items():
        if missing := sorted(set(range(count)) - present):
            raise DataError(
                f"{folder} lacks shard {missing[0]} of {name}, which has {count:,}, counted from "
                "0; fetch it"
            )
