"""Environment variables of a launch: numbers, or refused by name before anything is trained."""

import pytest

from longspan.errors import OptionError
from longspan.training.distributed.launch import MORE_NUMBERS, NUMBERS, launched_processes

LAUNCH = {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}


@pytest.fixture(autouse=True)
def no_launch(monkeypatch):
    for name in (*NUMBERS, *MORE_NUMBERS):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"RANK": "x", "MASTER_PORT": "x"}, 1),  # left behind, without a launch
        ({"WORLD_SIZE": "3"}, 3),
        ({**LAUNCH, "RANK": "1", "MASTER_PORT": "29500"}, 2),
    ],
    ids=str,
)
def test_processes_are_those_of_the_launch(environment, count, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launched_processes() == count


@pytest.mark.parametrize("value", ["x", "", "-1", "1.5"])
@pytest.mark.parametrize("name", [*NUMBERS, *MORE_NUMBERS])
def test_what_is_no_number_is_named(name, value, monkeypatch):
    for key, number in {**LAUNCH, name: value}.items():
        monkeypatch.setenv(key, number)
    with pytest.raises(
        OptionError, match=f"variable {name} must be a number, got '{value}'; unset"
    ):
        launched_processes()


def test_commands_refuse_it(monkeypatch, cli, tiny_cache, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "x")
    paths = ("--runs", tmp_path, "--cache", tiny_cache, "--device", "cpu")
    code, _, err = cli("train", "local", "listops", "--protocol", "smoke", *paths)
    assert code == 2
    assert err.startswith("error: environment variable WORLD_SIZE must be a number, got 'x'")
