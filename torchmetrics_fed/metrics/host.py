"""CountsMetric: counts as the state of a torchmetrics Metric. The only module that knows torchmetrics' internals."""

import functools
import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from typing_extensions import Self

from torchmetrics_fed.errors import InputError, SpecMismatchError
from torchmetrics_fed.sync import Ranks

__all__ = ["CountsMetric"]

# What torchmetrics' forward switches off and on, and leaves off when update raises in between.
_FORWARD_SWITCHES = ("_update_count", "_to_sync", "_should_unsync", "_enable_grad", "_is_synced", "compute_on_cpu")


class CountsMetric(Metric):
    """A Metric with one state, int64 ``counts``, that no error, cast, cache or checkpoint can spoil.

    Args:
        counts: the counts of no examples.
        meaning: whatever tells two metrics' counts apart; metrics of a collection that agree in it may share them.
        kwargs: torchmetrics' own.
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = None
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    counts: Tensor
    layout: Tensor

    def __init__(self, counts: Tensor, meaning: object, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._curve_dtype = torch.float64
        # torchmetrics merges metrics of a collection into one compute group when their states look equal, so what the
        # counts mean has to be a state as well: as bytes, which `allclose` cannot find nearly equal, and as the first
        # state, for torchmetrics 1.6 compares no other.
        digest = hashlib.sha256(repr(meaning).encode()).digest()[:8]
        self.add_state("layout", torch.tensor(list(digest), dtype=torch.uint8), dist_reduce_fx="max")
        self.add_state("counts", counts, dist_reduce_fx="sum")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value. One that is refused changes nothing."""
        counts, switches = self.counts, {name: getattr(self, name) for name in _FORWARD_SWITCHES}
        try:
            return super().forward(*args, **kwargs)
        except Exception:
            self.counts = counts
            for name, value in switches.items():
                setattr(self, name, value)
            raise

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the counts of another metric, or of its ``metric_state``, that counts the same."""
        state: Any = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        if not isinstance(state, dict):
            raise InputError(f"Expected a metric or its state but got {type(incoming_state).__name__}.")
        self._check_local()
        if isinstance(incoming_state, CountsMetric):
            incoming_state._check_local()
        self._check_state(state)
        self.counts = self.counts + state["counts"].to(self.counts.device)
        self._update_count += incoming_state._update_count if isinstance(incoming_state, Metric) else 1

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

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of curves: float64 unless :meth:`set_dtype` has changed it. Counts are int64 whatever happens."""
        return self._curve_dtype

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """Set the dtype of curves."""
        self._curve_dtype = torch.empty(0).type(dst_type).dtype
        return self

    def _ranks(
        self, gather: Callable[..., Any] | None = None, group: Any = None, available: Callable[..., Any] | None = None
    ) -> Ranks | None:
        if not (available or self.distributed_available_fn)():
            return None
        return Ranks(group or self.process_group, gather or self.dist_sync_fn)

    def _summed(self) -> Any:
        """Sum over ranks as ``compute`` does, unless the caller has synced already."""
        return self.sync_context(
            should_sync=self._to_sync and not self._is_synced, should_unsync=self._should_unsync and not self._is_synced
        )

    def _out(self, values: Tensor) -> Tensor:
        return values.to(self.device, self._curve_dtype)

    def _check_local(self) -> None:
        """Raise where the counts are the sum over ranks for the moment."""
        if self._is_synced:
            raise TorchMetricsUserError("Expected local counts but they are summed over ranks. Call `unsync` first.")

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise unless a state from elsewhere can be counts of this metric. Never prints what it holds."""
        missing = [name for name in self._defaults if not isinstance(state.get(name), Tensor)]
        if missing:
            raise InputError(f"Expected the state to hold tensors {list(self._defaults)} but {missing} are missing.")
        counts, layout = state["counts"], state["layout"]
        if not torch.equal(layout.cpu(), self.layout.cpu()):
            raise SpecMismatchError(
                "Expected the state of a metric with the same bins, `ignore_index` and `normalization` but its layout "
                "differs. Build both with the same arguments."
            )
        if counts.dtype != torch.int64 or counts.shape != self.counts.shape or bool((counts < 0).any()):
            raise InputError(
                f"Expected non-negative int64 counts of shape {tuple(self.counts.shape)} but got {counts.dtype} of "
                f"shape {tuple(counts.shape)}, or negative ones."
            )

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """torchmetrics' wrapper without its cache and its warning.

        A rank that answers from its own cache, or whose warning is an error, leaves the others waiting in the sum.
        """

        @functools.wraps(compute)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.sync_context(
                dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
            ):
                return compute(*args, **kwargs)

        return wrapped

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, error_msgs: list[str] | None = None, **kwargs: Any
    ) -> None:
        """Load counts from a checkpoint that holds them, after the same checks as :meth:`merge_state`."""
        messages: list[str] = args[-1] if error_msgs is None else error_msgs
        state = {name: state_dict.pop(prefix + name) for name in self._defaults if prefix + name in state_dict}
        if not state:
            return
        try:
            self._check_state(state)
        except (InputError, SpecMismatchError) as error:
            messages.append(f"{prefix}counts: {error}")
            return
        self.counts = state["counts"].clone().to(self.counts.device)
        self._update_count = max(self._update_count, 1)
