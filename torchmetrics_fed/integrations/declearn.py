"""Inside declearn: a Metric whose state is a share, summed as it is or by declearn's SecAgg. Extra ``declearn``."""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from declearn.metrics import Metric, MetricState
from torchmetrics import MetricCollection

from torchmetrics_fed.aggregation.secure import SecureAggregationClient, SecureAggregationConfig
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError
from torchmetrics_fed.exchange import Coordinator
from torchmetrics_fed.exchange.plans import check_one_query
from torchmetrics_fed.metrics import CountsMetric, FederatedAUROC, representative, terms_of
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Query, Release, Spec, Sum

__all__ = ["ShareMetric"]

_LIFT = (
    1 << 40
)  # SecAgg is exact only for what is not negative: each client raises its cells by this
_log = logging.getLogger("declearn.torchmetrics_fed")


@dataclass
class ShareState(MetricState):
    """What declearn moves: shares where the server may see them, or raised cells, which its SecAgg sums."""

    shares: list[bytes] = field(default_factory=list, repr=False)
    cells: Any = field(default=None, repr=False)
    """uint64; the last one is the largest that a client can have, to find out whether SecAgg has room for it."""
    clients: int = 0
    summed: bool = False
    """Whether this is a sum: declearn also shows the server's metric each client's state by itself."""

    def to_dict(self) -> dict[str, Any]:
        """Return what travels unencrypted; raises where shares must be hidden."""
        if not self.shares:
            raise ReleaseError(
                "Expected declearn's SecAgg to encrypt this share but it is off; nothing is sent."
            )
        return {"shares": self.shares}

    def prepare_for_secagg(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what declearn encrypts, and what stays readable: that it is one client's."""
        return {"cells": self.cells}, {"clients": self.clients}

    def aggregate(self, other: ShareState) -> ShareState:
        """Return the sum of both; shares are checked when it is opened."""
        cells = [each.cells for each in (self, other) if each.cells is not None]
        total = sum(cells[1:], cells[0]) if cells else None
        return ShareState(self.shares + other.shares, total, self.clients + other.clients, True)


class _Handover(SecureAggregationClient):
    """declearn's SecAgg in the place of this package's: its encrypter takes the vector as soon as it is drawn."""

    def mask(self, ciphertexts_message: bytes, vector_factory: Any) -> bytes:
        self.vector = vector_factory()
        return b""


class ShareMetric(Metric):
    """A declearn Metric. Subclass it, with a ``name``, in a module that the server and the clients import.

    What a client counts and adds is in its own code: the server sends its spec, and a client whose own differs refuses
    to evaluate. It also sends its query, once for all rounds, so that a release takes one.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> class Curves(ShareMetric):
        ...     name = "curves"
        ...     def build(self, ledger):
        ...         return FederatedROC(ledger=ledger)
        >>> server, client = Curves(), Curves.from_config(Curves().get_config())
        >>> client.update(np.array([0, 0, 1, 1]), np.array([0.1, 0.6, 0.4, 0.9]))
        >>> server.set_states(server.get_states() + client.get_states())
        >>> server.get_result()
        {'federated_auroc': 0.75}
    """

    name = "torchmetrics_fed"
    state_cls = ShareState
    client: ClassVar[Any] = None
    """At a client its FederatedClient, set before ``run``, so that SecAgg can be insisted on."""
    ledger: ClassVar[PrivacyLedger | None] = None
    """At a client where its releases are charged, likewise."""
    _release: Release | None = None

    def __init__(self, spec: str | None = None, query: str = "") -> None:
        self.metric = self.build(self.ledger)
        self.one = representative(self.metric)
        self.terms = terms_of(self.one)
        self.releases: list[Release] = []
        check_one_query(self.terms.plan)
        if query:
            self.query = Query.from_bytes(bytes.fromhex(query))
        else:
            self.query = self.terms.plan.unasked_query(self.terms.spec)
        self._servers: Spec | None = None
        """The server's spec, which is given to clients only."""
        if spec is not None:
            self._servers = Spec.from_canonical(spec.encode())
        super().__init__()

    @abstractmethod
    def build(self, ledger: PrivacyLedger | None) -> CountsMetric | MetricCollection:
        """Return the federated metric, or a collection of them that shares one release."""

    def get_config(self) -> dict[str, Any]:
        """Return what the server sends to clients when they begin."""
        return {"spec": self.one.spec.canonical.decode(), "query": bytes(self.query).hex()}

    def build_initial_states(self) -> ShareState:
        return ShareState()

    def update(self, y_true: Any, y_pred: Any, s_wght: Any = None) -> None:
        target, preds = torch.tensor(y_true), torch.tensor(y_pred)
        preds = preds.reshape(target.shape) if self.one.spec.task == "binary" else preds
        self.metric.update(
            preds, target, sample_weight=None if s_wght is None else torch.tensor(s_wght)
        )

    def reset(self) -> None:
        super().reset()
        self.metric.reset()

    def get_states(self) -> ShareState:
        """Return this client's share, drawn and charged here and once, or the server's sum."""
        if self._servers is None:
            return self._states
        self._check_agreed(self._servers)
        spec, query = self.one.spec, self.query
        if spec.hides_shares:
            client = _Handover(self.name, SecureAggregationConfig.for_query(spec, query, self.name))
            self.one.mask(client, b"", query=query)
            shares, cells = [], client.vector
        else:
            share = self.one.share(query=query)
            shares, cells = [bytes(share)], share.cells.reshape(-1).numpy()
        if np.abs(cells).max() >= _LIFT:
            raise ReleaseError(
                f"Expected cells below {_LIFT} but got larger ones; nothing is sent."
            )
        return ShareState(shares, np.append(cells + _LIFT, 2 * _LIFT - 1).astype(np.uint64), 1)

    def set_states(self, states: ShareState) -> None:
        """Open a sum and keep its release in ``releases``; where too little came, there is a warning instead."""
        self._states, self._release = states, None
        if not states.summed:
            return
        try:
            self._release = self._opened(states)
            self.releases.append(self._release)
        except FederatedMetricError as error:
            _log.warning("no curve of this round. %s", error)

    def get_result(self) -> dict[str, float]:
        """Return the AUROC of the release, at the server; a client has none."""
        release = self._release
        return (
            {}
            if release is None
            else {"federated_auroc": float(FederatedAUROC.from_release(release).compute())}
        )

    def _check_agreed(self, spec: Spec) -> None:
        """Raise where this client must not answer. In evaluations, since declearn's server hangs on earlier errors."""
        self.one.spec.check(spec)
        self.terms.check_ledger()
        if spec.hides_shares and (self.client is None or self.client.secagg is None):
            raise ReleaseError(
                "Expected declearn's SecAgg because single shares must be hidden from the server but it is off. Pass "
                f"`secagg=` to FederatedServer and FederatedClient and set `{type(self).__name__}.client`, or use "
                "LocalDP, or `trusted_aggregator=True` if the server may see them."
            )

    def _opened(self, states: ShareState) -> Release:
        if states.shares or states.cells is None:
            coordinator = Coordinator(self.terms, round="", can_ask_again=False)
            for number, share in enumerate(states.shares):
                coordinator.receive(f"client {number}", share)
            coordinator.advance()
            return coordinator.release
        if int(states.cells[-1]) != states.clients * (2 * _LIFT - 1):
            raise ReleaseError(
                "Expected a SecAgg with room for the sum but it overflowed. Pass `bitsize=64`."
            )
        spec = self.one.spec
        if states.clients < max(spec.clients_needed, 1 + spec.hides_shares):
            raise ReleaseError(
                f"Expected more than {states.clients} clients; nothing is opened. Wait for more."
            )
        vector = states.cells[:-1].astype(np.int64) - states.clients * _LIFT
        return Release((Sum.of_vector(spec, self.query, vector, states.clients),))
