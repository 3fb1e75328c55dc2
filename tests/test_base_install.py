"""Commands of an installation without optional packages name the extra to install."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

# Names of modules where they differ from those of their packages.
MODULES = {
    "pillow": "PIL",
    "vl-convert-python": "vl_convert",
    "rouge-score": "rouge_score",
    "scikit-learn": "sklearn",
}
BLOCK = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
sys.argv = ["longspan", *{arguments!r}]
from longspan.__main__ import main
main()
"""


def optional_modules():
    """Return the modules of the extra `arena`, by the metadata of the package."""
    needs = [x for x in importlib.metadata.requires("longspan") if 'extra == "arena"' in x]
    names = [re.match(r"[\w-]+", x)[0] for x in needs]
    return [MODULES.get(x, x) for x in names]


def run_without(blocked, *arguments):
    code = BLOCK.format(blocked=blocked, arguments=arguments)
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"}
    )


def test_optional_modules_are_known():
    assert {"typer", "rich", "transformers", "PIL"} <= set(optional_modules())


@pytest.mark.parametrize("arguments", [("--help",), (), ("list", "mechanisms")])
def test_commands_with_torch_alone_name_the_extra(arguments):
    done = run_without(optional_modules(), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"error: the package \w+ is not installed; .*: pip install 'longspan\[arena\]'\n",
        done.stderr,
    )


def test_entry_point_is_the_checked_one():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"longspan": "longspan.__main__:main"}
