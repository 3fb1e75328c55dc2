"""Files of a source: splits and shards as on a hub, folders of classes, patterns of names.

A folder may have one file or several shards for each split (`train-00000-of-00002.parquet`), in
itself, in a folder `data` or in a folder for each split; or numbered shards without such names,
which are one table. A folder of texts has a subfolder for each class, in it a file for each text,
and possibly folders of splits above them, as IMDB's.
"""

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from longspan.data.own_splits import SPLITS, TEST, TRAIN, VALIDATION
from longspan.data.parquet import shards_of
from longspan.data.sources.text import unpacked_path
from longspan.errors import DataError
from longspan.files import explain_read_error

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
JSON = (".jsonl", ".ndjson", ".json")
ARROW = (".parquet", ".arrow")
SUFFIXES = (*DELIMITERS, *JSON, *ARROW)
FOLDERS = {
    "train": TRAIN,
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    "test": TEST,
}
_DATA = "data"  # folder of the tables of a data set on the Hugging Face hub
# Files and folders that systems leave, and descriptions that the Hugging Face libraries write.
_LEFT_BY_SYSTEMS = ("__MACOSX", "Thumbs.db", "desktop.ini")
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_SPLIT = re.compile(rf"({'|'.join(FOLDERS)})(?![a-z])", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+")
# Name of a file of a split: `train`, `ptb.train` or `train-00000-of-00002`, without its suffix.
_SPLIT_FILE = re.compile(
    rf"(.+[._-])?({'|'.join(FOLDERS)})(?:[._-][0-9]+(?:-of-[0-9]+)?)?", re.IGNORECASE
)


def table_suffix(path: Path) -> str:
    """Return the suffix of a table in lower case, without that of packing.

    Parquet and Arrow files are not packed: such a file has the suffix of packing alone.
    """
    suffix = unpacked_path(path).suffix.lower()
    return path.suffix.lower() if suffix in ARROW else suffix


def table_name(path: Path) -> str:
    """Return the name of a table without its suffixes; that of a folder is unchanged."""
    return path.resolve().name if path.is_dir() else unpacked_path(path).stem


def visible_entries(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder by name, without hidden ones and those of the system."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise explain_read_error(folder, error) from error
    return (x for x in entries if _is_visible(x.name))


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name not in _LEFT_BY_SYSTEMS


def matching_files(path: Path) -> list[Path]:
    """Return the files that a pattern such as `part-*.jsonl` names; none if it is no pattern."""
    if path.exists() or not glob.has_magic(str(path)):
        return []
    base = Path(path.anchor)
    return sorted(x for x in base.glob(str(path.relative_to(base))) if x.is_file())


def find_files(path: Path) -> list[Path]:
    """Return a file, the files of a pattern, or those of a folder and its subfolders, sorted.

    Hidden files, those of the system, and descriptions of the Hugging Face libraries are not read.

    Raises:
        DataError: there is no such path, or the folder has no files.
    """
    if files := matching_files(path):
        return files
    if not path.exists():
        raise DataError(
            f"{path} does not exist; pass a file, a folder, a pattern or hf:NAME, and the name of "
            "the task as --name"
        )
    if not path.is_dir():
        return [path]
    candidates = (x for x in path.rglob("*") if x.is_file() and x.name not in _DESCRIPTIONS)
    visible = [x for x in candidates if all(map(_is_visible, x.relative_to(path).parts))]
    if not visible:
        raise DataError(f"{path} has no files; pass a folder of text, JSONL or parquet files")
    return sorted(visible)


def find_split_folders(folder: Path) -> dict[int, Path]:
    """Return the folders of the splits, by split; none if the subfolders are classes.

    Raises:
        DataError: some subfolders are splits and others classes, or two are the same split.
    """
    names = {path.name: path.name.lower() for path in visible_entries(folder) if path.is_dir()}
    known = [x for x, name in names.items() if name in FOLDERS]
    if "train" not in names.values() or len({FOLDERS[names[x]] for x in known}) < 2:
        return {}
    split_folders: dict[int, Path] = {}
    for name in names:
        if name not in known:
            raise DataError(
                f"{folder} has the splits {', '.join(known)}, and also {name}; move it elsewhere"
            )
        split = FOLDERS[names[name]]
        if split in split_folders:
            raise DataError(
                f"{folder} has two folders of one split, {split_folders[split].name} and {name}; "
                "remove one of them"
            )
        split_folders[split] = folder / name
    return split_folders


def find_split_files(folder: Path) -> dict[int, Path]:
    """Return the file, or the pattern of the shards, of each split that files of a folder name.

    A folder `data` is searched too. Nothing unless there are files of train and of another split.

    Raises:
        DataError: other files are among them, or a shard is missing.
    """
    entries = list(visible_entries(folder))
    groups: dict[str, dict[int, list[Path]]] = {}  # by what is before the split, such as "ptb."
    for path in entries:
        match = None if path.is_dir() else _SPLIT_FILE.fullmatch(table_name(path))
        if match and path.name not in _DESCRIPTIONS:
            splits = groups.setdefault(match[1] or "", {})
            splits.setdefault(FOLDERS[match[2].lower()], []).append(path)
    complete = (splits for splits in groups.values() if TRAIN in splits and len(splits) > 1)
    if not (splits := next(complete, {})):
        below = folder / _DATA
        return find_split_files(below) if folder.name != _DATA and below.is_dir() else {}
    known = {path for paths in splits.values() for path in paths}
    if others := [x.name for x in entries if x not in known and x.name not in _DESCRIPTIONS]:
        raise DataError(
            f"{folder} has files of the splits {', '.join(SPLITS[x] for x in sorted(splits))}, and "
            f"also {others[0]}; move it elsewhere, or pass '{folder}/*' to read all as one"
        )
    _check_shards(folder, splits, f"'{folder}/*' to read all as one")
    return {split: _pattern_of(paths) for split, paths in splits.items()}


def _pattern_of(paths: Sequence[Path]) -> Path:
    """Return the file of a split, or the pattern of its numbered shards."""
    if len(paths) == 1:
        return paths[0]
    return Path(glob.escape(str(paths[0].parent))) / _DIGITS.sub("*", glob.escape(paths[0].name))


def find_tables(folder: Path) -> dict[int, tuple[Path, ...]]:
    """Return the tables in a folder, by split; all are of training if they name no other split.

    Returns:
        Tables of each split in the order of their names; nothing if the folder has none.

    Raises:
        DataError: a shard is missing, a split has tables that are no numbered shards, or only some
            tables name a split.
    """
    entries = list(visible_entries(folder))
    candidates = (x for x in entries if x.name not in _DESCRIPTIONS and not x.is_dir())
    tables = [x for x in candidates if table_suffix(x) in SUFFIXES]
    if not tables:
        return _find_below(folder, entries)
    tables_by_split: dict[int, list[Path]] = {}
    other_tables: list[Path] = []
    for path in tables:
        match = _SPLIT.match(path.name)
        (
            tables_by_split.setdefault(FOLDERS[match[1].lower()], []) if match else other_tables
        ).append(path)
    if not tables_by_split and any(path.is_dir() for path in entries):
        return {}  # subfolders of classes, with a table beside them
    if len(tables_by_split) < 2 and TRAIN not in tables_by_split:
        tables_by_split, other_tables = {TRAIN: tables}, []
    _check_splits(folder, tables_by_split, other_tables)
    return {split: tuple(paths) for split, paths in tables_by_split.items()}


def has_columns(path: Path) -> bool:
    """Return whether a path is a table or a folder of tables, not one of texts."""
    if not path.is_dir():
        return True
    folders = find_split_folders(path).values()
    return bool(find_tables(path)) or any(find_tables(folder) for folder in folders)


def _find_below(folder: Path, entries: Sequence[Path]) -> dict[int, tuple[Path, ...]]:
    """Return the tables of the one subfolder that has parquet files, or of `data`."""
    subfolders = [x for x in entries if x.is_dir() and any(x.glob("*.parquet"))]
    if not subfolders or all(x.name in FOLDERS for x in subfolders):
        return {}
    folders = [x for x in subfolders if x.name == _DATA] or subfolders
    if len(folders) > 1:
        raise DataError(
            f"{folder} has parquet files in {', '.join(x.name for x in subfolders)}; pass one of "
            "these folders"
        )
    return find_tables(folders[0])


def _check_splits(
    folder: Path, tables_by_split: dict[int, list[Path]], other_tables: Sequence[Path]
) -> None:
    """Check that all tables are of a split, whose shards are complete."""
    splits = ", ".join(SPLITS[split] for split in sorted(tables_by_split))
    if other_tables:
        raise DataError(
            f"{folder} has tables of {splits}, and also {other_tables[0].name}; move it "
            "elsewhere, or pass the files of each split"
        )
    if TRAIN not in tables_by_split:
        raise DataError(f"{folder} has tables of {splits}, and none of train; add one")
    _check_shards(folder, tables_by_split, "its file")


def _check_shards(folder: Path, files_by_split: dict[int, list[Path]], remedy: str) -> None:
    """Check that the files of each split are numbered shards, of which none is missing."""
    for split, paths in files_by_split.items():
        kinds = {_DIGITS.sub("", path.name): path.name for path in paths}
        if len(kinds) > 1:
            raise DataError(
                f"{folder} has several files of {SPLITS[split]} that are no numbered shards, such "
                f"as {' and '.join(sorted(kinds.values())[:2])}; keep one of them, or pass {remedy}"
            )
        shards: set[Path] = set()
        for path in paths:
            if path not in shards:
                shards.update(shards_of(path))
