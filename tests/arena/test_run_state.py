"""State of a run directory: options that are newer than the file."""

import dataclasses

import pytest

import tiny
from longspan.arena.experiment import add_default_options
from longspan.arena.provenance import code_version
from longspan.arena.run_state import FILE, RunState, claim, read_state
from longspan.attention import options_of
from longspan.config import StartConfig, replace_fields
from longspan.config.base import defaults_of
from longspan.errors import RunError
from longspan.files import write_json
from longspan.tasks import TASKS

START = StartConfig(task="listops", run="0123456789", positions=8, vocabulary=8)


@pytest.mark.parametrize(
    "name",
    [
        *("mechanism.window", "task.end", "model.stem", "training.stages", "training.selection"),
        "start.tokenizer",
    ],
)
def test_run_of_a_version_without_a_field_is_claimed(listops, tmp_path, name):
    part, field = name.split(".")
    experiment = tiny.experiment()
    config = add_default_options(experiment.config)
    default = (defaults_of(TASKS["listops"].Options) | options_of("local")).get(field)
    if part in ("mechanism", "task"):
        config = replace_fields(config, {name: default})
    config = dataclasses.replace(config, start=START if part == "start" else None)
    experiment = dataclasses.replace(experiment, config=config)
    state = RunState(config=config, overrides=experiment.overrides, data_checksum=listops.checksum)
    content = dataclasses.asdict(state)
    tree = content["config"][part]
    (tree["options"] if part in ("mechanism", "task") else tree).pop(field)
    write_json(tmp_path / FILE, content)
    claimed = claim(experiment, listops, tmp_path)
    assert claimed == read_state(tmp_path)
    assert add_default_options(claimed.config) == config
    assert claimed.code == code_version(experiment)
    if part in ("mechanism", "task"):
        other = replace_fields(config, {name: not default if default in (True, False) else 7})
        with pytest.raises(RunError, match=f"another configuration .*{name}: {default!r} there"):
            claim(dataclasses.replace(experiment, config=other), listops, tmp_path)
