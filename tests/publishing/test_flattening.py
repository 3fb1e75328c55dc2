"""Modules in one folder: rewritten imports, and nothing that the modules do not need."""

import ast
import importlib
import re
import sys
import textwrap

import pytest
from transformers.dynamic_module_utils import get_relative_import_files

from longspan.errors import OptionError
from longspan.publishing.flattening import flat_name, flatten_modules, import_line

FILES = {
    "__init__.py": "from flatpkg.inner.core import VALUE as value\nimport nothing_installed\n",
    "top.py": '''"""Top."""
from typing import TYPE_CHECKING

from flatpkg import value
from flatpkg.inner import (
    double,  # a comment
)

if TYPE_CHECKING:
    from flatpkg.unneeded import Thing


def later() -> "Thing":
    from .inner.late import late as renamed

    return renamed() + double(value)
''',
    "unneeded.py": "Thing = int\n",
    "inner/__init__.py": "from .core import double\n",
    "inner/core.py": "import math\n\nVALUE = 4\n\n\ndef double(x):\n    return 2 * math.floor(x)\n",
    "inner/late.py": "from ..leaf import one\n\n\ndef late():\n    return one\n",
    "leaf.py": "one = 1\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Function that writes a package from its files and makes it importable."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / "flatpkg" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    yield write
    for name in [x for x in sys.modules if x.partition(".")[0] in ("flatpkg", "flatcopy")]:
        del sys.modules[name]


def test_flat_copy_computes_the_same_with_only_the_needed_files(package, tmp_path):
    package({**FILES, "__init__.py": FILES["__init__.py"].replace("import nothing_installed", "")})
    texts = flatten_modules(["flatpkg.top"])
    stems = ("top", "inner_core", "inner_late", "leaf")
    assert {flat_name(module) for module in texts} == {f"flatpkg_{stem}" for stem in stems}
    folder = tmp_path / "flatcopy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, text in texts.items():
        (folder / f"{flat_name(name)}.py").write_text(text)
    copied = importlib.import_module("flatcopy.flatpkg_top")
    assert copied.later() == importlib.import_module("flatpkg.top").later() == 9
    assert not re.search(r"^\s*(from|import) flatpkg", "".join(texts.values()), re.MULTILINE)
    # transformers finds the files with regular expressions, in lines of one form.
    needed = get_relative_import_files(folder / "flatpkg_top.py")
    assert {x.rpartition("/")[2] for x in needed} == {f"flatpkg_{x}.py" for x in stems[1:]}


@pytest.mark.parametrize(
    "line",
    [
        "from flatpkg import inner",
        "from flatpkg.inner import core",
        "import flatpkg.inner.core",
        "from flatpkg.inner.core import *",
        "from . import inner",
    ],
)
def test_imports_of_modules_as_names_are_refused(package, line):
    package({"__init__.py": "", "inner/__init__.py": "", "inner/core.py": "", "top.py": line})
    with pytest.raises(OptionError, match=r"flatpkg.top, line 1: .* imports a module"):
        flatten_modules(["flatpkg.top"])


def test_name_of_package_is_taken_before_its_module(package):
    """A package may name a function like the module that defines it."""
    files = {"__init__.py": "from flatpkg.build import build", "build.py": "build = 3\n"}
    package({**files, "top.py": "from flatpkg import build\n"})
    texts = flatten_modules(["flatpkg.top"])
    assert texts["flatpkg.top"] == "from .flatpkg_build import build\n"


def test_names_that_a_package_imports_when_asked_come_from_their_modules(package):
    """`longspan` itself is such a package: `from longspan import Attention`."""
    declared = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .leaf import one\n"
    package({"__init__.py": declared, "leaf.py": "one = 1\n", "top.py": "from . import one\n"})
    texts = flatten_modules(["flatpkg.top"])
    assert texts == {"flatpkg.top": "from .flatpkg_leaf import one\n", "flatpkg.leaf": "one = 1\n"}


def test_long_imports_are_broken_into_lines():
    names = [f"a_long_name_{number}" for number in range(9)]
    lines = import_line("package.module", names, indent="    ")
    assert max(map(len, lines)) <= 100
    (node,) = ast.parse(textwrap.dedent("\n".join(lines))).body
    assert ([alias.name for alias in node.names], node.module) == (names, "package_module")


def test_class_without_a_file_is_refused():
    with pytest.raises(OptionError, match="__main__elsewhere has no source file"):
        flatten_modules(["__main__elsewhere"])
