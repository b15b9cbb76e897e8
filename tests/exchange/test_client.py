"""A client: counted, drawn once, charged once, and never more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.grids import grid_for
from torchmetrics_fed import (
    CentralDP,
    Coordinator,
    DistributedDP,
    FederatedROC,
    LocalDP,
    PrivacyLedger,
    Query,
    Release,
    ReleaseError,
)
from torchmetrics_fed.counting import Tree
from torchmetrics_fed.errors import LedgerConflictError, SpecMismatchError, WireError
from torchmetrics_fed.exchange import client as client_module
from torchmetrics_fed.exchange.client import Evaluation
from torchmetrics_fed.metrics import evaluation_of, terms_of
from torchmetrics_fed.simulate import simulate

LOCAL = LocalDP(1.0)


def test_the_same_question_gets_the_same_bytes(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=LOCAL)
    metric.update(*scored)
    query = Query(Tree((16,)), 0.5)
    shares = [bytes(metric.share(round="3", query=query)) for _ in range(3)]
    assert len(set(shares)) == 1
    twin: Any = metric.clone()
    assert bytes(twin.share(round="3", query=query)) == shares[0]
    assert len(metric.ledger) == 1


def test_the_same_noise_goes_to_one_round_only(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=LOCAL)
    metric.update(*scored)
    metric.share(round="3")
    for name in ("4", ""):
        with pytest.raises(ReleaseError, match="isolates"):
            metric.share(round=name)
    assert len(metric.ledger) == 1


def test_queries_of_a_round_never_spend_more_than_epsilon(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=LOCAL)
    metric.update(*scored)
    for leaves, fraction in ((16, 0.5), (8, 0.25), (4, 0.25)):
        metric.share(round="3", query=Query(Tree((leaves,)), fraction))
    with pytest.raises(LedgerConflictError, match="fraction that is left"):
        metric.share(round="3", query=Query(Tree((2,)), 2**-10))
    assert [entry.epsilon for entry in metric.ledger] == [1.0]


def test_the_whole_epsilon_is_charged_before_the_first_draw(
    scored: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = FederatedROC(privacy=LOCAL)
    metric.update(*scored)
    charged: list[float] = []
    draw = client_module.noisy_cells

    def watched(*args: Any) -> Tensor:
        charged.append(metric.ledger.spent().epsilon)
        return draw(*args)

    monkeypatch.setattr(client_module, "noisy_cells", watched)
    metric.share(round="3", query=Query(Tree((16,)), 0.125))
    assert charged == [1.0]


def test_one_release_is_one_entry_with_the_delta_of_two_queries(
    scored: tuple[Tensor, Tensor],
) -> None:
    deltas = []
    for plan in (None, "single", "paper"):
        metric = FederatedROC(privacy=CentralDP(1.0), plan=plan, grid=grid_for(plan))
        metric.update(*scored)
        metric.compute()
        (entry,) = metric.ledger
        assert entry.epsilon == 1
        assert entry.spec == metric.spec.digest.hex()
        deltas.append(entry.delta)
    assert len(set(deltas)) == 1
    assert 0 < deltas[0] < 1e-20


# --- a metric that is rebuilt for each message


def rebuilt(ledger: PrivacyLedger, scored: tuple[Tensor, Tensor]) -> FederatedROC:
    metric = FederatedROC(privacy=LOCAL, ledger=ledger)
    metric.update(*scored)
    return metric


def test_a_rebuilt_metric_is_not_the_client_that_began_the_round(
    scored: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    ledger = PrivacyLedger(budget=9.0, path=tmp_path / "ledger")
    first = Query(Tree((16,)), 0.5)
    second = Query(Tree((8,)), 0.5)
    rebuilt(ledger, scored).share(round="3", query=first)
    for query in (first, second):
        with pytest.raises(LedgerConflictError, match="another client"):
            rebuilt(ledger, scored).share(round="3", query=query)
    assert len(ledger) == 1


def test_a_suspended_client_goes_on_in_a_new_process(
    scored: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "ledger"
    first = Query(Tree((16,)), 0.5)
    second = Query(Tree((8,)), 0.5)
    metric = rebuilt(PrivacyLedger(budget=9.0, path=path), scored)
    metric.share(round="3", query=first)
    note = evaluation_of(metric).suspended()
    terms = terms_of(FederatedROC(privacy=LOCAL, ledger=PrivacyLedger(budget=9.0, path=path)))
    resumed = Evaluation.resumed(note, terms)
    assert torch.equal(resumed.counts, metric.counts)
    with pytest.raises(ReleaseError, match="not answered yet"):
        resumed.share(first, round="3")
    assert resumed.share(second, round="3").query == second
    # a note that was kept too long gives nothing twice
    with pytest.raises(LedgerConflictError, match="not answered before"):
        Evaluation.resumed(note, terms).share(second, round="3")
    assert len(terms.ledger) == 1


def test_only_a_client_between_two_queries_is_suspended(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=LOCAL)
    metric.update(*scored)
    with pytest.raises(ReleaseError, match="between two queries"):
        evaluation_of(metric).suspended()


def test_a_note_belongs_to_its_spec(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=LOCAL)
    metric.update(*scored)
    metric.share(query=Query(Tree((16,)), 0.5))
    with pytest.raises(Exception, match="another spec"):
        Evaluation.resumed(
            evaluation_of(metric).suspended(), terms_of(FederatedROC(privacy=LocalDP(2.0)))
        )


def test_bytes_that_are_no_note_are_refused() -> None:
    with pytest.raises(WireError):
        Evaluation.resumed(b"no note", terms_of(FederatedROC(privacy=LOCAL)))


def test_a_client_is_adopted_until_it_has_drawn(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=LOCAL)
    metric.update(*scored)
    terms = terms_of(FederatedROC(privacy=LOCAL))
    client = evaluation_of(metric).client
    client.adopt(terms)
    metric.share()
    assert (len(metric.ledger), len(terms.ledger)) == (0, 1)
    client.adopt(terms)  # again, by the same ledger
    with pytest.raises(ReleaseError, match="charged to another ledger"):
        client.adopt(terms_of(FederatedROC(privacy=LOCAL)))
    with pytest.raises(SpecMismatchError, match="epsilon"):
        client.adopt(terms_of(FederatedROC(privacy=LocalDP(2.0))))


@pytest.mark.parametrize("name", ["x" * 256, "\ud800"], ids=["long", "not UTF-8"])
def test_a_round_that_no_message_can_hold_is_refused_before_it_is_charged(
    name: str, scored: tuple[Tensor, Tensor]
) -> None:
    metric = FederatedROC(privacy=LOCAL)
    metric.update(*scored)
    with pytest.raises(WireError, match="Expected a"):
        metric.share(round=name)
    with pytest.raises(WireError, match="Expected a"):
        Coordinator(metric, round=name)
    with pytest.raises(WireError, match="Expected a"):
        simulate([scored], FederatedROC(privacy=LOCAL, ledger=metric.ledger), round=name)
    assert len(metric.ledger) == 0
    coordinator = Coordinator(metric, round="1")
    with pytest.raises(WireError, match="Expected a"):
        coordinator.receive(name, metric.share(round="1", query=coordinator.query))
    assert coordinator.received == 0


# --- what compute and share refuse of each other


def test_nothing_is_computed_from_a_share_that_was_sent(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=DistributedDP(1.0, 3, trusted_aggregator=True))
    metric.update(*scored)
    metric.share()
    with pytest.raises(ReleaseError, match="share was sent"):
        metric.compute()


def test_central_noise_has_no_share(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=CentralDP(1.0))
    metric.update(*scored)
    with pytest.raises(ReleaseError, match="CentralDP"):
        metric.share()
    assert len(metric.ledger) == 0


def test_a_first_answer_alone_is_no_release(scored: tuple[Tensor, Tensor]) -> None:
    metric = FederatedROC(privacy=LOCAL, plan="adaptive")
    metric.update(*scored)
    with pytest.raises(ReleaseError, match="Coordinator"):
        Release.sum([metric.share()])
    assert Coordinator(metric, round="3").query == metric.share().query
