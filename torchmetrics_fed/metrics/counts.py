"""CountsMetric: counts as a torchmetrics Metric.

Everything that the internals of torchmetrics and Lightning force on a metric is in this file: states that no cast,
move, load or merge can spoil, wrappers of ``update`` and ``compute``, ``forward``, ``sync``, pickles and copies. A
subclass says what an update needs (:meth:`CountsMetric._begin_update`), how private counts are summed
(:meth:`CountsMetric._publish`), and what of it travels in a pickle.
"""

import functools
import hashlib
import secrets
import sys
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from typing_extensions import Self

from torchmetrics_fed.aggregation import Alone, Ranks
from torchmetrics_fed.errors import InputError, ReleaseError, SpecMismatchError
from torchmetrics_fed.metrics.guards import check_state, refuse_logging, refuse_resampling
from torchmetrics_fed.release import Release, Spec
from torchmetrics_fed.typing import Validation

# What torchmetrics' forward switches off and on, and leaves off when update raises in between.
_FORWARD_SWITCHES = (
    "_update_count",
    "_to_sync",
    "_should_unsync",
    "_enable_grad",
    "_is_synced",
    "compute_on_cpu",
)


def uncompiled(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function that is a break in the graph of a compiled module: counting is not torch alone.

    ``torch.compiler.disable`` would do, but imports the compiler, for a second, where nobody compiles.
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
    """A Metric with int64 ``counts`` of what a spec says. No error and no pickle can spoil or leak them.

    Args:
        spec: what is counted.
        meaning: what else tells two metrics' counts apart; metrics of a collection that agree in it may share them.
        kwargs: torchmetrics' own.
    """

    # as in torchmetrics: a module that holds a metric can be scripted, without what the metric does
    __jit_unused_properties__: ClassVar[list[str]] = [
        *Metric.__jit_unused_properties__,
        "update_called",
    ]

    is_differentiable: bool = False
    higher_is_better: bool | None = None
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0
    is_scalar: bool = False
    """Whether ``compute`` returns a number that can be logged."""

    counts: Tensor
    layout: Tensor
    refused: Tensor
    validate_args: Validation

    def __init__(self, spec: Spec, meaning: object, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self._curve_dtype = torch.float64
        self._given: Release | None = None
        """The release that this metric was made from, if it was."""
        self._parties = 1
        """Ranks whose counts are summed at the moment."""
        self._counted = False
        """Whether one of those ranks was updated."""
        if spec.privacy.charges:
            self._check_private()
        # torchmetrics merges metrics of a collection into one compute group when their states look equal, so what the
        # counts mean has to be a state as well: as bytes, which `allclose` cannot find nearly equal, and as the first
        # state because torchmetrics 1.6 compares no other.
        self._digest = hashlib.sha256(spec.digest + repr(meaning).encode()).digest()
        for name, value in self._fresh_states().items():
            self.add_state(name, value, dist_reduce_fx="max" if name == "layout" else "sum")

    def _check_private(self) -> None:
        """Raise for torchmetrics' options that would release or show raw counts."""
        # so that torchmetrics' Running refuses it, which copies states to keep a window; it guards its constants
        object.__setattr__(self, "full_state_update", True)
        if self.dist_sync_on_step or not self.sync_on_compute:
            raise InputError(
                "Expected neither `dist_sync_on_step=True`, which would release every batch, nor "
                "`sync_on_compute=False`, which would compute from raw counts, with `privacy`."
            )

    @abstractmethod
    def _begin_update(self) -> None:
        """Raise unless data can be added now."""

    @abstractmethod
    def _publish(self, ranks: Ranks) -> None:
        """Make the release of private counts over these ranks, if there is none."""

    @abstractmethod
    def _released(self) -> Release | None:
        """Return the release that was given or made, if there is one."""

    def _fresh_states(self) -> dict[str, Tensor]:
        """The states before any update; ``refused`` is the number of examples that could not be counted."""
        return {
            "layout": torch.tensor(list(self._digest), dtype=torch.uint8),
            "counts": self.spec.empty_counts(),
            "refused": torch.zeros((), dtype=torch.int64),
        }

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        """Move the states. ``to_empty`` hands over memory with anything in it: then they are made again."""
        probe = torch.tensor(
            list(secrets.token_bytes(16)), dtype=torch.uint8, device=self.counts.device
        )
        super()._apply(fn, *args, **kwargs)
        found = fn(probe)
        if not found.is_meta and (probe.is_meta or not torch.equal(found.cpu(), probe.cpu())):
            for name, value in self._fresh_states().items():
                self._defaults[name] = value.to(found.device)
                setattr(self, name, value.to(found.device, copy=True))
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of curves: float64 unless :meth:`set_dtype` has changed it. Counts are int64 whatever happens."""
        # Apple's devices have no float64
        return torch.float32 if self.device.type == "mps" else self._curve_dtype

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """Set the dtype of curves."""
        self._curve_dtype = torch.empty(0).type(dst_type).dtype
        return self

    def persistent(self, mode: bool = False) -> None:
        """Whether counts are saved in checkpoints. Under privacy they never are."""
        if mode and self.spec.privacy.charges:
            raise ReleaseError(
                "Expected no counts in checkpoints of a private metric because they are raw. What was spent survives "
                "in a ledger with `path`; the data has to be counted again."
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
        """Load counts from a checkpoint that holds them, after the same checks as :meth:`merge_state`."""
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
            check_state(state, self.counts, self.layout)
        except (InputError, SpecMismatchError) as error:
            messages.append(f"{prefix}counts: {error}")
            return
        for name in ("counts", "refused"):
            setattr(self, name, state[name].clone().to(self.counts.device))
        self._update_count = max(self._update_count, 1)

    def _set_counts(self, counts: Tensor) -> None:
        if (
            counts is not self.counts
        ):  # setting an attribute of a module costs as much as counting a small batch
            self.counts = counts

    def _refusing(self) -> Tensor | None:
        """Where checks do not wait, the number of examples that could not be counted, to be changed in place."""
        if self.validate_args != "deferred":
            return None
        if self.refused.is_inference() and not torch.is_inference_mode_enabled():
            self.refused = self.refused.clone()
        return self.refused

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> Generator[None, None, None]:
        """Sum over ranks inside, and give the local counts back afterwards, whatever happens inside."""
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """torchmetrics' wrapper without its cache, and without its warning, which comes once the sum is made.

        A rank that answers from its own cache, or whose warning is an error, leaves the others waiting in the sum.
        """

        @functools.wraps(compute)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.sync_context(
                self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
            ):
                return compute(*args, **kwargs)

        return wrapped

    def _ranks(
        self,
        gather: Callable[..., Any] | None = None,
        group: Any = None,
        available: Callable[..., Any] | None = None,
    ) -> Ranks:
        refused = int(self.refused)
        if not (available or self.distributed_available_fn)():
            return Alone(self.counts.device, refused=refused)
        return Ranks(
            self.counts.device, group or self.process_group, gather or self.dist_sync_fn, refused
        )

    def _check_local(self) -> None:
        """Raise where the counts are the sum over ranks for the moment."""
        if self._is_synced:
            raise TorchMetricsUserError(
                "Expected local counts but they are summed over ranks. Call `unsync` first."
            )

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
        self._begin_update()
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
            self._publish(ranks)
        elif isinstance(ranks, Alone):
            ranks.check_counted(self.spec, ranks.refused)
            return
        else:
            agreed = ranks.agree(self.spec, {}, 0, self.update_called)
            view = self.spec.digest + agreed.proposal.to_bytes(8, "big")
            total = ranks.hidden_sum(total, view) if self.spec.secure else ranks.sum(total)
            self._parties = ranks.size
            self._counted = agreed.any_data
        self._cache = self._copy_state_dict()
        self.counts = total
        self._is_synced = True

    @property
    def update_called(self) -> bool:
        """Whether there is anything to compute from, on any rank while the counts are summed over them."""
        return (
            super().update_called or self._given is not None or (self._is_synced and self._counted)
        )

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle. Under privacy a release travels, raw counts stay behind."""
        state: dict[str, Any] = super().__getstate__()
        if not self.spec.privacy.charges:
            return state
        if self._released() is None and bool(self.counts.any()):
            raise ReleaseError(
                "Expected no raw counts in a pickle but this private metric holds some that are not released. Release "
                "or reset it first, or send its `share()`."
            )
        # The defaults are empty counts that outlive this call. Where processes are spawned, tensors travel as file
        # descriptors, and those of a tensor that is made here would be closed before the child starts.
        return state | {
            "counts": self._defaults["counts"],
            "refused": self._defaults["refused"],
            "_cache": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in ("counts", "refused"):
            value: Tensor = getattr(self, name)
            if value is self._defaults[name]:  # counting in place must not change it
                setattr(self, name, value.clone())

    def _copied(self, memo: dict[int, Any], **shared: Any) -> Self:
        """Return a deep copy that has these attributes in common with this metric."""
        if self.spec.privacy.charges:
            refuse_resampling()
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = super().__getstate__()
        copied = {
            name: shared[name] if name in shared else deepcopy(value, memo)
            for name, value in state.items()
        }
        twin.__setstate__(copied)
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
            self._begin_update()
            update(*args, **kwargs)
        except Exception:
            self._update_count -= 1  # torchmetrics has counted the call already
            raise

    def _summed(self) -> Any:
        """Sum over ranks as ``compute`` does, unless that is done, or a private release is here already."""
        done = self._is_synced or self._released() is not None
        unsync = self._should_unsync and not self._is_synced
        return self.sync_context(should_sync=self._to_sync and not done, should_unsync=unsync)
