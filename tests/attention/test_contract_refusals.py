"""Wrong arguments of every door are refused with InputError, never with a raw error."""

from contract import HERE
from kernel_checks import run_file


def test_wrong_arguments_are_refused_in_words():
    *found, count = run_file(HERE / "wrong_inputs.py").strip().splitlines()
    assert int(count.split()[0]) > 20_000
    assert not found, "\n".join(found[:20])
