"""Every two optional arguments, and every argument with every integration: the answer is the
metric's own, by hand."""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import matplotlib as mpl
import pytest
import torch
from torch import Tensor

from tests.integrations.lightning_scores import QUIET
from tests.ranks import RankPool
from tests.transports.carriers import Flower, Folder, Simulated
from tests.transports.consumers import consume, flat
from tests.transports.endpoints import MEMORY, built, named
from tests.transports.nvflare_carrier import NVFlare
from tests.transports.pairs import (
    CLIENTS,
    EPSILON,
    FACTORS,
    TRANSPORTS,
    Case,
    covering,
    kind_of,
    missing_pairs,
    options_of,
    parts_of,
    reading_of,
    refusal,
)
from torchmetrics_fed import FederatedMetric, PrivacyLedger, Query, Release, Spec
from torchmetrics_fed.app.folder import run_coordinator
from torchmetrics_fed.functional import auroc_from_counts, average_precision_from_counts
from torchmetrics_fed.privacy import LedgerEntry

pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:About", "ignore:Too few", "ignore:No (positive|negative)"),
]
mpl.use("Agg")

CARRIERS: dict[str, Any] = {
    "simulate": Simulated,
    "folder": Folder,
    "flower": Flower,
    "nvflare": NVFlare,
}
NEEDS = {"flower": "flwr", "nvflare": "nvflare"}
SUMMED_OVER_RANKS = ("distributed", "trusted")
"""Settings in which no process by itself has enough noise."""


class Outcome(NamedTuple):
    """What an integration made of a case."""

    release: Release
    result: Any
    """What it was given as the metric's answer, flat; None where it is given the release alone."""
    scalars: dict[str, Tensor]
    charged: list[list[LedgerEntry]]
    """Of each ledger, what was charged."""


class Drawn:
    """Records the counts that noise is added to, in this process, by the query that they answer."""

    def __init__(self) -> None:
        self._counts: defaultdict[bytes, list[Tensor]] = defaultdict(list)
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Drawn:
        cells = Spec.cells

        def recorded(spec: Spec, query: Query, counts: Tensor) -> Tensor:
            self._counts[query.digest].append(counts.cpu().clone())
            return cells(spec, query, counts)

        self._patch.setattr(Spec, "cells", recorded)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def of_one_round(self, query: Query, parties: int) -> Tensor:
        """Return the sum of all parties' counts, in the last of the rounds that asked the query."""
        return torch.stack(self._counts[query.digest][-parties:]).sum(0)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return covering()


def outcome_of(case: Case, rounds: int, folder: Path, ranks: RankPool) -> Outcome:
    """Return what the case's integration makes of it."""
    integration = case["integration"]
    options = {**options_of(case), "kind": kind_of(case)}
    parts = parts_of(case)
    # sites would wait for the coordinator
    if integration == "folder" and refusal(case) is not None:
        run_coordinator(folder, built(options), clients=CLIENTS, timeout=1.0)
    if integration in CARRIERS:
        carried = CARRIERS[integration]().carry(options, parts, rounds, folder, False, False)
        return Outcome(carried[-1].release, None, {}, carried[-1].entries)
    consumed = []
    if case["privacy"] in SUMMED_OVER_RANKS:
        consumed += ranks.run(consume, integration, options, parts, rounds, str(folder))
    else:
        consumed.append(consume(0, integration, options, parts, rounds, str(folder)))
    for rank in consumed:
        if isinstance(rank, Exception):
            raise rank
    first = consumed[0]
    charged = [rank.charged[rounds - 1 :] for rank in consumed]
    return Outcome(first.release, first.result, first.scalars, charged)


