"""State of a run directory: options that are newer than the file."""

import dataclasses

import pytest

import tiny
from longspan.arena.provenance import code_version
from longspan.arena.run_state import FILE, RunState, claim, read_state
from longspan.config import StartConfig, replace_fields
from longspan.config.run import NEWER_FIELDS
from longspan.files import write_json

START = StartConfig(task="listops", run="0123456789", positions=8, vocabulary=8)


@pytest.mark.parametrize("name", NEWER_FIELDS)
def test_run_of_version_without_a_newer_field_is_claimed(listops, tmp_path, name):
    part, *owner, field = name.split(".")
    experiment = tiny.experiment(*owner)
    config = dataclasses.replace(experiment.config, start=START if part == "start" else None)
    if part != "start":
        config = replace_fields(config, {f"{part}.{field}": NEWER_FIELDS[name]})
    experiment = dataclasses.replace(experiment, config=config)
    state = RunState(config=config, overrides=experiment.overrides, data_checksum=listops.checksum)
    content = dataclasses.asdict(state)
    tree = content["config"][part]
    (tree["options"] if part == "mechanism" else tree).pop(field)
    write_json(tmp_path / FILE, content)
    claimed = dataclasses.replace(state, code=code_version(experiment))
    assert claim(experiment, listops, tmp_path) == read_state(tmp_path) == claimed
