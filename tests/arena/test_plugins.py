"""Plug-ins: what they register, their errors, and nodes that load copies of them."""

import importlib
import sys
import warnings

import pytest

import own_files
import tiny
from longspan.arena import PROTOCOLS, get, load_plugin, load_protocol
from longspan.arena import plugins as plugins_module
from longspan.arena.executors.ray import run_on_node
from longspan.arena.plugins import load_entry_points, loaded_plugins, restore_plugins
from longspan.arena.protocols.files import register_imports
from longspan.arena.provenance import source_files
from longspan.attention import MECHANISMS
from longspan.attention.registry import KERNELS
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.errors import PluginError
from longspan.files import file_sha256
from longspan.metrics import METRICS
from longspan.results import SourceFile
from longspan.tasks import TASKS

MECHANISM = '''"""Local attention under another name."""

from longspan.attention import register
from longspan.attention.mechanisms.local import LocalAttention


@register("of_a_user", size_option="window")
class OfAUser(LocalAttention):
    """Local attention under another name."""
'''
PROTOCOL = """
import dataclasses
from longspan.arena.protocols import get, register

register(dataclasses.replace(get("quick"), name={name!r}))
"""

pytestmark = pytest.mark.usefixtures("registries")


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MECHANISM)
    return path


def names():
    return [sorted(registry) for registry in (MECHANISMS, TASKS, PROTOCOLS, METRICS)]


def test_file_registers_its_mechanism_once(plugin):
    assert load_plugin(str(plugin)) == load_plugin(str(plugin)) == loaded_plugins()[0]
    assert "of_a_user" in MECHANISMS
    found = source_files(tiny.experiment("of_a_user"))["mechanism"]
    assert found == SourceFile(name="mine.py", sha256=file_sha256(plugin))


def test_file_may_import_modules_beside_it(tmp_path):
    (tmp_path / "beside_the_plugin.py").write_text("NAME = 'of_a_user'\n")
    (tmp_path / "mine.py").write_text(
        "from beside_the_plugin import NAME\n" + MECHANISM.replace('"of_a_user"', "NAME")
    )
    load_plugin(str(tmp_path / "mine.py"))
    assert "of_a_user" in MECHANISMS


@pytest.mark.parametrize("order", [("first_plugin", "second_plugin"), ("second_plugin",)])
def test_plugins_that_import_one_another_register_once(tmp_path, order):
    for own, other in (("first_plugin", "second_plugin"), ("second_plugin", "first_plugin")):
        text = f"import {other}\n" + MECHANISM.replace("of_a_user", own)
        (tmp_path / f"{own}.py").write_text(text)
    for name in order:
        load_plugin(str(tmp_path / f"{name}.py"))
    assert {"first_plugin", "second_plugin"} <= set(MECHANISMS)


INVALID = {
    "size": (
        MECHANISM + "    def __init__(self, *, rank):\n        super().__init__()\n",
        "argument 'rank' of its constructor has no default; give it one, or list it in traits.size",
    ),
    "size by place": (
        MECHANISM + "    def __init__(self, rank, *, causal=False):\n        super().__init__()\n",
        "argument 'rank' of its constructor has no default; give it one, or list it in traits.size",
    ),
    "positional": (
        MECHANISM + "    def __init__(self, rank=1, /):\n        super().__init__()\n",
        "argument 'rank' of its constructor is positional; arguments are given by name: remove",
    ),
    "missing module": ("import torch\nimport nowhere_to_be_found\n", "line 2: ModuleNotFoundError"),
    "syntax": ("x = 1\ndef f(:\n", "line 2: SyntaxError: "),
    "taken mechanism": (
        MECHANISM.replace("of_a_user", "local"),
        "line 7: mechanism 'local' is already registered, by LocalAttention; choose another name",
    ),
    "taken task": (
        "from longspan.tasks import TASKS, register\n\nregister(TASKS['recall'])\n",
        "line 3: task 'recall' is already registered by RecallTask; choose another name",
    ),
    "taken protocol": (
        PROTOCOL.format(name="quick"),
        "line 5: protocol 'quick' is already registered; choose another name",
    ),
    "second of two": (
        MECHANISM + "\n\nraise ValueError('no\\nsecond line')\n",
        "line 12: ValueError: no",
    ),
    "exit": ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
    "inside torch": ("import torch\n\ntorch.zeros(2) @ torch.zeros(3)\n", "line 3: RuntimeError"),
    "name of a task": (
        MECHANISM.replace("of_a_user", "recall"),
        "mechanism 'recall' has the name of a task; choose another name",
    ),
    "name of a part": (
        MECHANISM.replace("of_a_user", "model"),
        "mechanism 'model' has the name of a part of a configuration",
    ),
    "path": (MECHANISM.replace("of_a_user", "../up"), "must consist of letters, digits, '_'"),
}


