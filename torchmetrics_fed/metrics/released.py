"""ReleasedMetric: counts that leave this process as one release per round, and in no other way."""

import secrets
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from typing_extensions import Self

from torchmetrics_fed.errors import ReleaseError
from torchmetrics_fed.metrics.callers import refuse_logging, refuse_resampling
from torchmetrics_fed.metrics.host import CountsMetric
from torchmetrics_fed.metrics.publisher import Publisher
from torchmetrics_fed.metrics.scope import ReleaseScope, Round
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.reconstruct import LEAST_BINS, Plan, PlanName
from torchmetrics_fed.release import Release, Share
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.sync import Ranks, hidden_sum
from torchmetrics_fed.tree import Tree

__all__ = ["ReleasedMetric"]


class ReleasedMetric(CountsMetric):
    """The life of private counts: added to, released once, reset. Exact counts may be summed as often as one likes.

    Args:
        spec: what is counted and what of it ``release`` sends.
        plan: how ``compute`` makes its release.
        local: what else tells counts apart in this process, for instance ``ignore_index``.
        ledger: where releases are booked.
        data: the name of the data in the ledger.
        scope: where metrics that count the same data meet.
        kwargs: torchmetrics' own.
    """

    is_scalar: bool = False
    """Whether ``compute`` returns a number that can be logged."""

    def __init__(
        self,
        spec: Spec,
        plan: PlanName | Plan | None,
        local: object,
        ledger: PrivacyLedger,
        data: str,
        scope: ReleaseScope,
        **kwargs: Any,
    ) -> None:
        super().__init__(spec.grid.empty(spec.classes, spec.rows), (spec.fingerprint, local), **kwargs)
        self.spec = spec
        self.plan = plan
        self.ledger = ledger
        self.data = data
        self._scope = scope
        self._round: Round | None = None
        self._given: Release | None = None

    def release(
        self, round: str = "", cohort: Sequence[str] | None = None, client: str = "", plan: Plan | None = None
    ) -> Share:
        """Return this client's share. Ranks of one client (its ``process_group``) are summed first.

        Under privacy the share is drawn and booked once: asked again, for the same round and cohort, it is the very
        same one. Another cohort must not get it, for the same noise with one client fewer would isolate that client.

        Args:
            round: the round that the server has opened, if it has; only shares of one round add up.
            cohort: the clients that take part, if known.
            client: this client's name, if the server shall notice a client that it sums twice.
            plan: what the server asks for, if not this metric's own: the second message of two, or leaves planned from
                an earlier release. All messages of one round together spend epsilon at most.
        """
        if self._given is not None:
            raise ReleaseError("Expected a client's metric but this one was made from a release, which has no share.")
        if self.spec.privacy is not None:
            cohort = None if cohort is None else tuple(sorted(cohort))
            return self._publisher(self._ranks(), self._planned(plan)).share(round, cohort, client)
        self._planned(plan)
        with self._summed():
            return Share(self.spec, self.counts.cpu().clone(memory_format=torch.contiguous_format), round, client)

    def vector(self, round: str, plan: Plan | None = None) -> NDArray[np.int64]:
        """Return this client's share as the vector of a secure sum, for :meth:`SecureSumClient.mask`.

        Noise is drawn and the ledger charged when this is called. Called again for the same round it is the same
        vector; for another round, as after an aborted sum, it is a fresh draw and a new charge.

        Args:
            round: the name of the sum, which is never used again.
            plan: as in :meth:`release`.
        """
        if self._given is not None:
            raise ReleaseError("Expected a client's metric but this one was made from a release, which has no share.")
        if self.spec.privacy is None:
            cells = self.release(round).cells
        else:
            cells = self._publisher(self._ranks(), self._planned(plan)).share(round, None, redraw=True).cells
        return np.asarray(cells.reshape(-1).numpy())

    def total(self) -> Release:
        """Return the release of all ranks, which every answer is read from; under privacy it is made once.

        Example:
            >>> import torch
            >>> from torchmetrics_fed import CentralDP, FederatedAUROC, evaluation_report
            >>> metric = FederatedAUROC(privacy=CentralDP(epsilon=1.0))
            >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
            >>> report = evaluation_report(metric.total())
            >>> bool(report.auroc == metric.compute())
            True
        """
        with self._summed():
            return self._source()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value; under privacy None, for that value would be a release of its own."""
        self._check_open()
        if self.spec.privacy is None:
            return super().forward(*args, **kwargs)
        self.update(*args, **kwargs)
        self._forward_cache = None
        return None

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the counts of another metric, or of its ``metric_state``, that has the same spec."""
        if isinstance(incoming_state, ReleasedMetric):
            self.spec.check(incoming_state.spec)
            if incoming_state._given is not None:
                raise ReleaseError("Expected a metric with counts but it was made from a release: use `Release.sum`.")
        self._join_round()
        super().merge_state(incoming_state)

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
        if not self.is_scalar:
            refuse_logging(type(self).__name__)
        if self._is_synced and should_sync:
            raise TorchMetricsUserError("The Metric has already been synced.")
        if not should_sync or self._given is not None:
            return
        ranks = self._ranks(dist_sync_fn, process_group, distributed_available)
        total = self.counts
        if self.spec.privacy is not None:
            self._publisher(ranks, *self._own_plan()).release()
        elif ranks is None:
            return
        else:
            agreed = ranks.agree(self.spec, self.counts.device, proposal=secrets.randbits(62))
            total = hidden_sum(ranks, self.spec, self.counts, f"{agreed.proposal:016x}")
        self._cache = self._copy_state_dict()
        self.counts = total
        self._is_synced = True

    def reset(self) -> None:
        """Forget counts and release. The ledger keeps what was spent."""
        super().reset()
        self._given = None
        self._scope.close(self._round)
        self._round = None

    @property
    def update_called(self) -> bool:
        """Whether there is anything to compute from."""
        return super().update_called or self._given is not None

    def extra_repr(self) -> str:
        """Settings and what was spent; never counts."""
        told = f"{self.spec.task}, {self.spec.grid.bins} bins"
        return told if self.spec.privacy is None else f"{told}, {self.spec.privacy}, {self.ledger}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load counts from a checkpoint that holds them; not under privacy, where no checkpoint should."""
        if self.spec.privacy is not None and state_dict.pop(prefix + "counts", None) is not None:
            raise ReleaseError("Expected a checkpoint without counts for a private metric. Count the data again.")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def persistent(self, mode: bool = False) -> None:
        """Whether counts are saved in checkpoints. Under privacy they never are."""
        if mode and self.spec.privacy is not None:
            raise ReleaseError(
                "Expected no counts in checkpoints of a private metric, for they are raw. What was spent survives in a "
                "ledger with `path`; the data has to be counted again."
            )
        super().persistent(mode)

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle. Under privacy a release travels, raw counts stay behind."""
        state: dict[str, Any] = super().__getstate__()
        if self.spec.privacy is None:
            return state
        round_ = self._current_round()
        if (round_ is None or round_.made is None) and bool(self.counts.any()):
            raise ReleaseError(
                "Expected no raw counts in a pickle but this private metric holds some that are not released. Release "
                "or reset it first, or send its `release()`."
            )
        if round_ is not None and isinstance(round_.made, Share) and self.spec.privacy.shares_needed > 1:
            raise ReleaseError(
                "Expected no single share in a pickle, for it carries hardly any noise, but this private metric holds "
                "its own. Reset it first; send the share by itself."
            )
        empty = torch.zeros_like(self.counts)
        return state | {"counts": empty, "_cache": None, "_round": round_ and round_.without_counts(empty)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with counts of its own. One that holds private data shares the round, so it cannot draw again."""
        if self.spec.privacy is not None:
            refuse_resampling()
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = super().__getstate__()
        shared = {"_round": self._current_round(), "ledger": self.ledger}
        twin.__setstate__({key: shared[key] if key in shared else deepcopy(state[key], memo) for key in state})
        return twin

    def _join_round(self) -> None:
        """Make sure that data can be added, and under privacy that it belongs to a round."""
        self._check_open()
        if self._round is None and self.spec.privacy is not None:
            self._round = self._scope.join()

    def _check_open(self) -> None:
        """Raise unless data can be added."""
        if self._given is not None:
            raise ReleaseError("Expected no update of a metric made from a release. Call `reset` to start anew.")
        round_ = self._current_round()
        if round_ is not None and round_.made is not None:
            raise ReleaseError(
                "Expected no update after the release of this data: a second one would spend again. Call `reset` "
                "before data of the next round."
            )

    def _current_round(self) -> Round | None:
        """The round that this metric's data belongs to. In a compute group only the leader is updated and joins."""
        return self._round or self._scope.open

    def _publisher(
        self, ranks: Ranks | None, spec: Spec, plan: Literal["two_round"] | Release | None = None
    ) -> Publisher:
        round_ = self._round = self._current_round() or self._scope.join()
        return Publisher(spec, self.counts, round_, self.ledger, self.data, ranks, plan)

    def _planned(self, plan: Plan | None) -> Spec:
        """The spec of a message that the server asks for."""
        if plan is None:
            return self.spec
        if self.spec.privacy is None:
            raise ReleaseError("Expected no plan without `privacy`, for exact counts are sent as they are.")
        return self.spec.planned(plan.tree, plan.portion)

    def _own_plan(self) -> tuple[Spec, Literal["two_round"] | Release | None]:
        """How `compute` makes a release: the spec of a single message, or how leaves are placed."""
        if self.plan == "carry_over" and self._scope.previous is not None:
            return self.spec, self._scope.previous
        unsaid = self.plan is None and self.spec.task == "binary" and self.spec.grid.bins >= LEAST_BINS
        if self.plan in ("two_round", "carry_over") or unsaid:
            return self.spec.planned(Tree.balanced(self.spec.grid.bins)), "two_round"
        return self.spec, None

    def _source(self) -> Release:
        """The release that answers are read from: the one given, the one made, or the exact counts as they are now."""
        if self._given is not None:
            return self._given
        if self.spec.privacy is None:
            return Release(self.spec, self.counts.cpu().contiguous())
        round_ = self._current_round()
        if round_ is None or not isinstance(round_.made, Release):
            raise ReleaseError(
                "Expected a release to compute from but none was made: the sum over ranks is switched off here."
            )
        return round_.made