def check_outcome(case: Case, outcome: Outcome, drawn: Drawn) -> None:
    """The law: the release is of all clients' data, and every answer is what the metric reads
    from it by hand."""
    private = case["privacy"] != "exact"
    kind: Any = kind_of(case)
    by_hand: FederatedMetric = kind(**options_of(case))
    assert outcome.release.spec == by_hand.spec
    read = kind.from_release(outcome.release, **reading_of(case))
    answer = read.compute()
    for part in parts_of(case):
        by_hand.update(**named(by_hand, part))
    draws_here = case["integration"] in CARRIERS or case["privacy"] not in SUMMED_OVER_RANKS
    if private and draws_here:
        parties = CLIENTS if case["integration"] in TRANSPORTS else 1
        total = drawn.of_one_round(outcome.release.last.query, parties)
        assert torch.equal(total, by_hand.counts)
    if not private:
        assert torch.equal(outcome.release.leaf, by_hand.release().leaf)
        assert flat(answer) == flat(by_hand.compute())
    if outcome.result is not None:
        assert outcome.result == flat(answer)
    expected = expected_scalars(case, answer, outcome.release)
    if case["integration"] == "callback" and isinstance(read, FederatedMetric):
        expected |= expected_intervals(read)
    assert outcome.scalars.keys() == expected.keys()
    for name, value in expected.items():
        assert flat(outcome.scalars[name].to(value.dtype)) == flat(value)
    if case["groups"] is not None:
        assert tuple(read.by_group()) == case["groups"]
    for ledger in outcome.charged:
        assert [entry.epsilon for entry in ledger] == [EPSILON] * private
        assert [entry.spec for entry in ledger] == [by_hand.spec.digest.hex()] * private
    if private:
        saved = Release.from_bytes(bytes(outcome.release))
        assert flat(kind.from_release(saved, **reading_of(case)).compute()) == flat(answer)


def expected_scalars(case: Case, answer: Any, release: Release) -> dict[str, Tensor]:
    """Return the numbers that the integration logs or reports, by name, from what was read by
    hand."""
    integration = case["integration"]
    if integration == "log":
        return {"logged": answer.float()}
    if integration == "report":
        return {
            "auroc": auroc_from_counts(release),
            "average_precision": average_precision_from_counts(release),
        }
    if integration != "callback":
        return {}
    scalars = {"metric": answer}
    if not isinstance(answer, Tensor):
        scalars = answer.scalars
    expected: dict[str, Tensor] = {}
    for name, value in scalars.items():
        expected |= by_class(f"val_{name}", value)
    return expected


def expected_intervals(metric: FederatedMetric) -> dict[str, Tensor]:
    """Return the ends of intervals that the callback logs, by name, read by hand."""
    expected: dict[str, Tensor] = {}
    for name, interval in metric.shown_intervals().items():
        key = "val_metric" if metric.definition.result is None else f"val_{name}"
        expected |= by_class(f"{key}_low", interval.low)
        expected |= by_class(f"{key}_high", interval.high)
    return expected


def by_class(name: str, value: Tensor) -> dict[str, Tensor]:
    """Return a number, or the numbers of all classes, by the names under which they are logged."""
    if value.ndim == 0:
        return {name: value.float()}
    return {f"{name}_{number}": of_class.float() for number, of_class in enumerate(value)}


def check_refused(case: Case, rounds: int, folder: Path, ranks: RankPool) -> None:
    """The law: a typed error, before anything is charged."""
    refused = refusal(case)
    assert refused is not None
    with pytest.raises(refused.error, match=refused.match):
        outcome_of(case, rounds, folder, ranks)
    if case["integration"] != "report":  # a report is of what was released before
        for path in folder.glob("**/ledger [0-9]*"):
            assert len(PrivacyLedger(path=path)) == 0


@pytest.mark.parametrize("integration", FACTORS["integration"])
def test_every_pair_of_arguments_through_every_integration(
    integration: str, cases: list[Case], ranks: RankPool
) -> None:
    needed = NEEDS.get(integration)
    if needed is not None and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    for case in cases:
        if case["integration"] != integration:
            continue
        rounds = 2 if case["plan"] == "carry_over" else 1
        with TemporaryDirectory(dir=MEMORY) as home:
            try:
                if refusal(case) is None:
                    with Drawn() as drawn:
                        outcome = outcome_of(case, rounds, Path(home), ranks)
                    check_outcome(case, outcome, drawn)
                else:
                    check_refused(case, rounds, Path(home), ranks)
            except Exception as error:
                raise AssertionError(f"The law does not hold for {dict(case)}.") from error


def test_every_pair_that_a_constructor_takes_occurs(cases: list[Case]) -> None:
    """What is missing is what constructors refuse; a few of them are named here, so that the
    array is not empty."""
    missing = missing_pairs(cases)
    assert (("privacy", "exact"), ("plan", "single")) in missing
    assert (("multi_class", "ovo"), ("confidence", 0.9)) in missing
    for name, value in ((name, value) for name, values in FACTORS.items() for value in values):
        assert any(case[name] == value for case in cases)
        if name != "integration":
            for integration in FACTORS["integration"]:
                assert (("integration", integration), (name, value)) not in missing
    assert len(cases) < 150
