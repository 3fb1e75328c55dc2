"""Every published data set is read from a folder, one above it, and archives of both, alike."""

import tarfile
import zipfile
from pathlib import Path

import pytest

from longspan.data import given_sources
from longspan.errors import DataError, MissingSourceError, RunError
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.data_cards import is_generated
from published_folders import SOURCES, make_source


def put_above(folder, place):
    """Move a folder into one that a finder does not know."""
    above = place / "downloads" / "set"
    above.parent.mkdir(parents=True)
    folder.rename(above)
    return above.parent


def put_into_zip(folder, place):
    path = place / "some.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for one in sorted(folder.rglob("*")):
            archive.write(one, one.relative_to(folder))
        archive.writestr("__MACOSX/._train.json", "attributes")
    return path


def put_into_tar(folder, place):
    path = place / "some.tgz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, ".")
    return path


FORMS = {
    "folder above": put_above,
    "zip": put_into_zip,
    "tar.gz": put_into_tar,
    "zip of the folder above": lambda folder, place: put_into_zip(put_above(folder, place), place),
}


def checksum_of(task, data, cache):
    task.open(cache, data)
    return [task._examples(split).checksum() for split in SPLITS]


@pytest.mark.parametrize("name", SOURCES)
def test_every_form_of_a_source_gives_the_same_examples(tmp_path, monkeypatch, name):
    for variable in ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA"):
        monkeypatch.delenv(variable, raising=False)
    task, folder = make_source(name, tmp_path / "plain", monkeypatch)
    expected = checksum_of(task, folder, tmp_path / "cache")
    for form, put in FORMS.items():
        place = tmp_path / form
        _, folder = make_source(name, place / "original", monkeypatch)
        given = put(folder, place)
        assert task.describe_missing_data(given) is None, form
        assert checksum_of(task, given, tmp_path / f"cache {form}") == expected, form
    left = [path for path in tmp_path.rglob("*.longspan-*")]
    assert not left


def test_every_published_task_is_covered():
    """Masked tasks read the data of another; images of paths are tested with the release."""
    published = set()
    for name in TASKS:
        task = build(name, {})
        if task.data_name == name and not is_generated(task):
            published.add(name)
    assert published <= SOURCES.keys()


def test_several_folders_with_such_files_are_not_chosen_from(tmp_path, monkeypatch):
    for part in ("one", "two"):
        task, _ = make_source("squad", tmp_path / "data" / part, monkeypatch)
    with pytest.raises(DataError, match=r"several folders with such files, .*one, .*two; pass one"):
        task.open(tmp_path / "cache", tmp_path / "data")


@pytest.mark.parametrize("place", ["data/locked", "data/one/locked", "data"])
def test_folders_that_cannot_be_read_are_left_out(tmp_path, monkeypatch, logged, place):
    data, locked = tmp_path / "data", tmp_path / place
    (data / "one" / "set").mkdir(parents=True)
    locked.mkdir(exist_ok=True)
    listed, asked = Path.iterdir, []

    def refuse(folder):
        if folder == locked:
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    def identify(folder):
        asked.append(folder)
        if folder.name != "set":
            raise MissingSourceError("the files are not here")
        return {}

    monkeypatch.setattr(Path, "iterdir", refuse)
    if locked == data:
        with pytest.raises(MissingSourceError):
            given_sources.locate(data, identify)
    else:
        assert given_sources.locate(data, identify).path == data / "one" / "set"
        assert locked not in asked
    assert f"leaving out {locked}, which cannot be read: Permission denied" in logged.text


def test_messages_name_the_archive(tmp_path, monkeypatch):
    task, folder = make_source("squad", tmp_path / "squad", monkeypatch)
    (folder / "dev-v1.1.json").write_text('{"data": [{}]}')
    archive = put_into_zip(folder, tmp_path)
    with pytest.raises(DataError) as caught:
        task.open(tmp_path / "cache", archive)
    assert str(caught.value).startswith(f"{archive}/dev-v1.1.json: article 0")
    with pytest.raises(MissingSourceError, match="hotpot_train") as caught:
        build("hotpotqa", {}).open(tmp_path / "cache", archive)
    assert ".longspan-" not in str(caught.value)
    assert not list(tmp_path.rglob("*.longspan-*"))


def test_archive_larger_than_the_disk_is_refused(tmp_path, monkeypatch):
    task, folder = make_source("squad", tmp_path / "squad", monkeypatch)

    def refuse(needed, *_):
        raise RunError(f"{needed} bytes are not free")

    monkeypatch.setattr(given_sources, "check_disk", refuse)
    size = (folder / "dev-v1.1.json").stat().st_size
    with pytest.raises(RunError, match=f"{size} bytes"):
        task.open(tmp_path / "cache", put_into_zip(folder, tmp_path))
    assert not list(tmp_path.rglob("*.longspan-*"))
