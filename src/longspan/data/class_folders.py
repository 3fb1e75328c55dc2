"""Folders of texts: one subfolder for each class, in it one file for each text.

The folder may have splits, as IMDB's: `train`, `test` and possibly `validation`, each with the
subfolders of the classes.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path

from longspan.data.own_splits import TEST, TRAIN, VALIDATION
from longspan.errors import DataError
from longspan.files import LARGE, explain_read_error, read_file
from longspan.wording import first_of

FILE, TEXT, LABEL = COLUMNS = ("file", "text", "label")
SPLITS = {
    "train": TRAIN,
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    "test": TEST,
}
# Files and folders that systems leave in folders and archives.
_LEFT_BY_SYSTEMS = ("__MACOSX", "Thumbs.db", "desktop.ini")


def find_split_folders(folder: Path) -> dict[int, Path]:
    """Return the folders of the splits, by split; none if the subfolders are classes.

    Raises:
        DataError: some subfolders are splits and others classes, or two are the same split.
    """
    names = [path.name for path in visible_entries(folder) if path.is_dir()]
    if "train" not in names or not set(names) & (SPLITS.keys() - {"train"}):
        return {}
    found: dict[int, Path] = {}
    for name in names:
        if name not in SPLITS:
            raise DataError(
                f"{folder} has the splits {', '.join(x for x in names if x in SPLITS)}, and also "
                f"{name}; move it elsewhere"
            )
        if SPLITS[name] in found:
            raise DataError(
                f"{folder} has two folders of one split, {found[SPLITS[name]].name} and {name}; "
                "remove one of them"
            )
        found[SPLITS[name]] = folder / name
    return found


def read_class_folder(folder: Path, encoding: str) -> list[list[str]]:
    """Read the texts of all classes, by class and name of the file; hidden files are skipped.

    Returns:
        Values of `COLUMNS` for each file: its path inside the folder, its text and its class.

    Raises:
        DataError: there are no subfolders, a file is binary or in another encoding, or neither a
            file nor a folder of classes.
    """
    groups = list(visible_entries(folder))
    if beside := [group.name for group in groups if not group.is_dir()]:
        raise DataError(
            f"{folder} has files in no subfolder: {first_of(beside)}; expected one "
            "subfolder for each class, with a file for each text. Move them elsewhere"
        )
    rows: list[list[str]] = []
    for group in groups:
        own = read_flat(group, encoding)
        rows += [[f"{group.name}/{name}", text, group.name] for name, text in own]
    return rows


def read_flat(folder: Path, encoding: str) -> list[list[str]]:
    """Read the texts of a folder without subfolders, by name of the file.

    Returns:
        Name and text of each file.

    Raises:
        DataError: there are subfolders, or a file is binary or in another encoding.
    """
    paths = list(visible_entries(folder))
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a folder; expected a file for each text")
    return [[path.name, _read(path, encoding)] for path in paths]


def visible_entries(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder by name, without hidden ones and those of the system."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise explain_read_error(folder, error) from error
    return (x for x in entries if not x.name.startswith(".") and x.name not in _LEFT_BY_SYSTEMS)


def _read(path: Path, encoding: str) -> str:
    try:
        content = read_file(path, LARGE)
    except OSError as error:
        raise explain_read_error(path, error) from error
    is_wide = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    if b"\0" in content and not is_wide:
        raise DataError(f"{path} is no text (it contains a zero byte); remove it")
    try:
        return content.decode(encoding)
    except UnicodeError as error:
        # Other codecs have several bytes for a line break.
        line = ""
        if isinstance(error, UnicodeDecodeError) and not is_wide:
            line = f", line {content.count(10, 0, error.start) + 1},"
        raise DataError(
            f"{path}{line} is not {encoding.removesuffix('-sig')} text; convert the file, or pass "
            "--encoding if all files are in another encoding"
        ) from error
