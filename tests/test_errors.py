"""Errors are of one family, and an error about the data is marked."""

from __future__ import annotations

from typing import Any

import pytest

from torchmetrics_fed import errors
from torchmetrics_fed.errors import InputError, about_data, check_choice, check_int


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_federated_metric_error(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.FederatedMetricError)


def test_only_an_error_about_the_data_depends_on_it() -> None:
    error = about_data(InputError("A score is NaN."))
    assert error.depends_on_data
    assert not InputError("A score is NaN.").depends_on_data


@pytest.mark.parametrize("value", [0, 4, 1.0, True, "1", None])
def test_an_argument_that_is_no_int_within_its_bounds_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"argument `size` to be an int from 1 to 3 but got"):
        check_int("size", value, 1, 3)


def test_an_int_without_a_largest_value_is_checked_from_below() -> None:
    check_int("size", 10**30, 1)
    with pytest.raises(InputError, match="an int of at least 1, all classes, but got 0"):
        check_int("size", 0, 1, which=", all classes,")


def test_an_argument_that_is_no_choice_is_refused() -> None:
    check_choice("task", "binary", ("binary", "multiclass"))
    with pytest.raises(InputError, match=r"argument `task` to be one of .* but got 'ranking'"):
        check_choice("task", "ranking", ("binary", "multiclass"))
