"""README: its example and its lists."""

import re
from pathlib import Path

from longspan.arena import PROTOCOLS
from longspan.attention import MECHANISMS
from longspan.tasks import TASKS

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_example_has_stated_shape_and_zeros():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["out"].shape == (2, 8, 1000, 64)
    assert names["out"][1, :, 700:].eq(0).all()
    assert names["out"][1, :, :700].ne(0).any(-1).all()


def test_readme_lists_every_mechanism_task_and_protocol():
    listed = set(re.findall(r"`([a-z0-9_-]+)`", README))
    missing = {*MECHANISMS, *TASKS, *PROTOCOLS} - listed
    assert not missing, f"the README does not mention {sorted(missing)}"


def test_readme_is_short():
    assert len(README.splitlines()) <= 80
