"""Shares as bytes and bytes as a release: all that a trainer without an integration of its own needs. No extra."""

from __future__ import annotations

from collections.abc import Iterable

from torchmetrics import MetricCollection

from torchmetrics_fed.errors import SpecMismatchError, WireError
from torchmetrics_fed.metrics import FederatedCurve, representative
from torchmetrics_fed.release import Release, Share
from torchmetrics_fed.spec import Spec

__all__ = ["from_messages", "to_message"]


def to_message(metric: FederatedCurve | MetricCollection, round: str, client: str) -> bytes:
    """Return this client's share for one round, as bytes. Under privacy it is drawn and booked once.

    What only a secure sum may carry (:class:`~torchmetrics_fed.DistributedDP` without a trusted aggregator, or
    ``secure=True``) is refused before anything is drawn or booked; so is :class:`~torchmetrics_fed.CentralDP`.

    Args:
        metric: a federated metric, or a :func:`~torchmetrics_fed.federated_collection`, which sends one share for all.
        round: the round that the server has opened.
        client: this client's name, so that it is summed once.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.integrations.messages import from_messages, to_message
        >>> messages = []
        >>> for client in ("ann", "ben"):
        ...     metric = FederatedROC()
        ...     metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
        ...     messages.append(to_message(metric, "round 1", client))
        >>> from_messages(messages, FederatedROC(), "round 1").shares
        2
    """
    counting = representative(metric)
    counting.spec.check_may_travel()
    return bytes(counting.release(round, client=client))


def from_messages(
    messages: Iterable[bytes],
    metric: FederatedCurve | MetricCollection | Spec,
    round: str,
    *,
    max_examples: int | None = None,
) -> Release:
    """Return the sum of what clients sent for one round; every message is checked, and one that is refused raises.

    No message is kept, so any number takes the memory of one. Give the release to ``from_release`` of any metric.

    Args:
        messages: what :func:`to_message` gave, in any order.
        metric: one built like the clients', or its ``spec``.
        round: the round that is open.
        max_examples: the most examples that one client can have, as in :meth:`Release.sum`.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.integrations.messages import from_messages, to_message
        >>> from_messages([to_message(FederatedROC(), "round 1", "ann")], FederatedROC(), "round 1").round
        'round 1'
    """
    spec = metric if isinstance(metric, Spec) else representative(metric).spec
    spec.check_may_travel()
    shares = (_read(number, message, spec) for number, message in enumerate(messages))
    return Release.sum(shares, max_examples=max_examples, round=round)


def _read(number: int, message: bytes, spec: Spec) -> Share:
    try:
        return Share.from_bytes(message, spec)
    except (SpecMismatchError, WireError) as error:
        raise type(error)(f"Message {number}, counted from 0: {error}") from error
