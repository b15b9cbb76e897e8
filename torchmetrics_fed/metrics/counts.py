"""CountsMetric: counts as a torchmetrics Metric, which a client releases once.

Everything that the internals of torchmetrics and Lightning force on a metric is in this file:
states that no cast, move, load or merge can spoil, wrappers of ``update`` and ``compute``,
``forward``, ``sync``, pickles and copies. So is the metric's client: ``update`` adds to the counts,
one release moves them, :meth:`CountsMetric.share` and :meth:`CountsMetric.mask` reply to an
aggregator. A subclass says how a batch is counted and how a release is read.

The metric itself never draws and never charges: it hands its counts to its
:class:`~torchmetrics_fed.exchange.client.Client`, call by call. A metric that was made from a
release has neither client nor ledger entry; ``reset`` turns it into one that counts.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
import sys
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from typing_extensions import Self, Unpack

from torchmetrics_fed.aggregation import Alone, Ranks
from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.counting.persons import Ids, Persons
from torchmetrics_fed.errors import InputError, ReleaseError, SpecMismatchError, about_data
from torchmetrics_fed.exchange.client import Client, Evaluation
from torchmetrics_fed.exchange.plans import Plan
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.metrics import guards
from torchmetrics_fed.metrics.definition import Definition
from torchmetrics_fed.metrics.options import TorchmetricsOptions
from torchmetrics_fed.metrics.persons import PersonsCounted, PersonsInCounts
from torchmetrics_fed.metrics.shared import SharedClient
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Query, Release, Share, Spec
from torchmetrics_fed.release.release import no_release
from torchmetrics_fed.typing import Average, Validation

_Value = TypeVar("_Value")

_FORWARD_SWITCHES = (
    "_update_count",
    "_to_sync",
    "_should_unsync",
    "_enable_grad",
    "_is_synced",
    "compute_on_cpu",
)
"""What torchmetrics' forward switches off and on, and leaves off when update raises in between."""