@pytest.mark.parametrize("case", INVALID)
def test_failing_plugin_is_named_with_its_line_and_registers_nothing(tmp_path, case):
    text, message = INVALID[case]
    path = tmp_path / "mine.py"
    path.write_text(text)
    before = names()
    with pytest.raises(PluginError) as raised:
        load_plugin(str(path))
    assert str(raised.value).startswith(f"plug-in {path}")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert names() == before
    assert loaded_plugins() == ()
    # Corrected, it is imported.
    path.write_text(MECHANISM)
    load_plugin(str(path))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere_to_be_found", "there is no module 'nowhere_to_be_found'; install it"),
        ("nowhere.to_be.found", "there is no module 'nowhere.to_be.found'; install it"),
        ("mine", "there is no module 'mine'; did you mean mine.py?"),
        ("nowhere.py", "nowhere.py cannot be read (No such file or directory)"),
        ("./mine.txt", "./mine.txt is no plug-in; use a .py or .toml file, or a module's name"),
    ],
)
def test_absent_plugin_is_rejected(plugin, monkeypatch, source, message):
    monkeypatch.chdir(plugin.parent)
    with pytest.raises(PluginError) as raised:
        load_plugin(source)
    assert str(raised.value) == message


def test_module_is_imported_by_name_and_its_error_names_its_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("good_plugin", MECHANISM), ("bad_plugin", "\n1 / 0\n")):
        (tmp_path / f"{name}.py").write_text(text)
    load_plugin("good_plugin")
    assert "of_a_user" in MECHANISMS
    with pytest.raises(PluginError) as raised:
        load_plugin("bad_plugin")
    file = tmp_path / "bad_plugin.py"
    expected = f"plug-in bad_plugin ({file}, line 2): ZeroDivisionError: division by zero"
    assert str(raised.value) == expected
    del sys.modules["good_plugin"]


def test_entry_points_are_imported_and_a_failing_one_names_its_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "installed_plugin.py").write_text(MECHANISM)
    metadata = tmp_path / "of_a_user-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-user\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[longspan.plugins]\nmine = installed_plugin\n")
    importlib.invalidate_caches()
    load_entry_points()
    assert "of_a_user" in MECHANISMS
    (metadata / "entry_points.txt").write_text("[longspan.plugins]\nmine = absent_plugin\n")
    with pytest.raises(
        PluginError, match=r"no module 'absent_plugin'.*the package of-a-user names"
    ):
        load_entry_points()
    del sys.modules["installed_plugin"]


def test_python_file_defines_a_protocol(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PROTOCOL.format(name="first"))
    protocol = load_protocol(str(path))
    assert (protocol.name, protocol.file) == ("first", path)
    assert PROTOCOLS["first"] is protocol
    second = tmp_path / "second.py"
    second.write_text("".join(PROTOCOL.format(name=name) for name in ("second", "third")))
    assert load_protocol(str(second)).name == "second"
    several = tmp_path / "several.py"
    several.write_text("".join(PROTOCOL.format(name=name) for name in ("fourth", "fifth")))
    with pytest.raises(PluginError, match=r"several protocols; pass --import .* fourth, fifth"):
        load_protocol(str(several))
    none = tmp_path / "none.py"
    none.write_text(MECHANISM)
    with pytest.raises(PluginError, match="registers no protocol; call"):
        load_protocol(str(none))


def write_protocol(folder):
    path = folder / "other.toml"
    path.write_text('base = "quick"\n')
    return path


