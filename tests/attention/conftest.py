"""Option `--mechanism`: the contract of one mechanism, also of a file outside the package.

The fixture `on_cpu` lets kernels for GPUs run on the CPU.
"""

import os
from pathlib import Path

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption(
        "--mechanism",
        metavar="NAME|FILE.py",
        help="run the contract tests of one mechanism, or of those that a file registers",
    )


def pytest_configure(config):
    """Name the file to `contract`, which imports it, in the processes that tests start too."""
    chosen = config.getoption("--mechanism", None)
    if chosen and chosen.endswith(".py"):
        if not Path(chosen).is_file():
            raise pytest.UsageError(f"--mechanism: no file {chosen}")
        os.environ["LONGSPAN_TEST_MECHANISM"] = str(Path(chosen).resolve())


def pytest_collection_modifyitems(config, items):
    """Deselect the tests of other mechanisms, and those of no mechanism."""
    chosen = config.getoption("--mechanism", None)
    if not chosen:
        return
    import contract

    names = contract.PLUGINS if chosen.endswith(".py") else {chosen}
    kept, dropped = [], []
    for item in items:
        case = getattr(item, "callspec", None)
        is_contract = item.path.name.startswith("test_contract") and case is not None
        own = is_contract and case.params.get("name") in names
        (kept if own else dropped).append(item)
    if not kept:
        known = ", ".join(sorted(contract.MECHANISMS))
        raise pytest.UsageError(f"--mechanism: no mechanism {chosen!r}; there are: {known}")
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept


@pytest.fixture
def on_cpu(monkeypatch):
    """Let FlexAttention run in float64 on the CPU, gradients included, and forget earlier calls."""
    import torch.nn.attention.flex_attention as torch_flex

    from longspan.attention.kernels.flex import calls as flex
    from longspan.attention.kernels.flex.mask_cache import MaskCache

    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "device_refusals", lambda *_: [])
    monkeypatch.setattr(flex, "DTYPES", (*flex.DTYPES, torch.float64))
    monkeypatch.setattr(flex, "_masks", MaskCache(flex.MASKS))
    compiled = flex.compile_kernel
    compiled.cache_clear()
    yield
    compiled.cache_clear()
