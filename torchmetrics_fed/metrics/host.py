"""CountsMetric: counts with a client as a torchmetrics Metric. Only this module and `states` know its internals."""

import functools
from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from typing_extensions import Self

from torchmetrics_fed.aggregation import Alone
from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.errors import InputError, ReleaseError
from torchmetrics_fed.exchange import Plan
from torchmetrics_fed.exchange.client import Client, SharedClient
from torchmetrics_fed.exchange.queries import first_query
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.metrics.guards import (
    check_state,
    refuse_logging,
    refuse_resampling,
    warn_of_several_releases,
)
from torchmetrics_fed.metrics.states import StateMetric, uncompiled
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Query, Release, Share, Spec

# What torchmetrics' forward switches off and on, and leaves off when update raises in between.
_FORWARD_SWITCHES = (
    "_update_count",
    "_to_sync",
    "_should_unsync",
    "_enable_grad",
    "_is_synced",
    "compute_on_cpu",
)


class CountsMetric(StateMetric):
    """A Metric whose counts belong to a client, and that no error or pickle can spoil or leak.

    The client makes a release over ranks, or answers an aggregator's queries: in the open, or masked.
    """

    # as in torchmetrics: a module that holds a metric can be scripted, without what the metric does
    __jit_unused_properties__: ClassVar[list[str]] = [
        *Metric.__jit_unused_properties__,
        "update_called",
        "terms",
    ]

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        ledger: PrivacyLedger,
        data: str,
        meaning: object,
        **kwargs: Any,
    ) -> None:
        super().__init__(spec, meaning, **kwargs)
        if spec.privacy.charges:
            # so that torchmetrics' Running refuses it, which copies states to keep a window; it guards its constants
            object.__setattr__(self, "full_state_update", True)
            if self.dist_sync_on_step or not self.sync_on_compute:
                raise InputError(
                    "Expected neither `dist_sync_on_step=True`, which would release every batch, nor "
                    "`sync_on_compute=False`, which would compute from raw counts, with `privacy`."
                )
        self.plan, self.ledger, self.data = plan, ledger, data
        self.shared = SharedClient()
        self._client: Client | None = None
        self._given: Release | None = None
        """The release that this metric was made from, if it was."""
        self._part: Release | None = None  # the group's release that is read at the moment
        self._parties, self._counted = (
            1,
            False,
        )  # ranks whose counts are summed, and whether one was updated

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value, or under privacy None because that value would be another release."""
        if self.spec.privacy.charges or self._given is not None:
            self.update(*args, **kwargs)
            self._forward_cache = None
            return None
        counts, switches = self.counts, {name: getattr(self, name) for name in _FORWARD_SWITCHES}
        try:
            return super().forward(*args, **kwargs)
        except Exception:  # one that is refused changes nothing
            self.counts = counts
            for name, value in switches.items():
                setattr(self, name, value)
            raise

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the counts of another metric, or of its ``metric_state``, that counts the same."""
        state: Any = (
            incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        )
        if not isinstance(state, dict):
            raise InputError(
                f"Expected a metric or its state but got {type(incoming_state).__name__}."
            )
        if isinstance(incoming_state, CountsMetric):
            self.spec.check(incoming_state.spec)
            incoming_state._check_local()
            if incoming_state._given is not None:
                raise ReleaseError(
                    "Expected a metric with counts but it was made from a release: use `Release.sum`."
                )
        self._check_local()
        check_state(state, self.counts, self.layout)
        self._join()
        self.counts = self.counts + state["counts"].to(self.counts.device)
        self.refused = self.refused + state["refused"].to(self.refused.device)
        self._update_count += (
            incoming_state._update_count if isinstance(incoming_state, Metric) else 1
        )

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Replace the counts by their sum over all ranks, once all have shown the same spec.

        Under privacy the counts stay as they are, and the release is made, if there is none yet.
        """
        if self._is_synced and should_sync:
            raise TorchMetricsUserError("The Metric has already been synced.")
        if not should_sync or self._given is not None:
            return
        ranks = self._ranks(dist_sync_fn, process_group, distributed_available)
        total = self.counts
        if self.spec.privacy.charges:
            if not self.is_scalar:
                refuse_logging(type(self).__name__)
            self._joined().publish(total, self.shared.previous, self.update_called, ranks)
        elif isinstance(ranks, Alone):
            ranks.check_counted(self.spec, ranks.refused)
            return
        else:
            agreed = ranks.agree(self.spec, {}, 0, self.update_called)
            view = self.spec.digest + agreed.proposal.to_bytes(8, "big")
            total = ranks.hidden_sum(total, view) if self.spec.secure else ranks.sum(total)
            self._parties, self._counted = ranks.size, agreed.any_data
        self._cache = self._copy_state_dict()
        self.counts, self._is_synced = total, True

    def share(self, *, round: str = "", query: Query | None = None) -> Share:
        """Return this client's answer to a query. Ranks of one client (its ``process_group``) are summed first.

        Under privacy the answer is drawn once, and its release charged once: asked again, in the same round, it is the
        very same one. Where shares may only travel through secure aggregation this raises; use :meth:`mask`.

        Args:
            round: the round that the aggregator has opened, if it has; only shares of one round add up.
            query: what the aggregator asks; the first query of this metric's own plan if not given.
        """
        return self._answering().share(
            self.counts, query or first_query(self.plan, self.spec), round, self._ranks()
        )

    def mask(
        self,
        client: SecureAggregationClient,
        boxes: bytes,
        *,
        round: str = "",
        query: Query | None = None,
    ) -> bytes:
        """Return this client's answer, masked for one secure aggregation: the message that the server waits for.

        Noise is drawn and the ledger charged only when the protocol has checked everything else. An answer enters one
        aggregation; a retry after masking is a new round, drawn and charged again.

        Args:
            client: this client's side of the aggregation, after ``share_keys``.
            boxes: the server's ciphertexts for this client.
            round: as in :meth:`share`, and likewise ``query``.
        """
        answering = self._answering()
        ranks = self._ranks()
        if not isinstance(ranks, Alone):
            raise ReleaseError(
                "Expected one process for secure aggregation but this client has ranks. Add their counts up in one "
                "metric with `merge_state`, outside of the process group."
            )
        return answering.mask(
            self.counts, client, boxes, query or first_query(self.plan, self.spec), round, ranks
        )

    def suspend(self) -> bytes:
        """Return this client with its raw counts, for a node that is asked the second query in a new process.

        Keep it where this user alone may read it, erase it when the round is over, and send it nowhere.
        """
        return self._answering().to_bytes(self.counts)

    def resume(self, note: bytes) -> None:
        """Continue the client that :meth:`suspend` returned. What was answered before is refused."""
        client, counts = Client.from_bytes(note, self.terms)
        self.reset()
        self._client = client
        self.counts = counts.to(self.counts.device)
        self._update_count = 1

    def charge_to(self, ledger: PrivacyLedger) -> None:
        """Charge releases to another ledger from now on; raises once something of this data was drawn."""
        client = self._current_client()
        self.ledger = ledger
        if client is not None:
            client.check("update")
            client.terms = self.terms

    def check_ledger(self) -> None:
        """Raise unless a server may decide how often this metric is asked: a private one needs a limit that lasts."""
        if self.spec.privacy.charges:
            self.ledger.check_lasting()

    def reset(self) -> None:
        """Forget counts and release. The ledger keeps what was spent."""
        super().reset()
        self.shared.close(self._client)
        self._client = None
        self._given = None

    @property
    def terms(self) -> Terms:
        """What this metric tells the exchange."""
        return Terms(self.spec, self.plan, self.ledger, self.data)

    @property
    def update_called(self) -> bool:
        """Whether there is anything to compute from, on any rank while the counts are summed over them."""
        return (
            super().update_called or self._given is not None or (self._is_synced and self._counted)
        )

    def extra_repr(self) -> str:
        """Settings and what was spent; never counts."""
        text = f"{self.spec.task}, {self.spec.grid.bins} bins"
        return (
            text if not self.spec.privacy.charges else f"{text}, {self.spec.privacy}, {self.ledger}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle. Under privacy a release travels, raw counts stay behind."""
        state: dict[str, Any] = super().__getstate__()
        if not self.spec.privacy.charges:
            return state
        client = self._current_client()
        if (client is None or client.release is None) and bool(self.counts.any()):
            raise ReleaseError(
                "Expected no raw counts in a pickle but this private metric holds some that are not released. Release "
                "or reset it first, or send its `share()`."
            )
        empty, none = torch.zeros_like(self.counts), torch.zeros_like(self.refused)
        kept = None if client is None else client.without_counts(empty)
        return state | {"counts": empty, "refused": none, "_cache": None, "_client": kept}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with counts of its own. One that holds private data shares the client, so it cannot draw again."""
        if self.spec.privacy.charges:
            refuse_resampling()
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = super().__getstate__()
        shared = {"_client": self._current_client(), "ledger": self.ledger}
        twin.__setstate__(
            {key: shared[key] if key in shared else deepcopy(state[key], memo) for key in state}
        )
        return twin

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        return super()._wrap_update(
            functools.wraps(update)(functools.partial(self._updated, update))
        )

    @uncompiled
    def _updated(self, update: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call ``update`` where data can be added. One that is refused changes nothing."""
        try:
            self._check_local()
            self._join()
            update(*args, **kwargs)
        except Exception:
            self._update_count -= 1  # torchmetrics has counted the call already
            raise

    def _summed(self) -> Any:
        """Sum over ranks as ``compute`` does, unless that is done, or a private release is here already."""
        done = self._is_synced or self._released() is not None
        unsync = self._should_unsync and not self._is_synced
        return self.sync_context(should_sync=self._to_sync and not done, should_unsync=unsync)

    def _source(self) -> Release:
        """The release that answers are read from: the one given, the one made, or the exact counts as they are now."""
        if self._part is not None:
            return self._part
        if self._given is not None:
            return self._given
        client = self._current_client()
        if client is not None and client.release is not None:
            client.check_unchanged(self.counts)
            return client.release
        if not self.spec.privacy.charges:
            return Release.exact(self.spec, self.counts, self._parties if self._is_synced else 1)
        raise ReleaseError(
            "Expected a release to compute from but the sum over ranks is switched off here."
        )

    def _of_part(self, part: Release) -> Any:
        """What ``compute`` returns for one group."""
        self._part = part
        try:
            return type(self).compute(self)  # without summing over ranks again
        finally:
            self._part = None

    def _released(self) -> Release | None:
        """The release that was given or made, if there is one."""
        if self._given is not None:
            return self._given
        client = self._current_client()
        return None if client is None else client.release

    def _current_client(self) -> Client | None:
        """The client that this metric's data belongs to. In a compute group only the leader is updated and joins."""
        return self._client or self.shared.client

    def _joined(self) -> Client:
        """The client that this metric's data belongs to, begun if there is none."""
        self._client = self._current_client() or self.shared.begun(self.terms)
        return self._client

    def _join(self) -> None:
        """Make sure that data can be added, and where shares are noisy or hidden that it belongs to a client."""
        if self._given is not None:
            raise ReleaseError(
                "Expected no update of a metric that was made from a release: its data is elsewhere. Call `reset` "
                "first."
            )
        if self.spec.privacy.charges and self._current_client() is None:
            warn_of_several_releases(self)
        if self.spec.privacy.charges or self.spec.hides_shares or self._client is not None:
            self._joined().check("update")

    def _answering(self) -> Client:
        """The client that answers queries."""
        if self._given is not None:
            raise ReleaseError(
                "Expected a client's metric but this one was made from a release, which has no share."
            )
        self._check_local()
        return self._joined()