def test_nodes_without_the_files_load_copies(plugin, tmp_path, monkeypatch):
    load_plugin(str(plugin))
    load_plugin(str(write_protocol(tmp_path)))
    sent, digest = loaded_plugins(), file_sha256(plugin)
    # A node: nothing is registered, and the files do not exist.
    monkeypatch.setattr(plugins_module, "_LOADED", {})
    del MECHANISMS["of_a_user"], PROTOCOLS["other"]
    plugin.unlink()
    (tmp_path / "other.toml").unlink()
    experiment = tiny.experiment("local")
    paths = tiny.paths(tmp_path, tmp_path)
    other_version = ("0", experiment.hash)
    outcome = run_on_node(0, experiment, paths, other_version, sent, 1, None)
    assert "has another longspan" in outcome.reason
    assert source_files(tiny.experiment("of_a_user"))["mechanism"].sha256 == digest
    assert PROTOCOLS["other"].file.read_bytes() == sent[1].content
    # Ray runs several experiments in a process.
    restore_plugins(sent, tmp_path)
    assert loaded_plugins() == sent


TASK = """
import dataclasses
from longspan.tasks import TASKS, register


class Reviews(TASKS["recall"]):
    info = dataclasses.replace(TASKS["recall"].info, name="reviews")


register(Reviews)
"""


def test_protocol_files_are_restored_after_what_they_name(tmp_path, monkeypatch):
    """A task of a plug-in has the name of one import; a protocol file names another import."""
    plugin, cache = tmp_path / "mine.py", tmp_path / "cache"
    plugin.write_text(TASK)
    rows = own_files.write_csv(
        tmp_path / "x.csv", own_files.reviews(40), ("body", "stars", "number")
    )
    for name in ("reviews", "letters"):
        import_texts(cache, name, rows, TextsRequest(text="body", target="stars"))
    other = tmp_path / "other.toml"
    other.write_text('[tasks.letters]\nfrom = "own"\n')
    with own_files.forgotten_imports(tmp_path / "none"):
        load_plugin(str(plugin))
        with warnings.catch_warnings(action="ignore"):
            register_imports(cache)
        load_plugin(str(other))
        sent = loaded_plugins()[::-1]
        monkeypatch.setattr(plugins_module, "_LOADED", {})
        del TASKS["reviews"], PROTOCOLS["other"]
        register_imports(tmp_path / "none")
        restore_plugins(sent, cache)
        assert PROTOCOLS["other"].tasks == ("letters",)
        assert TASKS["reviews"].__name__ == "Reviews"


def test_failed_registration_of_a_kernel_is_undone(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from longspan.attention import MECHANISMS, register_kernel\n"
        "register_kernel(MECHANISMS['full'], 'mine', list, automatic=True)(print)\n1 / 0\n"
    )
    with pytest.raises(PluginError):
        load_plugin(str(path))
    assert "mine" not in KERNELS.get(MECHANISMS["full"], {})


def test_records_name_plugins_of_one_file_name(tmp_path, registries):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"# {folder}\n")
        load_plugin(str(tmp_path / folder / "mine.py"))
    files = source_files(get("smoke").experiment("listops", "local", 0))
    hashes = [file_sha256(tmp_path / folder / "mine.py") for folder in ("a", "b")]
    assert [files[x].sha256 for x in ("plug-in mine", "plug-in mine 2")] == hashes


def test_records_name_the_files_of_plugins_and_protocols(tmp_path, registries):
    plugin, own = tmp_path / "mine.py", tmp_path / "own.toml"
    plugin.write_text(MECHANISM)
    own.write_text('base = "smoke"\n')
    load_plugin(str(plugin))
    load_protocol(str(own))
    expected = file_sha256(plugin)
    plugin.write_text("changed since")
    files = source_files(get("own").experiment("listops", "of_a_user", 0))
    assert files["mechanism"] == files["plug-in mine"]
    assert files["plug-in mine"] == SourceFile(name="mine.py", sha256=expected)
    assert files["protocol own"].name == "own.toml"
    assert "protocol own" not in source_files(get("smoke").experiment("listops", "local", 0))