def uncompiled(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function that is a break in the graph of a compiled module.

    ``torch.compiler.disable`` would do, but imports the compiler, for a second, where nobody
    compiles.
    """
    disabled: Any = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        nonlocal disabled
        if disabled is None and "torch._dynamo" in sys.modules:
            disabled = torch.compiler.disable(function)
        (disabled or function)(*args, **kwargs)

    return call


class CountsMetric(Metric):
    """A Metric with int64 ``counts`` of what a spec says.

    No error and no pickle can spoil or leak them.

    Args:
        terms: spec, plan, ledger and name of the data.
        validate_args: as in :class:`FederatedMetric`.
        kwargs: torchmetrics' own.
    """

    # as in torchmetrics: a module that holds a metric can be scripted, without what the metric does
    __jit_unused_properties__: ClassVar[list[str]] = [
        *Metric.__jit_unused_properties__,
        "update_called",
        "plan",
        "ledger",
        "persons",
        "_table",
    ]

    is_differentiable: bool = False
    higher_is_better: bool | None = None
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    definition: ClassVar[Definition]
    """The metric's name, the functions of a release that make it, and the averages it has."""
    average: Average | None = None
    """The average over classes, of a metric that has some."""
    confidence: float | None = None
    """The probability of bands and intervals, of a metric that has some."""

    counts: Tensor
    _layout: Tensor
    _refused: Tensor

    def __init__(
        self, terms: Terms, *, validate_args: Validation, **kwargs: Unpack[TorchmetricsOptions]
    ) -> None:
        if not isinstance(validate_args, bool) and validate_args != "deferred":
            raise InputError(
                'Expected argument `validate_args` to be True, False or "deferred" but got '
                f"{validate_args!r}."
            )
        super().__init__(**kwargs)
        self.spec = terms.spec
        self.validate_args = validate_args
        self._rules = self.spec.rules(validates=bool(validate_args))
        """How a batch is to be read."""
        self._terms = terms
        self._needs_client = self.spec.privacy.charges or self.spec.hides_shares
        """Whether data belongs to a client from the first update on: it is noisy or hidden."""
        self._shared = SharedClient()
        self._client: Client | None = None
        """The client that this metric's data belongs to, once it has joined one."""
        self._persons = PersonsInCounts(terms.spec.privacy)
        self._origin: Release | None = None
        """The release that this metric was made from, if it was."""
        self._curve_dtype = torch.float64
        self._is_scalar = False
        """Whether ``compute`` returns a number that can be logged."""
        self._parties = 1
        """Ranks whose counts are summed at the moment."""
        self._any_data = False
        """Whether one of those ranks was updated."""
        if self.spec.privacy.charges:
            self._check_private()
        # torchmetrics merges metrics of a collection into one compute group when their states look
        # equal, so what the counts mean has to be a state as well: as bytes, which `allclose`
        # cannot find nearly equal, and as the first state because torchmetrics 1.6 compares no
        # other.
        defers_checks = validate_args == "deferred"
        self._digest = hashlib.sha256(self.spec.digest + repr(defers_checks).encode()).digest()
        for name, value in self._fresh_states().items():
            reduction = "max" if name == "_layout" else "sum"
            self.add_state(name, torch.zeros(()), dist_reduce_fx=reduction)
            # `add_state` would make the counts contiguous, and the first update lay them out again
            self._defaults[name] = value
            setattr(self, name, value.clone())

    def _check_private(self) -> None:
        """Raise for torchmetrics' options that would release or show raw counts."""
        # so that torchmetrics' Running refuses it, which copies states to keep a window; it guards
        # its constants
        object.__setattr__(self, "full_state_update", True)
        if self.dist_sync_on_step or not self.sync_on_compute:
            raise InputError(
                "Expected neither `dist_sync_on_step=True`, which would release every batch, nor "
                "`sync_on_compute=False`, which would compute from raw counts, with `privacy`."
            )

    @classmethod
    @abstractmethod
    def _arguments(cls, spec: Spec, options: dict[str, Any]) -> dict[str, Any]:
        """Return the constructor's arguments for a metric with this spec, and these options."""

    @classmethod
    def from_release(cls, release: Release, **options: Any) -> Self:
        """Return a metric that reads ``release``; ``update`` needs a ``reset`` first.

        Options are what shapes the answer, for instance ``confidence``; the rest comes from the
        release.
        """
        if not isinstance(release, Release):
            raise no_release(release)
        metric = cls(**cls._arguments(release.spec, options))
        release.spec.check(metric.spec)
        metric._origin = release
        return metric

    # --- what users read

    @property
    def plan(self) -> Plan:
        """Which queries a release takes."""
        return self._terms.plan

    @property
    def ledger(self) -> PrivacyLedger:
        """Where releases are charged."""
        return self._terms.ledger

    @property
    def persons(self) -> PersonsCounted:
        """What is known about the persons in the counts. It is not private: keep it here."""
        table = self._table
        if table is None:
            return PersonsCounted(bound_enforced=False, left_out=0)
        return PersonsCounted(
            bound_enforced=table.batches == self._update_count > 0, left_out=table.left_out
        )

    def extra_repr(self) -> str:
        """Settings and what was spent; never counts."""
        text = f"{self.spec.task}, {self.spec.grid.bins} bins"
        if self.spec.privacy.charges:
            text = f"{text}, {self.spec.privacy}, {self.ledger}"
        return text

    # --- the release, and replies to an aggregator

    def release(self) -> Release:
        """Return the release of all ranks, which every answer is read from.

        Under privacy it is made once.
        """
        with self._summed():
            return self._source()

    def share(self, *, round: str = "", query: Query | None = None) -> Share:
        """Return this client's reply to a query.

        Ranks of one client (its ``process_group``) are summed first.

        Under privacy the reply is drawn once, and its release charged once: asked again, in the
        same round, it is the very same one. Where shares may only travel through secure aggregation
        this raises; use :meth:`mask`.

        Args:
            round: the round that the aggregator has opened, if it has; only shares of one round add
                up.
            query: what the aggregator asks; the first query of this metric's own plan if not given.
        """
        return self._evaluation().share(query or self._unasked_query(), round=round)

    def mask(
        self,
        client: SecureAggregationClient,
        boxes: bytes,
        *,
        round: str = "",
        query: Query | None = None,
    ) -> bytes:
        """Return this client's reply, masked for one secure aggregation.

        Noise is drawn and the ledger charged only when the protocol has checked everything else. A
        reply enters one aggregation; a retry after masking is a new round, drawn and charged again.

        Args:
            client: this client's side of the aggregation, after ``share_keys``.
            boxes: the server's ciphertexts for this client.
            round: as in :meth:`share`, and likewise ``query``.
            query: as in :meth:`share`.
        """
        return self._evaluation().mask(
            query or self._unasked_query(), aggregation=client, boxes=boxes, round=round
        )

    def _unasked_query(self) -> Query:
        return self._terms.plan.unasked_query(self.spec)

    def _evaluation(self) -> Evaluation:
        """Hand over the data: the client, the counts of this process, and its ranks."""
        if self._origin is not None:
            raise ReleaseError(
                "Expected a client's metric but this one was made from a release, which has no "
                "share."
            )
        self._check_local()
        return Evaluation(self._joined(), self.counts, self._ranks())

    def _source(self) -> Release:
        """Return the release to read: the one given, the one made, or the exact counts."""
        if self._origin is not None:
            return self._origin
        client = self._current_client()
        if client is not None and client.release is not None:
            client.check_unchanged(self.counts)
            return client.release
        if not self.spec.privacy.charges:
            return Release.exact(self.spec, self.counts, self._parties if self._is_synced else 1)
        raise ReleaseError(
            "Expected a release to compute from but the sum over ranks is switched off here."
        )

    def _released(self) -> Release | None:
        """Return the release that was given or made, if there is one."""
        if self._origin is not None:
            return self._origin
        client = self._current_client()
        return None if client is None else client.release

    def _current_client(self) -> Client | None:
        """Return the client that this metric's data belongs to.

        In a compute group only the leader joins.
        """
        return self._client or self._shared.client

    def _joined(self) -> Client:
        """Return the client that this metric's data belongs to, begun if there is none."""
        self._client = self._current_client() or self._shared.begun(self._terms)
        return self._client

    def _begin_update(self) -> None:
        """Raise unless data can be added now.

        Data that is noisy or hidden belongs to a client from here on.
        """
        if self._origin is not None:
            raise ReleaseError(
                "Expected no update of a metric that was made from a release: its data is "
                "elsewhere. Call `reset` first."
            )
        if self.spec.privacy.charges and self._current_client() is None:
            guards.warn_of_several_releases(self)
        if self._needs_client or self._client is not None:
            self._joined().check("update")

    def reset(self) -> None:
        """Forget counts, persons and release. The ledger keeps what was spent."""
        super().reset()
        self._shared.close(self._client)
        self._client = None
        self._origin = None
        self._persons.table = None

    # --- counting

    def _admitted(
        self, persons: Ids | None, *batch: Any
    ) -> AbstractContextManager[tuple[Any, ...]]:
        """Return the part of a batch that may be counted, in an update that is counted already."""
        if persons is None and self._persons.table is None and not self.spec.privacy.enforced:
            return nullcontext(batch)
        return self._persons.admitted(
            persons,
            batch,
            updates=self._update_count,
            columns=len(self.counts),
            rules=self._rules,
            client=self._joined,
        )

    def _set_counts(self, counts: Tensor) -> None:
        # setting an attribute of a module costs as much as counting a small batch
        if counts is not self.counts:
            self.counts = counts

    def _refusing(self) -> Tensor | None:
        """Return the state that refused examples are added to, where checks do not wait."""
        if self.validate_args != "deferred":
            return None
        if self._refused.is_inference() and not torch.is_inference_mode_enabled():
            self._refused = self._refused.clone()
        return self._refused

    @property
    def _table(self) -> Persons | None:
        """The table of all persons in the counts, if batches came with ids."""
        return self._persons.complete_table(self._current_client(), self._update_count)

    def _answer(self, value: _Value) -> _Value:
        """Return a value, or a tuple of such, on the metric's device and in its dtype."""
        if isinstance(value, Tensor):
            return cast(_Value, value.to(self.device, self.dtype))
        if not isinstance(value, tuple):
            return value
        make: Any = getattr(value, "_make", tuple)
        return cast(_Value, make(map(self._answer, value)))

    # --- states

    def _fresh_states(self) -> dict[str, Tensor]:
        """Return the states before any update.

        ``_refused`` is the number of examples that could not be counted.
        """
        return {
            "_layout": torch.tensor(list(self._digest), dtype=torch.uint8),
            "counts": self.spec.empty_counts(),
            "_refused": torch.zeros((), dtype=torch.int64),
        }

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        """Move the states.

        ``to_empty`` hands over memory with anything in it: then they are made again.
        """
        probe = torch.tensor(
            list(secrets.token_bytes(16)), dtype=torch.uint8, device=self.counts.device
        )
        super()._apply(fn, *args, **kwargs)
        probe_there = fn(probe)
        if probe_there.is_meta:
            return self
        if probe.is_meta or not torch.equal(probe_there.cpu(), probe.cpu()):
            for name, value in self._fresh_states().items():
                self._defaults[name] = value.to(probe_there.device)
                setattr(self, name, value.to(probe_there.device, copy=True))
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of curves: float64 unless :meth:`set_dtype` has changed it.

        Counts are int64 whatever happens.
        """
        if self.device.type == "mps":  # Apple's devices have no float64
            return torch.float32
        return self._curve_dtype

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """Set the dtype of curves."""
        self._curve_dtype = torch.empty(0).type(dst_type).dtype
        return self

    def persistent(self, mode: bool = False) -> None:
        """Whether counts are saved in checkpoints. Under privacy they never are."""
        if mode and self.spec.privacy.charges:
            raise ReleaseError(
                "Expected no counts in checkpoints of a private metric because they are raw. What "
                "was spent survives in a ledger with `path`; the data has to be counted again."
            )
        super().persistent(mode)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        *args: Any,
        error_msgs: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Load counts from a checkpoint that holds them, checked as in :meth:`merge_state`."""
        messages: list[str] = args[-1] if error_msgs is None else error_msgs
        state = {
            name: state_dict.pop(prefix + name)
            for name in self._defaults
            if prefix + name in state_dict
        }
        if not state:
            return
        if self.spec.privacy.charges:
            raise ReleaseError(
                "Expected a checkpoint without counts for a private metric. Count the data again."
            )
        try:
            guards.check_state(state, self.counts, self._layout)
        except (InputError, SpecMismatchError) as error:
            messages.append(f"{prefix}counts: {error}")
            return
        for name in ("counts", "_refused"):
            setattr(self, name, state[name].clone().to(self.counts.device))
        self._update_count = max(self._update_count, 1)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the counts of another metric, or of its ``metric_state``, that counts the same.

        With ids of persons, no person is counted too often.
        """
        state: Any = incoming_state
        updates = 1
        if isinstance(incoming_state, Metric):
            state = incoming_state.metric_state
            updates = incoming_state._update_count
        if not isinstance(state, dict):
            raise InputError(
                f"Expected a metric or its state but got {type(incoming_state).__name__}."
            )
        table = self._persons.merged(
            self._table,
            self._update_count,
            incoming=getattr(incoming_state, "_table", None),
            incoming_updates=updates,
        )
        if isinstance(incoming_state, CountsMetric):
            self.spec.check(incoming_state.spec)
            incoming_state._check_local()
            if incoming_state._origin is not None:
                raise ReleaseError(
                    "Expected a metric with counts but it was made from a release: use "
                    "`Release.sum`."
                )
        self._check_local()
        guards.check_state(state, self.counts, self._layout)
        self._begin_update()
        self.counts = self.counts + state["counts"].to(self.counts.device)
        self._refused = self._refused + state["_refused"].to(self._refused.device)
        self._update_count += updates
        self._persons.table = table

    # --- update, forward and compute, as torchmetrics wraps them

    def _wrap_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        return super()._wrap_update(
            functools.wraps(update)(functools.partial(self._updated, update))
        )

    @uncompiled
    def _updated(self, update: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call ``update`` where data can be added. An update that is refused changes nothing."""
        try:
            self._check_local()
            self._begin_update()
            update(*args, **kwargs)
        except Exception as error:
            self._update_count -= 1  # torchmetrics has counted the call already
            if isinstance(error, InputError):
                about_data(error)
            raise

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value; under privacy None, as it would be a release."""
        if self.spec.privacy.charges or self._origin is not None:
            self.update(*args, **kwargs)
            self._forward_cache = None
            return None
        counts = self.counts
        switches = {name: getattr(self, name) for name in _FORWARD_SWITCHES}
        try:
            return super().forward(*args, **kwargs)
        except Exception:  # a batch that is refused changes nothing
            self.counts = counts
            for name, value in switches.items():
                setattr(self, name, value)
            raise

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """torchmetrics' wrapper without its cache, and without its warning.

        A rank that answers from its own cache, or whose warning is an error, leaves the others
        waiting in the sum.
        """

        @functools.wraps(compute)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.sync_context(
                self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
            ):
                return compute(*args, **kwargs)

        return wrapped

    @property
    def update_called(self) -> bool:
        """Whether there is anything to compute from, on any rank while counts are summed."""
        return (
            super().update_called
            or self._origin is not None
            or (self._is_synced and self._any_data)
        )

    # --- the sum over ranks

    def _summed(self) -> AbstractContextManager[None]:
        """Sum over ranks as ``compute`` does, unless there is a sum or a release already."""
        is_done = self._is_synced or self._released() is not None
        should_unsync = self._should_unsync and not self._is_synced
        return self.sync_context(
            should_sync=self._to_sync and not is_done, should_unsync=should_unsync
        )

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> Generator[None, None, None]:
        """Sum over ranks inside, and give the local counts back afterwards in any case."""
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

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
        if not should_sync or self._origin is not None:
            return
        ranks = self._ranks(dist_sync_fn, process_group, distributed_available)
        total = self.counts
        if self.spec.privacy.charges:
            if not self._is_scalar:
                guards.refuse_logging(type(self).__name__)
            self._joined().publish(
                self.counts,
                previous=self._shared.previous,
                any_data=self.update_called,
                ranks=ranks,
            )
        elif isinstance(ranks, Alone):
            ranks.check_counted(self.spec, ranks.refused)
            return
        else:
            agreed = ranks.agree(self.spec, {}, 0, self.update_called)
            if self.spec.secure:
                view = self.spec.digest + agreed.proposal.to_bytes(8, "big")
                total = ranks.hidden_sum(total, view)
            else:
                total = ranks.sum(total)
            self._parties = ranks.size
            self._any_data = agreed.any_data
        self._cache = self._copy_state_dict()
        self.counts = total
        self._is_synced = True

    def _ranks(
        self,
        gather: Callable[..., Any] | None = None,
        group: Any = None,
        available: Callable[..., Any] | None = None,
    ) -> Ranks:
        refused = int(self._refused)
        persons = self._table
        if persons is None and not self._update_count:
            persons = Persons(1)  # of nobody
        if not (available or self.distributed_available_fn)():
            return Alone(self.counts.device, refused=refused, persons=persons)
        return Ranks(
            self.counts.device,
            group or self.process_group,
            gather or self.dist_sync_fn,
            refused=refused,
            persons=persons,
        )

    def _check_local(self) -> None:
        """Raise where the counts are the sum over ranks for the moment."""
        if self._is_synced:
            raise TorchMetricsUserError(
                "Expected local counts but they are summed over ranks. Call `unsync` first."
            )

    # --- pickles and copies

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without persons.

        Under privacy a release travels, raw counts stay behind.
        """
        state: dict[str, Any] = super().__getstate__()
        state["_persons"] = PersonsInCounts(self.spec.privacy)
        if not self.spec.privacy.charges:
            return state
        if self._released() is None and bool(self.counts.any()):
            raise ReleaseError(
                "Expected no raw counts in a pickle but this private metric holds some that are "
                "not released. Release or reset it first, or send its `share()`."
            )
        # The defaults are empty counts that outlive this call. Where processes are spawned, tensors
        # travel as file descriptors, and those of a tensor that is made here would be closed before
        # the child starts.
        empty: Any = self._defaults["counts"]
        state |= {"counts": empty, "_refused": self._defaults["_refused"], "_cache": None}
        client = self._current_client()
        if client is not None:
            state["_client"] = client.without_counts(empty)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in ("counts", "_refused"):
            value: Tensor = getattr(self, name)
            if value is self._defaults[name]:  # counting in place must not change it
                setattr(self, name, value.clone())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy with counts of its own.

        A copy that holds data shares the client, so it cannot draw again.
        """
        if self.spec.privacy.charges:
            guards.refuse_resampling()
        in_common = {"_client": self._current_client(), "_terms": self._terms}
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = {
            name: in_common[name] if name in in_common else deepcopy(value, memo)
            for name, value in Metric.__getstate__(self).items()
        }
        twin.__setstate__(state)
        return twin


def one_per_release(metrics: Iterable[CountsMetric]) -> list[CountsMetric]:
    """Return one metric for each release that the metrics make together.

    The metrics of a :func:`~torchmetrics_fed.federated_collection` share one release.
    """
    by_release = {id(metric._shared): metric for metric in metrics}
    return list(by_release.values())


def terms_of(metric: CountsMetric) -> Terms:
    """Return what a metric tells the exchange. Transports take it once, at their border."""
    return metric._terms


def evaluation_of(metric: CountsMetric) -> Evaluation:
    """Return a metric's data, handed over for one call of the exchange."""
    return metric._evaluation()


def share_client(metrics: Iterable[CountsMetric]) -> None:
    """Let metrics that will count the same data have one client, so that they make one release."""
    shared = SharedClient()
    for metric in metrics:
        metric._shared = shared


def add_counts(metric: CountsMetric, counts: Tensor) -> None:
    """Add counts that were made elsewhere by the metric's own spec."""
    metric.merge_state(
        {
            "_layout": metric._layout,
            "counts": counts,
            "_refused": torch.zeros_like(metric._refused),
        }
    )


@contextmanager
def all_or_nothing(metric: CountsMetric) -> Iterator[None]:
    """Undo every update inside if there is an error."""
    counts = metric.counts.clone()
    refused = metric._refused.clone()
    updates = metric._update_count
    table = deepcopy(metric._table)
    try:
        yield
    except Exception:
        metric.counts = counts
        metric._refused = refused
        metric._update_count = updates
        metric._persons.table = table
        client = metric._current_client()
        if client is not None:
            client.persons = table
        raise
