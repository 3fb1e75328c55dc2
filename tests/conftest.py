"""One thread, and one built data set, for all tests that train."""

import os
import subprocess

import pytest
import tiny
import torch

# For the processes that tests start; this one is told below.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def tiny_cache(tmp_path_factory):
    """A cache that holds the tiny ListOps: the generator is compiled once, here."""
    cache = tmp_path_factory.mktemp("cache")
    tiny.listops(cache)
    return cache


@pytest.fixture
def listops(tiny_cache):
    return tiny.listops(tiny_cache)


@pytest.fixture
def one_thread():
    """Tiny tensors: handing them to threads costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_disk(tmp_path_factory):
    """A real file system of 96 KiB."""
    place = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount here: {error}")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=False)
