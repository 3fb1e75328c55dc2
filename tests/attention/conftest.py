import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """The tensors are tiny: handing them to threads costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
