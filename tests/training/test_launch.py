"""Environment variables of a launch: numbers, or refused by name before anything is trained."""

import os

import pytest

import tiny
from longspan.errors import OptionError
from longspan.launch import LAUNCHED, NUMBERS, launched_processes, without_leftovers


@pytest.fixture(autouse=True)
def no_launch(monkeypatch):
    for name in (*NUMBERS, *LAUNCHED):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"RANK": "x", "LOCAL_RANK": "x", "MASTER_PORT": "x"}, 1),
        ({"WORLD_SIZE": "3", "LOCAL_RANK": "-1"}, 1),
        ({**tiny.LAUNCH, "RANK": "1", "LOCAL_RANK": "0"}, 2),
    ],
    ids=str,
)
def test_processes_are_those_of_the_launch(environment, count, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert launched_processes() == count
    with without_leftovers():
        assert {x for x in environment if x in os.environ} == set(environment if count > 1 else ())
    assert {x: os.environ[x] for x in environment} == environment


@pytest.mark.parametrize("value", ["x", "-1", "1.5"])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_named(name, value, monkeypatch):
    for key, number in {**tiny.LAUNCH, name: value}.items():
        monkeypatch.setenv(key, number)
    with pytest.raises(OptionError, match=f"variable {name} must be a number, got '{value}'"):
        launched_processes()


def test_commands_refuse_it_and_train_with_what_was_left_behind(
    monkeypatch, cli, tiny_cache, tmp_path
):
    monkeypatch.setenv("WORLD_SIZE", "x")
    settings = [word for x in tiny.CHANGES.items() for word in ("--set", "=".join(map(str, x)))]
    paths = ("--runs", tmp_path, "--cache", tiny_cache, "--device", "cpu")
    command = ("train", "local", "listops", "--protocol", "smoke", *settings, *paths)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    code, _, err = cli(*command)
    assert code == 2
    assert err.startswith("error: environment variable WORLD_SIZE must be a number, got 'x'")
    monkeypatch.delenv("MASTER_ADDR")
    code, _, err = cli(*command)
    assert code == 0, err
