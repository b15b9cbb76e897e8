"""Threat 4: raw counts get out by checkpoint, pickle, repr, log, exception text, or a
collective."""

from __future__ import annotations

import copy
import hashlib
import io
import logging
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics.wrappers import Running

from tests.ranks import Collectives, RankPool
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedAUROC,
    FederatedModelComparison,
    FederatedROC,
    InputError,
    LocalDP,
    Privacy,
    PrivacyLedger,
    ReleaseError,
)
from torchmetrics_fed.errors import LedgerError
from torchmetrics_fed.metrics import CountsMetric

# noise may well show a class without examples, and the release then says so
pytestmark = pytest.mark.filterwarnings("ignore:No (positive|negative) examples")

MARK = 7_230_171  # every cell that is counted holds this number
PATTERN = MARK.to_bytes(8, "little")
CENTRAL = CentralDP(1e-4)  # so much noise that what is released does not hold it by chance


KINDS = ["curve", "groups", "comparison"]
"""Metrics that count in other shapes: none of them may leak."""


def marked(privacy: Privacy | None = CENTRAL, kind: str = "curve") -> CountsMetric:
    """A metric whose counts can be recognised wherever they turn up."""
    scores = torch.tensor([0.1, 0.9])
    target = torch.tensor([0, 1])
    metric: CountsMetric
    if kind == "comparison":
        compared = FederatedModelComparison(privacy=privacy)
        compared.update(scores, scores.flip(0), target)
        metric = compared
    elif kind == "groups":
        metric = FederatedROC(quantiles=4, privacy=privacy, groups=2)
        metric.update(scores, target, target)
    else:
        metric = FederatedROC(quantiles=4, privacy=privacy)
        metric.update(scores, target)
    metric.counts *= MARK
    return metric


def leaks(channel: bytes | str) -> bool:
    if isinstance(channel, bytes):
        return PATTERN in channel
    return str(MARK) in channel


def saved(thing: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def said(call: Callable[[], Any]) -> str:
    """Everything that a failing call tells, with the values in its frames as a debugger would
    print them."""
    try:
        return str(call())
    except Exception:
        return traceback.format_exc()


CHANNELS: dict[str, Callable[[Any], bytes | str]] = {
    "state_dict": lambda metric: saved(metric.state_dict()),
    "module checkpoint": lambda metric: saved(torch.nn.ModuleDict({"metric": metric}).state_dict()),
    "repr": repr,
    "str": str,
    "ledger": lambda metric: repr(metric.ledger) + "".join(map(str, metric.ledger)),
    "share": lambda metric: said(lambda: repr(metric.share())),
    "refused update": lambda metric: said(
        lambda: metric.update(torch.tensor([2.0]), torch.tensor([1]))
    ),
    "refused merge": lambda metric: said(lambda: metric.merge_state({"counts": metric.counts})),
    "refused load": lambda metric: said(lambda: metric.load_state_dict({"counts": metric.counts})),
    "refused spec": lambda metric: said(lambda: metric.merge_state(FederatedROC(quantiles=8))),
}


@pytest.mark.filterwarnings("ignore:About", "ignore:Too few")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channel", CHANNELS)
def test_no_channel_holds_raw_counts(
    channel: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        metric = marked(kind=kind)
        assert not leaks(CHANNELS[channel](metric))
        metric.compute()
        assert not leaks(CHANNELS[channel](metric))
    assert not leaks(caplog.text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scan_finds_exact_counts(kind: str) -> None:
    metric = marked(privacy=None, kind=kind)
    metric.persistent(True)
    assert leaks(CHANNELS["state_dict"](metric))
    assert leaks(pickle.dumps(metric))


@pytest.mark.parametrize("kind", KINDS)
def test_counts_that_are_not_released_do_not_pickle(kind: str) -> None:
    for attempt in (pickle.dumps, saved, copy.copy):
        with pytest.raises(ReleaseError, match="raw counts"):
            attempt(marked(kind=kind))
    with pytest.raises(ReleaseError, match="checkpoints"):
        marked(kind=kind).persistent(True)


def test_what_was_released_pickles_without_its_counts(tmp_path: Any) -> None:
    metric = FederatedROC(
        quantiles=4, privacy=CENTRAL, ledger=PrivacyLedger(path=tmp_path / "ledger")
    )
    metric.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))
    metric.counts *= MARK
    curve = metric.compute()
    data = pickle.dumps(metric)
    assert not leaks(data)
    twin = pickle.loads(data)
    assert torch.equal(twin.compute().tpr, curve.tpr)
    assert len(twin.ledger) == 1
    with pytest.raises(ReleaseError, match="reset"):
        twin.update(torch.tensor([0.1]), torch.tensor([0]))
    twin.reset()
    twin.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))
    twin.compute()
    assert len(metric.ledger) == 2


def test_a_metric_that_holds_its_share_does_not_pickle(tmp_path: Any) -> None:
    """A share of distributed noise is next to raw: most of its cells carry no noise at all."""
    privacy = DistributedDP(1.0, min_clients=10, trusted_aggregator=True)
    metric = FederatedROC(
        quantiles=4, privacy=privacy, ledger=PrivacyLedger(path=tmp_path / "ledger")
    )
    metric.update(torch.rand(20), torch.randint(0, 2, (20,)))
    metric.share(round="round-1")
    with pytest.raises(ReleaseError, match="raw counts"):
        pickle.dumps(metric)
    metric.reset()
    assert len(pickle.loads(pickle.dumps(metric)).ledger) == 1


def test_a_ledger_in_memory_does_not_travel_with_what_it_knows() -> None:
    metric = marked()
    metric.compute()
    with pytest.raises(LedgerError, match="path"):
        pickle.dumps(metric)
    assert pickle.loads(pickle.dumps(FederatedROC(privacy=CENTRAL))).compute_with_cache


