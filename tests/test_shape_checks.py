"""The decorator that the tests give to every function of the packages of tensors."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jaxtyping
import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from longspan.attention import Attention
from shape_checks import checked

if TYPE_CHECKING:
    from elsewhere import Absent


@checked
def product(x: Float[Tensor, "T D"], y: Float[Tensor, "D E"], wrong=False) -> Float[Tensor, "T E"]:
    return (x @ y).T if wrong else x @ y


@checked
@dataclass
class Pair:
    first: Float[Tensor, "T D"]
    second: Float[Tensor, "T D"]


def test_axes_of_one_name_are_equal_within_a_call():
    assert product(torch.ones(2, 3), torch.ones(3, 4)).shape == (2, 4)
    assert product(torch.ones(5, 6), torch.ones(6, 7)).shape == (5, 7)
    with pytest.raises(TypeCheckError, match="parameter y"):
        product(torch.ones(2, 3), torch.ones(4, 4))
    with pytest.raises(TypeCheckError, match="parameter x"):
        product(torch.ones(2, 3, dtype=torch.long), torch.ones(3, 4))


def test_results_and_dataclasses_are_checked():
    with pytest.raises(TypeCheckError, match="return"):
        product(torch.ones(2, 3), torch.ones(3, 4), wrong=True)
    with pytest.raises(TypeCheckError, match="parameter second"):
        Pair(torch.ones(2, 3), torch.ones(2, 4))


def test_a_call_within_a_call_has_its_own_axes():
    @checked
    def transposed(x: Float[Tensor, "T D"]) -> Float[Tensor, "D T"]:
        return product(x.T, torch.eye(len(x)))

    assert transposed(torch.ones(2, 3)).shape == (3, 2)


def test_names_without_a_type_at_run_time_stand_for_any_type():
    @checked
    def function(x: "Absent", y: type["Absent"], n: int) -> "int":
        return x

    assert function(3, None, 1) == 3
    for wrong in ((3, None, "n"), ("x", None, 1)):
        with pytest.raises(TypeCheckError):
            function(*wrong)


def test_checks_can_be_disabled(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(RuntimeError):
        product(torch.ones(2, 3), torch.ones(4, 4))


def test_functions_without_types_are_unchanged():
    def function(x):
        return x

    assert checked(function) is function


def test_methods_of_the_library_are_checked():
    assert Attention.forward.__wrapped__.__globals__["__name__"] == Attention.__module__
