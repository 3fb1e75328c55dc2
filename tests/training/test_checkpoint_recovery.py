"""Pointer of the checkpoints written again from the folders beside it; checksums of a folder."""

import shutil

import pytest
import torch

import tiny
from longspan.arena import make_model
from longspan.errors import RunError
from longspan.files import write_json
from longspan.temporaries import machine_id
from longspan.training.checkpoint import Checkpoints
from longspan.training.checkpoint_files import CHECKSUMS, verify_checksums, write_checksums
from longspan.training.checkpoint_pointer import POINTER, read_pointer
from longspan.training.progress import Progress

SAVED = {"step-000002", "step-000003", "best-000001"}


@pytest.fixture
def saved(listops, tmp_path):
    """Folder of checkpoints of steps 2 and 3, and a function that loads the last one."""
    model = make_model(tiny.experiment(), listops)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = Checkpoints(tmp_path)
    best = checkpoints.save_best(model, 1)
    for step in (1, 2, 3):
        checkpoints.save(model, optimizer, Progress(step=step, best_step=1), best)

    def load():
        """Load the last checkpoint as a start of the run does; None without one."""
        again = Checkpoints(tmp_path)
        again.tidy()
        return again.load(model, optimizer)[0].step if again.exists() else None

    assert folders(tmp_path) == SAVED
    return tmp_path, load


def folders(work):
    return {path.name for path in work.iterdir() if path.is_dir()}


def damage(folder):
    (folder / "model.safetensors").write_bytes(b"half")


@pytest.mark.parametrize("pointer", ["damaged", "missing"])
def test_both_checkpoints_are_kept_without_pointer(saved, caplog, pointer):
    work, load = saved
    expected = read_pointer(work)
    if pointer == "damaged":
        (work / POINTER).write_text("{")
    else:
        (work / POINTER).unlink()
    assert load() == 3
    assert folders(work) == SAVED
    assert read_pointer(work) == expected
    (warning,) = caplog.messages
    assert warning.startswith(str(work / POINTER))
    damage(work / "step-000003")
    assert load() == 2


def test_damaged_pointer_and_checkpoints_beside_intact_best_model_are_rejected(saved):
    work, load = saved
    for folder in work.glob("step-*"):
        damage(folder)
    (work / POINTER).write_text("{")
    with pytest.raises(RunError, match=r"last\.json cannot be read .*; remove .* to start the run"):
        load()
    assert folders(work) == SAVED


def test_finished_run_is_recovered_from_its_best_model(saved):
    work, load = saved
    for folder in work.glob("step-*"):
        shutil.rmtree(folder)
    (work / POINTER).write_text("{")
    assert load() is None
    assert Checkpoints(work).best() == work / "best-000001"


def test_best_model_of_a_run_killed_before_its_first_checkpoint_is_removed(saved):
    work, load = saved
    for folder in work.glob("step-*"):
        shutil.rmtree(folder)
    (work / POINTER).unlink()
    assert load() is None
    assert not folders(work)


def test_checksums_leave_out_temporary_files(tmp_path):
    """One of a killed writer is removed; one of another machine may be in use."""
    write_json(tmp_path / "state.json", {})
    temporaries = [
        tmp_path / f".{CHECKSUMS}.longspan-{machine}-12345678"
        for machine in (machine_id(), "0" * 8)
    ]
    for path in temporaries:
        path.write_text("half")
    write_checksums(tmp_path)
    assert [path.exists() for path in temporaries] == [False, True]
    temporaries[1].unlink()
    verify_checksums(tmp_path)