def test_central_noise_has_no_share_to_send() -> None:
    with pytest.raises(ReleaseError, match="CentralDP"):
        marked().share()


def sent_by(rank: int, privacy: Privacy | None, kind: str = "curve") -> list[tuple[str, Tensor]]:
    metric = marked(privacy, kind)
    wire = Collectives()
    with wire, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of so much noise
        metric.compute()
    return wire.sent


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "privacy", [DistributedDP(1e-4, min_clients=3), LocalDP(1e-4)], ids=["distributed", "local"]
)
def test_no_collective_carries_raw_counts(ranks: RankPool, privacy: Privacy, kind: str) -> None:
    for messages in ranks.run(sent_by, privacy, kind):
        assert messages
        # keys of secure aggregation are gathered, as bytes; cells, which are integers of 64 bits,
        # never are
        assert {tensor.dtype for name, tensor in messages if "gather" in name} <= {torch.uint8}
        assert not any(leaks(tensor.numpy().tobytes()) for _, tensor in messages)


@pytest.mark.slow
def test_the_scan_finds_exact_counts_in_a_collective(ranks: RankPool) -> None:
    assert all(
        any(leaks(tensor.numpy().tobytes()) for _, tensor in messages)
        for messages in ranks.run(sent_by, None)
    )


def test_running_windows_are_refused() -> None:
    """torchmetrics' Running copies the counts into states of its own, which pickles and
    checkpoints hold."""
    with pytest.raises(ValueError, match="full_state_update"):
        Running(marked(), window=2)
    window = Running(FederatedAUROC(quantiles=4), window=2)  # exact counts may be seen
    window.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))
    assert float(window.compute()) == 1.0


SECRET = 0.12345671


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_errors_show_no_score_of_a_private_batch(task: Any) -> None:
    """An error text may reach the server: Flower sends it."""
    options: dict[str, Any] = {
        "multiclass": {"num_classes": 3},
        "multilabel": {"num_labels": 3},
    }.get(task, {})
    scores = torch.tensor([SECRET, 1.5])
    if options:
        scores = torch.tensor([[SECRET, 1.5, 0.2]] * 2)
    right = torch.zeros(2, dtype=torch.int64)
    if task == "multilabel":
        right = torch.zeros(2, 3, dtype=torch.int64)
    for preds, target in ((scores, right), (scores.clamp(0, 1), right - 7)):
        shows_values = []
        for privacy in (None, CENTRAL):
            with pytest.raises(InputError) as caught:
                FederatedROC(task, privacy=privacy, **options).update(preds, target)
            shows_values.append("values from" in str(caught.value))
        # the exact metric helps, the private one says nothing of the data
        assert shows_values == [True, False]


PERSONS = ("Ulysses-51771", "a person whose id is longer than a block")


def with_persons(**options: Any) -> FederatedROC:
    metric = FederatedROC(quantiles=4, privacy=CENTRAL, **options)
    metric.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]), persons=PERSONS)
    return metric


def names_somebody(channel: bytes | str) -> bool:
    """Whether an id, or a digest of an id, is in it."""
    data = channel.encode() if isinstance(channel, str) else channel
    secrets = [name.encode() for name in PERSONS]
    secrets += [hashlib.blake2b(secret, digest_size=16).digest() for secret in secrets]
    return any(secret in data or secret.hex().encode() in data for secret in secrets)


OF_PERSONS: dict[str, Callable[[FederatedROC], bytes | str]] = {
    "refused ids": lambda metric: said(
        lambda: metric.update(torch.tensor([0.5]), torch.tensor([1]), persons=[PERSONS[0], None])  # type: ignore[arg-type]
    ),
    "refused shape": lambda metric: said(
        lambda: metric.update(torch.tensor([0.5]), torch.tensor([1]), persons=PERSONS)
    ),
    "refused scores": lambda metric: said(
        lambda: metric.update(torch.tensor([1.5, 0.1]), torch.tensor([1, 1]), persons=PERSONS)
    ),
    "refused copy": lambda metric: said(lambda: metric.merge_state(copy.deepcopy(metric))),
    "release": lambda metric: bytes(metric.release()),
}


CHANNELS_OF_PERSONS = CHANNELS | OF_PERSONS


@pytest.mark.parametrize("channel", CHANNELS_OF_PERSONS)
def test_no_channel_names_a_person(channel: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        metric = with_persons()
        assert not names_somebody(CHANNELS_OF_PERSONS[channel](metric))
        metric.compute()
        assert not names_somebody(CHANNELS_OF_PERSONS[channel](metric))
    assert not names_somebody(caplog.text)


def test_a_pickle_names_no_person(tmp_path: Any) -> None:
    metric = with_persons(ledger=PrivacyLedger(path=tmp_path / "ledger"))
    metric.compute()
    data = pickle.dumps(metric)
    assert not names_somebody(data)
    assert not names_somebody((tmp_path / "ledger").read_bytes())
    assert metric._persons.table is not None
    assert names_somebody(str(metric._persons.table._examples))  # the scan finds what is there
    metric.reset()
    assert metric._persons.table is None


def test_a_pickle_names_no_person_by_number(tmp_path: Any) -> None:
    metric = FederatedROC(
        quantiles=4, privacy=CENTRAL, ledger=PrivacyLedger(path=tmp_path / "ledger")
    )
    people = 5_177_100_051_771, 5_177_100_051_772
    metric.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]), persons=people)
    release = bytes(metric.release())
    for data in (
        release,
        pickle.dumps(metric),
        (tmp_path / "ledger").read_bytes(),
        repr(metric).encode(),
    ):
        assert not any(
            text in data
            for person in people
            for text in (person.to_bytes(8, "little"), str(person).encode())
        )
