"""Valid synthetic records."""

import pytest
from counted_records import with_counts

import synthetic


@pytest.fixture(scope="session")
def valid_records():
    """Return records of two mechanisms with three seeds on the two tasks of `smoke`."""
    return [with_counts(x) for x in synthetic.records("smoke", 3, ["local", "linformer"])]


@pytest.fixture
def listops_folder(valid_records, tmp_path):
    """Return a folder with three seeds of one mechanism on one task, which are compared."""
    for record in valid_records:
        if (record.task, record.mechanism) == ("listops", "local"):
            record.save(tmp_path)
    return tmp_path


@pytest.fixture
def folder(valid_records, tmp_path):
    """Return a folder with the valid records."""
    for record in valid_records:
        record.save(tmp_path)
    return tmp_path
