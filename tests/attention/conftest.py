import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _single_thread():
    """Use one thread: on tiny tensors, threads cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
