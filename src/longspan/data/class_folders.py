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

COLUMNS = ("text", "label")
_SPLITS = {
    "train": TRAIN,
    **dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION),
    "test": TEST,
}


def find_split_folders(folder: Path) -> dict[int, Path]:
    """Return the folders of the splits, by split; none if the subfolders are classes.

    Raises:
        DataError: some subfolders are splits and others classes, or two are the same split.
    """
    names = [path.name for path in _visible(folder) if path.is_dir()]
    if "train" not in names or not set(names) & (_SPLITS.keys() - {"train"}):
        return {}
    found: dict[int, Path] = {}
    for name in names:
        if name not in _SPLITS:
            raise DataError(
                f"{folder} has the splits {', '.join(x for x in names if x in _SPLITS)}, and also "
                f"{name}; move it elsewhere"
            )
        if _SPLITS[name] in found:
            raise DataError(
                f"{folder} has two folders of one split, {found[_SPLITS[name]].name} and {name}; "
                "remove one of them"
            )
        found[_SPLITS[name]] = folder / name
    return found


def read_class_folder(folder: Path, encoding: str) -> tuple[list[list[str]], list[str]]:
    """Read the texts of all classes, by class and name of the file; hidden files are skipped.

    Returns:
        Text and class of each file, and its path inside the folder.

    Raises:
        DataError: there are no subfolders, a file is binary or in another encoding, or neither a
            file nor a folder of classes.
    """
    rows: list[list[str]] = []
    places: list[str] = []
    for group in _visible(folder):
        if not group.is_dir():
            raise DataError(
                f"{group} is in no subfolder; expected one subfolder for each class, with a file "
                "for each text"
            )
        for path in _visible(group):
            if path.is_dir():
                raise DataError(f"{path} is a folder; expected a file for each text of the class")
            rows.append([_read(path, encoding), group.name])
            places.append(f"{group.name}/{path.name}")
    return rows, places


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder by name, without hidden ones."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise explain_read_error(folder, error) from error
    return (path for path in entries if not path.name.startswith("."))


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
