"""Stored releases are read as they were: curves, areas, bands and intervals stay equal to the bit.

Floats differ between machines and libraries, in how sums are rounded. So readings are equal to the
bit where the fingerprint (versions of Python, numpy, scipy and torch, processor and its
instructions) is the recorded one, and elsewhere they agree to a relative 1e-9. Edges and thresholds
are exact everywhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.stored_releases import (
    EPSILONS,
    PLANS,
    SCORE_FILES,
    Case,
    compare,
    described,
    digest_of,
    fingerprint,
    kept_places,
    load,
    names,
    readings,
    rebuild,
    recorded_fingerprint,
)

SAME_MACHINE = fingerprint() == recorded_fingerprint()
QUICK = "bank_XGBClassifier_0.3_carry_over"


def case_of(name: str) -> Case:
    return load([name])[name]


def test_every_score_file_epsilon_and_plan_is_stored() -> None:
    expected = {
        f"{file}_{epsilon:g}_{plan}"
        for file in SCORE_FILES
        for epsilon in EPSILONS
        for plan in PLANS
    }
    assert len(expected) == 48
    assert expected < set(names())


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_a_stored_release_is_read_as_it_was(name: str) -> None:
    case = case_of(name)
    differences = compare(case, readings(rebuild(case), case.settings))
    if not SAME_MACHINE:
        differences = [difference for difference in differences if not difference.close]
    assert not differences, "\n".join(map(str, differences))


@pytest.mark.parametrize("name", names())
def test_a_rebuilt_release_is_the_stored_one(name: str) -> None:
    case = case_of(name)
    rebuilt = described(name, rebuild(case), case.settings["plan"])
    assert rebuilt.settings == case.settings
    assert (rebuilt.prior is None) == (case.prior is None)
    parts = [*zip(rebuilt.sums, case.sums, strict=True)]
    if rebuilt.prior is not None and case.prior is not None:
        parts.append((rebuilt.prior, case.prior))
    for part, stored in parts:
        assert part.query == stored.query
        assert part.shares == stored.shares
        assert part.times == stored.times
        np.testing.assert_array_equal(part.cells, stored.cells)
        np.testing.assert_equal(part.edges, stored.edges)


def test_readings_of_two_objects_are_equal_to_the_bit() -> None:
    case = case_of(QUICK)
    first = readings(rebuild(case), case.settings)
    second = readings(rebuild(case), case.settings)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert digest_of(value) == digest_of(second[name])


def test_one_more_example_is_noticed() -> None:
    """The comparison has power: a count that is one higher changes areas, curves and bands."""
    case = case_of(QUICK)
    *earlier, last = case.sums
    cells = last.cells.copy()
    cells[0, 1, -1] += 1
    changed = replace(case, sums=(*earlier, replace(last, cells=cells)))
    values = readings(rebuild(changed), case.settings)
    differences = {difference.reading: difference for difference in compare(case, values)}
    for reading in ("auroc", "average_precision", "roc.tpr", "roc_band.population.low"):
        assert not differences[reading].close
    assert "roc.thresholds" not in differences


@pytest.mark.parametrize("place", [0, 1, 64])
def test_one_bit_is_noticed_and_shown_where_it_is(place: int) -> None:
    case = case_of(QUICK)
    values = readings(rebuild(case), case.settings)
    before = {difference.reading for difference in compare(case, values)}
    for reading in ("roc.thresholds", "roc.tpr"):
        values[reading][place] = np.nextafter(values[reading][place], -1.0)
    differences = [
        difference for difference in compare(case, values) if difference.reading not in before
    ]
    thresholds = [part for part in differences if part.reading == "roc.thresholds"]
    tpr = [part for part in differences if part.reading == "roc.tpr"]
    if SAME_MACHINE:
        assert [part.reading for part in differences] == ["roc.tpr", "roc.thresholds"]
        stored_places = set(kept_places(len(values["roc.tpr"])).tolist())
        assert set(tpr[0].places) == {place} & stored_places
    assert [part.places for part in thresholds] == [(place,)]
    assert not thresholds[0].close  # edges are exact on every machine


def test_a_reading_that_is_gone_or_has_another_shape_is_a_difference() -> None:
    case = case_of(QUICK)
    values = readings(rebuild(case), case.settings)
    del values["auroc"]
    values["roc.fpr"] = values["roc.fpr"][:-1]
    values["new"] = np.zeros(1)
    missing = [difference for difference in compare(case, values) if not difference.close]
    assert [difference.reading for difference in missing] == ["roc.fpr", "auroc", "new"]
