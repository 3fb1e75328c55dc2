"""Expansion of data classes into the options of commands."""

import dataclasses
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from longspan.cli.options import App, CacheOptions, Integers, Json, Pairs, options
from longspan.config import DecodingConfig
from longspan.errors import OptionError


@options
class Sizes:
    """Options of a test."""

    lengths: Annotated[Integers, typer.Option(help="Lengths.", show_default="all")] = None
    changes: Annotated[Pairs, typer.Option("--set", help="Changes.")] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self):
        """Refuse lengths of 0."""
        if 0 in (self.lengths or ()):
            raise OptionError("--lengths must be >= 1")


@pytest.fixture
def invoke():
    """Function that runs a command with three groups of options; return what it received."""
    app, received = App(), {}

    @app.command()
    def measure(
        name: Annotated[str, typer.Argument()],
        sizes: Sizes,
        folders: CacheOptions,
        decoding: DecodingConfig,
        scale: float = 1.5,
        as_json: Json = False,
    ) -> None:
        """Measure."""
        received.update(
            name=name,
            sizes=sizes,
            folders=folders,
            decoding=decoding,
            scale=scale,
            as_json=as_json,
        )

    def run(*arguments):
        received.clear()
        result = CliRunner().invoke(app, arguments)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return received or result.output

    return run


def test_command_receives_values_in_place_of_texts(invoke):
    words = [
        "a",
        "--lengths",
        "8,16",
        "--set",
        "x.y=2",
        "--set",
        "z=w",
        "--cache",
        "c",
        "--top-k",
        "5",
        "--greedy",
        "--json",
    ]
    with pytest.raises(OptionError, match="greedy decoding samples nothing"):
        invoke(*words)
    words.remove("--greedy")
    assert invoke(*words) == {
        "name": "a",
        "sizes": Sizes(lengths=[8, 16], changes={"x.y": 2, "z": "w"}),
        "folders": CacheOptions(cache=Path("c")),
        "decoding": DecodingConfig(top_k=5),
        "scale": 1.5,
        "as_json": True,
    }


def test_omitted_options_have_the_defaults_of_their_data_class(invoke):
    received = invoke("a")
    assert (received["sizes"], received["decoding"]) == (Sizes(), DecodingConfig())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "8,x"], "--lengths takes comma-separated integers, got '8,x'"),
        (["--lengths", "8,0"], "--lengths must be >= 1"),
        (["--set", "x"], "--set takes NAME=VALUE"),
        (["--set", "x=1", "--set", "x=2"], "--set names x twice"),
    ],
)
def test_messages_name_the_flag_that_is_typed(invoke, arguments, message):
    with pytest.raises(OptionError, match=message):
        invoke("a", *arguments)


def test_help_lists_shared_options_behind_those_of_the_command(invoke):
    text = invoke("--help")
    flags = ["--scale", "--lengths", "--set", "--cache", "--top-k", "--json", "--import"]
    places = [text.index(flag) for flag in flags]
    assert places == sorted(places)
    assert "Most probable tokens to sample from; none: all." in " ".join(
        text.replace("│", " ").split()
    )
