"""The privacy statement: what it says is what the release, its setting and the ledger say."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchmetrics_fed
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    PrivacyLedger,
    Release,
    ReleaseError,
)
from torchmetrics_fed.release import ReleaseFlag
from torchmetrics_fed.report import PrivacyStatement, evaluation_report, privacy_statement
from torchmetrics_fed.simulate import simulate

Data = tuple[Tensor, Tensor]
DISTRIBUTED = DistributedDP(0.5, min_clients=3)


def _release(
    data: Data,
    privacy: Privacy | None,
    ledger: PrivacyLedger | None = None,
    round: str = "7",
    **options: Any,
) -> Release:
    """The release that five real clients would have: simulated, without the flag that says so."""
    return replace(_simulated(data, privacy, ledger, round, **options), flags=ReleaseFlag(0))


def _simulated(
    data: Data,
    privacy: Privacy | None,
    ledger: PrivacyLedger | None = None,
    round: str = "7",
    **options: Any,
) -> Release:
    preds, target = data
    parts = list(zip(preds.chunk(5), target.chunk(5), strict=True))
    metric = FederatedROC(
        quantiles=64, privacy=privacy, ledger=ledger, data="validation", **options
    )
    return simulate(parts, metric, round=round).release


@pytest.mark.parametrize(
    "privacy",
    [
        LocalDP(0.5, examples_per_person=3),
        CentralDP(0.5, delta=1e-6, mechanism="skellam", neighbours="replace_one"),
        DISTRIBUTED,
        DistributedDP(0.5, min_clients=3, trusted_aggregator=True),
    ],
    ids=lambda privacy: type(privacy).__name__,
)
def test_words_and_fields_are_the_settings(scored: Data, privacy: Privacy, tmp_path: Path) -> None:
    ledger = PrivacyLedger(3.0, tmp_path / "ledger")
    release = _release(scored, privacy, ledger)
    statement = privacy_statement(release, ledger)
    fields = statement.fields
    text = str(statement)
    for name in (
        "epsilon",
        "neighbours",
        "examples_per_person",
        "mechanism",
        "holds_against",
        "unit",
    ):
        assert fields[name] == getattr(privacy, name)
    assert fields["delta"] == release.spec.delta
    assert fields["shares"] == 5
    assert fields["clients_needed"] == privacy.clients_needed
    assert fields["package"] == f"torchmetrics-fed {torchmetrics_fed.__version__}"
    (entry,) = ledger
    charged = fields["ledger"]
    assert charged["entry"]["time"] == entry.time
    assert charged["digest"] == ledger.digest(entry)
    sentences = [
        f"epsilon {privacy.epsilon:g}, delta {release.spec.delta:.3g}",
        privacy.unit,
        privacy.holds_against,
        privacy.neighbours,
        f"at most {privacy.examples_per_person}, by the word of",
        "shares in the sum: 5",
        f"Needed at least: {privacy.clients_needed}",
        f"When: {entry.time}",
        "data 'validation'",
        ledger.digest(entry),
        fields["package"],
        "Not protected: ",
    ]
    for sentence in sentences:
        assert sentence in text
    for heading in ("Trust model: ", "Mechanism: ", "Privacy loss: "):
        assert text.count(heading) == 1
    assert ("a server that breaks the protocol" in text) == release.spec.hides_shares
    is_trusted = isinstance(privacy, DistributedDP) and privacy.trusted_aggregator
    assert ("from the aggregator" in text) == is_trusted


def test_the_bytes_to_sign_do_not_depend_on_the_order_of_fields(scored: Data) -> None:
    statement = privacy_statement(_release(scored, DISTRIBUTED))
    assert json.loads(bytes(statement)) == statement.fields
    reversed_fields = dict(reversed(statement.fields.items()))
    assert bytes(PrivacyStatement(reversed_fields)) == bytes(statement)


def test_a_bound_that_was_enforced_is_said_to_be(scored: Data) -> None:
    metric = FederatedROC(privacy=LocalDP(1.0, examples_per_person=2, enforced=True))
    metric.update(*scored, persons=torch.arange(len(scored[0])))
    text = str(privacy_statement(metric.release()))
    assert "at most 2, enforced where they were counted" in text
    assert "by the word of whoever chose" not in text


@pytest.mark.parametrize("secure", [False, True])
def test_exact_counts_protect_nothing(scored: Data, secure: bool) -> None:
    statement = privacy_statement(_release(scored, None, secure=secure), PrivacyLedger())
    assert statement.fields["epsilon"] is None
    assert "Privacy loss: not limited" in str(statement)
    assert ("shows nobody a single client's counts" in str(statement)) == secure


def test_the_digest_is_that_of_the_saved_file(scored: Data, tmp_path: Path) -> None:
    release = _release(scored, DISTRIBUTED)
    release.save(tmp_path / "7.release")
    expected = hashlib.sha256((tmp_path / "7.release").read_bytes()).hexdigest()
    assert privacy_statement(release).fields["sha256"] == expected


def test_a_release_that_may_not_leave_has_no_digest(scored: Data) -> None:
    metric = FederatedROC(secure=True)
    metric.update(*scored)
    assert privacy_statement(metric.release()).fields["sha256"] is None


def test_the_entry_is_found_by_what_was_asked(scored: Data) -> None:
    ledger = PrivacyLedger()
    # leaves are placed by noise, so that every release asks another query
    releases = [_release(scored, DISTRIBUTED, ledger, round="") for _ in range(3)]
    entries = [privacy_statement(release, ledger).fields["ledger"]["entry"] for release in releases]
    assert [entry["client"] for entry in entries] == [entry.client for entry in ledger]


def test_an_entry_that_could_be_another_is_not_named(scored: Data) -> None:
    ledger = PrivacyLedger()
    release = [_release(scored, DISTRIBUTED, ledger, round="", plan="single") for _ in range(2)][-1]
    statement = privacy_statement(release, ledger)
    assert statement.fields["ledger"]["entry"] is None
    assert statement.fields["ledger"]["digest"] == ledger.digest()
    assert "several releases look like this one" in str(statement)


def test_rounds_that_are_named_tell_releases_apart(scored: Data) -> None:
    metric = FederatedROC(privacy=LocalDP(0.5), plan="single")
    for round in ("1", "2"):
        metric.update(*scored)
        release = Release.sum([metric.share(round=round)])
        metric.reset()
    assert privacy_statement(release, metric.ledger).fields["ledger"]["entry"]["round"] == "2"


def test_another_ledger_is_refused(scored: Data) -> None:
    with pytest.raises(ReleaseError, match="ledger with the entry of this release"):
        privacy_statement(_release(scored, DISTRIBUTED), PrivacyLedger())
    with pytest.raises(InputError, match="Expected a Release but got Tensor"):
        privacy_statement(torch.zeros(2, 4))  # type: ignore[arg-type]


def test_names_cannot_forge_lines(scored: Data) -> None:
    metric = FederatedROC(privacy=LocalDP(0.5), data="x\nPrivacy loss: none", plan="single")
    metric.update(*scored)
    release = Release.sum([metric.share(round="{epsilon}\nHolds against: everyone")])
    text = str(privacy_statement(release, metric.ledger))
    assert sum(line.startswith("Privacy loss:") for line in text.splitlines()) == 1
    assert sum(line.startswith("Holds against:") for line in text.splitlines()) == 1
    assert "{epsilon}" in text


HIDING = ("nobody a single", "ecure aggregation shows", "breaks the protocol", "aggregator sees")


@pytest.mark.parametrize(
    ("privacy", "secure"),
    [
        (DISTRIBUTED, False),
        (DistributedDP(0.5, min_clients=3, trusted_aggregator=True), False),
        (LocalDP(0.5), False),
        (CentralDP(0.5), False),
        (None, False),
        (None, True),
    ],
    ids=str,
)
def test_a_simulated_release_is_not_said_to_have_hidden_anything(
    scored: Data, privacy: Privacy | None, secure: bool
) -> None:
    """Also after it was saved: the flag is in its bytes."""
    release = _simulated(scored, privacy, secure=secure)
    loaded = Release.from_bytes(bytes(release))
    for read in (release, loaded):
        statement = privacy_statement(read)
        text = str(statement)
        assert statement.fields["simulated"]
        assert text.count("Trust model: ") == 1
        assert "Trust model: all clients' data was in one process" in text
        assert "Not protected: anybody, from the process that simulated the clients." in text
        assert not any(words in text for words in HIDING)
        assert "simulated in one process" in repr(read)
    real = privacy_statement(replace(release, flags=ReleaseFlag(0)))
    assert not real.fields["simulated"]
    assert "simul" not in str(real)
    if release.spec.hides_shares:
        assert any(words in str(real) for words in HIDING)


@pytest.mark.parametrize("way", ["metric", "saved"])
def test_a_prior_and_the_epsilon_of_both_evaluations_are_named(scored: Data, way: str) -> None:
    """An auditor who finds more than epsilon in the file reads that it holds two evaluations."""
    metric = FederatedROC(quantiles=64, privacy=LocalDP(1.0), plan="carry_over")
    releases = []
    for _ in range(3):
        metric.reset()
        metric.update(*scored)
        releases.append(metric.release())
    first = releases[0]
    assert "Prior" not in str(privacy_statement(first))
    assert privacy_statement(first).fields["prior"] is None
    for release in releases[1:]:
        assert release.prior is not None
        read = release if way == "metric" else Release.from_bytes(bytes(release))
        statement = privacy_statement(read)
        prior = statement.fields["prior"]
        text = str(statement)
        assert prior["epsilon"] == 1.0
        assert prior["both_epsilon"] == 2.0
        assert prior["both_delta"] == 2 * release.spec.delta
        assert prior["fraction"] == release.prior.query.fraction
        assert "Prior: the file also holds the last sum of an earlier release" in text
        assert "Privacy loss: up to epsilon 2, delta " in text
        assert "for a person who is in both evaluations" in text
        assert "in more than these two evaluations" in text
        assert text.count("Privacy loss: ") == 1
        assert "up to epsilon 2 for a person in both" in repr(read)
    report = evaluation_report(releases[-1])
    assert "up to epsilon 2 for a person in both" in str(report)
    assert report.statement is not None
    assert "up to epsilon 2" in str(report.statement)


@pytest.mark.filterwarnings("ignore:This release is partial:UserWarning")
@pytest.mark.filterwarnings("ignore:The .* of this release:UserWarning")
def test_a_partial_release_is_marked_wherever_it_is_read(scored: Data) -> None:
    complete = _release(scored, LocalDP(4.0))
    broken = Release(complete.sums[:1], "7", flags=ReleaseFlag.PARTIAL)
    for release in (broken, Release.from_bytes(bytes(broken))):
        statement = privacy_statement(release)
        assert statement.fields["partial"]
        assert statement.fields["spent_fraction"] == 3 / 64
        sentence = "Partial release: broken off after its first query, which spent 0.046875"
        assert sentence in str(statement)
        assert "partial" in repr(release)
        assert "partial" in str(evaluation_report(release))
    assert not privacy_statement(complete).fields["partial"]
    assert "partial" not in str(evaluation_report(complete))


@pytest.mark.parametrize("shares", [1, 2])
def test_fewer_shares_than_needed_are_not_stated(scored: Data, shares: int) -> None:
    """Three quarters of the cells of one share are the exact counts."""
    metrics = []
    for _ in range(shares):
        private = DistributedDP(1.0, min_clients=3, trusted_aggregator=True)
        metric = FederatedROC(quantiles=64, privacy=private, plan="single")
        metric.update(*scored)
        metrics.append(metric)
    release = Release.sum(metric.share() for metric in metrics)
    for read in (privacy_statement, evaluation_report):
        with pytest.raises(ReleaseError, match="min_clients=3"):
            read(release)


def test_a_run_has_its_own_price_beside_that_of_the_release() -> None:
    privacy = CentralDP.for_run(3.0, evaluations=50)
    metric = FederatedROC(privacy=privacy)
    metric.update(torch.rand(500), torch.randint(0, 2, (500,)))
    statement = privacy_statement(metric.release(), metric.ledger)
    assert statement.fields["run"] == {"evaluations": 50, "epsilon": 3.0, "delta": 1e-6}
    assert statement.fields["epsilon"] == privacy.release_epsilon < 1
    assert "epsilon 3, delta 1e-06, for all evaluations of the run together, 50" in str(statement)
