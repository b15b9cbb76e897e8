"""Flags: they travel with a release, are named in words, and add up in sums."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tests.release.examples import PRIVATE, empty, exact_share, release_of
from torchmetrics_fed import Query, Release, Share
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.release import ReleaseFlag, Sum
from torchmetrics_fed.release.release import contents


@pytest.mark.parametrize("flags", [ReleaseFlag(number) for number in range(8)], ids=str)
def test_flags_come_back(flags: ReleaseFlag) -> None:
    fraction = 0.5 if ReleaseFlag.PARTIAL in flags else 1.0
    query = Query(Tree((4, 4)), fraction)
    release = Release((Sum(PRIVATE, query, empty(PRIVATE, query)),), "7", flags=flags)
    for copy in (Release.from_bytes(bytes(release)), pickle.loads(pickle.dumps(release))):
        assert copy.flags == flags
        assert bytes(copy) == bytes(release)
        assert copy.remarks == flags.remarks
        assert len(copy.remarks) == flags.value.bit_count()
        description = contents(bytes(copy))
        for remark in copy.remarks:
            assert f"note: {remark}" in description
            assert remark in repr(copy)
        assert ("note: " in description) == bool(flags)


def test_a_sender_that_skips_rows_flags_the_release() -> None:
    strict = exact_share("1")
    skipping = replace(exact_share("1"), skips_bad=True)
    assert not Release.sum([strict]).flags
    groupings: list[list[Share | Release]] = [
        [strict, skipping],
        [skipping, strict],
        [Release.sum([skipping]), strict],
    ]
    for shares in groupings:
        release = Release.sum(shares)
        assert release.flags == ReleaseFlag.ROWS_SKIPPED
        assert Release.from_bytes(bytes(release)).last.skips_bad


def test_a_prior_that_skips_rows_does_not_flag_the_release() -> None:
    release = release_of(3)
    prior = replace(release.last, skips_bad=True)
    assert not Release(release.sums, prior=prior).flags


def test_a_sum_with_a_simulated_part_is_simulated() -> None:
    part = replace(Release.sum([exact_share()]), flags=ReleaseFlag.SIMULATED)
    assert Release.sum([exact_share(), part]).flags == ReleaseFlag.SIMULATED
