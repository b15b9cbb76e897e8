"""Inside declearn: a Metric whose state is a share, which declearn sums. Extra ``declearn``.

declearn sums the states of its clients. Where the server may see shares, a state carries the bytes
of one share. Where shares must be hidden, a state carries the cells of the share as integers that
are not negative, and declearn's SecAgg sums them. The server sends its spec and its query once, so
a release takes one query.
"""

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

LIFT = 1 << 40
"""Every client adds this to each cell, and the server subtracts it again for every client.

declearn's SecAgg is exact only for integers that are not negative; noisy cells can be negative.
"""

LARGEST_LIFTED_CELL = 2 * LIFT - 1

_log = logging.getLogger("declearn.torchmetrics_fed")


@dataclass
class ShareState(MetricState):
    """One client's share, or the sum of such states.

    Shares travel as bytes where the server may see them. Else lifted cells travel, which declearn's
    SecAgg encrypts and sums.
    """

    shares: list[bytes] = field(default_factory=list, repr=False)
    cells: Any = field(default=None, repr=False)
    """Lifted cells, uint64. The last one is :data:`LARGEST_LIFTED_CELL`: if its sum is wrong,
    SecAgg had no room for the sum."""
    clients: int = 0
    summed: bool = False
    """Whether this is a sum. declearn also shows each client's state to the server's metric."""

    def to_dict(self) -> dict[str, Any]:
        """Return the part that travels unencrypted; raise if the share must be hidden."""
        if not self.shares:
            raise ReleaseError(
                "Cannot send this share unencrypted: declearn's SecAgg is off, and the share must "
                "be hidden. Nothing is sent."
            )
        return {"shares": self.shares}

    def prepare_for_secagg(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the part that declearn encrypts, and the part that stays readable."""
        return {"cells": self.cells}, {"clients": self.clients}

    def aggregate(self, other: ShareState) -> ShareState:
        """Return the sum of two states. Shares are checked when the sum is opened."""
        if self.cells is None:
            cells = other.cells
        elif other.cells is None:
            cells = self.cells
        else:
            cells = self.cells + other.cells
        return ShareState(
            shares=self.shares + other.shares,
            cells=cells,
            clients=self.clients + other.clients,
            summed=True,
        )


class _Handover(SecureAggregationClient):
    """Stands for declearn's SecAgg: it hands the vector over as soon as it is drawn."""

    def mask(self, ciphertexts_message: bytes, vector_factory: Any) -> bytes:
        self.vector = vector_factory()
        return b""


class ShareMetric(Metric):
    """A declearn Metric. Subclass it, with a ``name``, in a module that server and clients import.

    Each client decides in its own code how it counts and how much noise it adds: the server sends
    its spec, and a client with another spec refuses to evaluate. The server also sends its query,
    once for all rounds, so that a release takes one query.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> class Curves(ShareMetric):
        ...     name = "curves"
        ...     def build(self, ledger):
        ...         return FederatedROC(ledger=ledger)
        >>> server = Curves()
        >>> client = Curves.from_config(server.get_config())
        >>> client.update(np.array([0, 0, 1, 1]), np.array([0.1, 0.6, 0.4, 0.9]))
        >>> server.set_states(server.get_states() + client.get_states())
        >>> server.get_result()
        {'federated_auroc': 0.75}
    """

    name = "torchmetrics_fed"
    state_cls = ShareState
    client: ClassVar[Any] = None
    """A client sets its FederatedClient here before ``run``, so that it can insist on SecAgg."""
    ledger: ClassVar[PrivacyLedger | None] = None
    """A client sets its ledger here before ``run``. Its releases are charged to it."""
    _release: Release | None = None

    def __init__(self, spec: str | None = None, query: str = "") -> None:
        self.metric = self.build(self.ledger)
        self.one = representative(self.metric)
        """A metric that stands for all metrics of the collection."""
        self.terms = terms_of(self.one)
        self.releases: list[Release] = []
        check_one_query(self.terms.plan)
        if query:
            self.query = Query.from_bytes(bytes.fromhex(query))
        else:
            self.query = self.terms.plan.unasked_query(self.terms.spec)
        self._server_spec: Spec | None = None
        """The server's spec, at a client; None at the server."""
        if spec is not None:
            self._server_spec = Spec.from_canonical(spec.encode())
        super().__init__()

    @abstractmethod
    def build(self, ledger: PrivacyLedger | None) -> CountsMetric | MetricCollection:
        """Return the federated metric, or a collection of metrics that share one release."""

    def get_config(self) -> dict[str, Any]:
        """Return the settings that the server sends to clients when they begin."""
        return {
            "spec": self.terms.spec.canonical.decode(),
            "query": bytes(self.query).hex(),
        }

    def build_initial_states(self) -> ShareState:
        return ShareState()

    def update(self, y_true: Any, y_pred: Any, s_wght: Any = None) -> None:
        target = torch.tensor(y_true)
        preds = torch.tensor(y_pred)
        if self.terms.spec.task == "binary":
            preds = preds.reshape(target.shape)
        sample_weight = None
        if s_wght is not None:
            sample_weight = torch.tensor(s_wght)
        self.metric.update(preds, target, sample_weight=sample_weight)

    def reset(self) -> None:
        super().reset()
        self.metric.reset()

    def get_states(self) -> ShareState:
        """Return this client's share, drawn and charged once; at the server, the sum of shares."""
        if self._server_spec is None:
            return self._states
        self._check_agreed(self._server_spec)
        shares = []
        if self.terms.spec.hides_shares:
            cells = self._hidden_cells()
        else:
            share = self.one.share(query=self.query)
            shares = [bytes(share)]
            cells = share.cells.reshape(-1).numpy()
        if np.abs(cells).max() >= LIFT:
            raise ReleaseError(
                f"Cannot send this share: its cells must be below {LIFT}. Nothing is sent."
            )
        lifted = np.append(cells + LIFT, LARGEST_LIFTED_CELL)
        return ShareState(shares=shares, cells=lifted.astype(np.uint64), clients=1)

    def set_states(self, states: ShareState) -> None:
        """Open a sum and keep its release in ``releases``; log a warning if it cannot be opened."""
        self._states = states
        self._release = None
        if not states.summed:
            return
        try:
            self._release = self._open(states)
            self.releases.append(self._release)
        except FederatedMetricError as error:
            _log.warning("no curve of this round. %s", error)

    def get_result(self) -> dict[str, float]:
        """Return the AUROC of the release, at the server; a client has none."""
        if self._release is None:
            return {}
        auroc = FederatedAUROC.from_release(self._release).compute()
        return {"federated_auroc": float(auroc)}

    def _hidden_cells(self) -> Any:
        """Draw this client's share for one secure aggregation and return its cells as a vector."""
        config = SecureAggregationConfig.for_query(self.terms.spec, self.query, self.name)
        handover = _Handover(self.name, config)
        self.one.mask(handover, b"", query=self.query)
        return handover.vector

    def _check_agreed(self, spec: Spec) -> None:
        """Raise if this client must not reply.

        This is checked in evaluations because declearn's server hangs on earlier errors.
        """
        self.terms.spec.check(spec)
        self.terms.check_ledger()
        has_secagg = self.client is not None and self.client.secagg is not None
        if spec.hides_shares and not has_secagg:
            raise ReleaseError(
                "Cannot share: the server must not see single shares, and declearn's SecAgg is "
                "off. Pass `secagg=` to FederatedServer and FederatedClient and set "
                f"`{type(self).__name__}.client`, or use LocalDP, or `trusted_aggregator=True` if "
                "the server may see them."
            )

    def _open(self, states: ShareState) -> Release:
        """Return the release of a sum; raise if it overflowed or has too few clients."""
        if states.shares or states.cells is None:
            coordinator = Coordinator(self.terms, round="", can_ask_again=False)
            for number, share in enumerate(states.shares):
                coordinator.receive(f"client {number}", share)
            coordinator.advance()
            return coordinator.release
        if int(states.cells[-1]) != states.clients * LARGEST_LIFTED_CELL:
            raise ReleaseError(
                "Cannot open the sum: declearn's SecAgg had no room for it, and it overflowed. "
                "Pass `bitsize=64`."
            )
        spec = self.terms.spec
        least_clients = max(spec.clients_needed, 1)
        if spec.hides_shares:
            least_clients = max(spec.clients_needed, 2)
        if states.clients < least_clients:
            raise ReleaseError(
                f"Cannot open the sum of {states.clients} clients: it takes {least_clients}. "
                "Wait for more."
            )
        vector = states.cells[:-1].astype(np.int64) - states.clients * LIFT
        total = Sum.of_vector(spec, self.query, vector, states.clients)
        return Release((total,))
