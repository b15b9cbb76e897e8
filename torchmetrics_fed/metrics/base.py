"""FederatedCurve: counts as a torchmetrics state. The only module that knows torchmetrics' internals."""

import functools
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from typing_extensions import Self

from torchmetrics_fed.errors import InputError, ReleaseError, SpecMismatchError
from torchmetrics_fed.functional.curve import Quantiles, choose_grid
from torchmetrics_fed.kernel import Normalization
from torchmetrics_fed.reconstruct import Interpolation, Method, Reconstruction
from torchmetrics_fed.release import Release, Share
from torchmetrics_fed.spec import Spec, Task
from torchmetrics_fed.sync import Ranks

__all__ = ["FederatedCurve"]

_SYNCED = "Expected local counts but they are summed over ranks. Call `unsync` first."
_FROM_RELEASE = "Expected no update of a metric made from a release. Call `reset` to start anew."

# What torchmetrics' forward switches off and on, and leaves off when update raises in between.
_FORWARD_SWITCHES = ("_update_count", "_to_sync", "_should_unsync", "_enable_grad", "_is_synced", "compute_on_cpu")


class FederatedCurve(Metric):
    """Base of every metric here: ``update`` adds counts, one sum moves them, ``compute`` reads a release.

    Args:
        task: ``"binary"``.
        quantiles: the paper's Q, the one resolution knob: Q quantiles need ``2 ** (ceil(log2(Q)) + 2)`` bins.
        score_range: lowest and highest score there can be. [0, 1] is binned exactly in every floating dtype; any other
            range by comparison with its float64 edges. Scores outside are refused.
        score_edges: sorted bin edges instead of even bins, where the support of the scores is known.
        normalization: ``"sigmoid"`` if scores are logits. Never guessed.
        ignore_index: target value of examples to leave out.
        method: ``"aligned"`` (both classes' distributions at every bin edge) or ``"quantile"`` (the paper's).
        interpolation: between quantiles, ``"pchip"`` or ``"linear"``.
        validate_args: whether ``update`` checks the values of scores and targets.
        kwargs: torchmetrics' own, for instance ``process_group`` or ``dist_sync_fn``.
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = None
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    counts: Tensor
    layout: Tensor

    def __init__(
        self,
        task: Task = "binary",
        *,
        quantiles: int = 1024,
        score_range: tuple[float, float] = (0.0, 1.0),
        score_edges: Sequence[float] | Tensor | None = None,
        normalization: Normalization | None = None,
        ignore_index: int | None = None,
        method: Method = "aligned",
        interpolation: Interpolation = "pchip",
        validate_args: bool = True,
        thresholds: None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        grid = choose_grid(quantiles, score_range, score_edges, normalization, thresholds)
        if ignore_index is not None and not isinstance(ignore_index, int):
            raise InputError(f"Expected argument `ignore_index` to be None or an int but got {ignore_index!r}.")
        self.spec = Spec(task, 1, grid)
        self.reconstruction = Reconstruction(method, quantiles, interpolation)
        self.normalization: Normalization | None = normalization
        self.ignore_index = ignore_index
        self.validate_args = validate_args
        self._curve_dtype = torch.float64
        self._given: Release | None = None
        self.add_state("counts", grid.empty(self.spec.classes), dist_reduce_fx="sum")
        # torchmetrics merges metrics of a collection into one compute group when their states look equal, so what the
        # counts mean has to be a state as well: as bytes, which `allclose` cannot find nearly equal.
        self.add_state("layout", self._layout(), dist_reduce_fx="max")

    @classmethod
    def from_release(cls, release: Release, **options: Any) -> Self:
        """Return a metric that reads ``release``: ``compute`` and ``plot`` work, ``update`` needs a ``reset`` first.

        Args:
            release: the sum of the clients' shares.
            options: what shapes the answer, for instance ``method``; the rest comes from the release.
        """
        grid = release.spec.grid
        options.setdefault("quantiles", max(grid.bins // 4, 2))
        bins = {"score_range": grid.score_range} if grid.score_edges is None else {"score_edges": grid.score_edges}
        metric = cls(release.spec.task, **bins, **options)
        release.spec.check(metric.spec)
        metric._given = release
        return metric

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch. One that is refused changes nothing.

        Args:
            preds: scores, any floating dtype and shape.
            target: 0 or 1 (bool or any int) or ``ignore_index`` for each score.
        """
        try:
            if self._is_synced:
                raise TorchMetricsUserError(_SYNCED)
            if self._given is not None:
                raise ReleaseError(_FROM_RELEASE)
            before = self.counts
            after = self.spec.grid.add(before, preds, target, self.normalization, self.ignore_index, self.validate_args)
            if after is not before:  # setting an attribute of a module costs as much as counting a small batch
                self.counts = after
        except Exception:
            self._update_count -= 1  # torchmetrics has counted the call already
            raise

    @abstractmethod
    def compute(self) -> Any:
        """Return the metric of all ranks' counts."""

    def release(self) -> Share:
        """Return this client's share. Ranks of one client (its ``process_group``) are summed first."""
        if self._given is not None:
            raise ReleaseError("Expected a client's metric but this one was made from a release, which has no share.")
        with self._summed():
            return Share(self.spec, self.counts.cpu().clone())

    def quantile(self, q: float | Sequence[float] | Tensor) -> Quantiles:
        """Return the scores at or below which a fraction ``q`` of each class lies, from the tree, as in the paper."""
        fractions = torch.as_tensor(q, dtype=torch.float64, device="cpu")
        if not bool(((fractions >= 0) & (fractions <= 1)).all()):
            raise InputError(f"Expected argument `q` to be fractions from 0 to 1 but got {q}.")
        with self._summed():
            release = self._release()
        scores = self.reconstruction.scores(release.leaf, self.spec.grid.edges, fractions.reshape(-1))
        negative, positive = (self._out(row.reshape(fractions.shape)) for row in scores[0])
        return Quantiles(negative, positive)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return its own value. One that is refused changes nothing."""
        if self._given is not None:
            raise ReleaseError(_FROM_RELEASE)
        counts, switches = self.counts, {name: getattr(self, name) for name in _FORWARD_SWITCHES}
        try:
            return super().forward(*args, **kwargs)
        except Exception:
            self.counts = counts
            for name, value in switches.items():
                setattr(self, name, value)
            raise

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the counts of another metric, or of its ``metric_state``, that has the same spec."""
        state: Any = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        if not isinstance(state, dict):
            raise InputError(f"Expected a metric or its state but got {type(incoming_state).__name__}.")
        if self._is_synced or getattr(incoming_state, "_is_synced", False):
            raise TorchMetricsUserError(_SYNCED)
        if self._given is not None or getattr(incoming_state, "_given", None) is not None:
            raise ReleaseError("Expected metrics with counts but one was made from a release: use `Release.sum`.")
        if isinstance(incoming_state, FederatedCurve):
            self.spec.check(incoming_state.spec)
        self._check_state(state)
        self.counts = self.counts + state["counts"].to(self.counts.device)
        self._computed = None
        self._update_count += incoming_state._update_count if isinstance(incoming_state, Metric) else 1

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Replace the counts by their sum over all ranks, once all have shown the same spec."""
        if self._is_synced and should_sync:
            raise TorchMetricsUserError("The Metric has already been synced.")
        available = distributed_available or self.distributed_available_fn
        if not should_sync or self._given is not None or not available():
            return
        ranks = Ranks(process_group or self.process_group, dist_sync_fn or self.dist_sync_fn)
        ranks.agree(self.spec, self.counts.device)
        total = ranks.sum(self.counts)
        self._cache = self._copy_state_dict()
        self.counts = total
        self._is_synced = True

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

    def reset(self) -> None:
        """Forget counts and release."""
        super().reset()
        self._given = None

    @property
    def update_called(self) -> bool:
        """Whether there is anything to compute from."""
        return super().update_called or self._given is not None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of curves: float64 unless :meth:`set_dtype` has changed it. Counts are int64 whatever happens."""
        return self._curve_dtype

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """Set the dtype of curves."""
        self._curve_dtype = torch.empty(0).type(dst_type).dtype
        return self

    def _summed(self) -> Any:
        """Sum over ranks as ``compute`` does, unless the caller has synced already."""
        return self.sync_context(
            should_sync=self._to_sync and not self._is_synced, should_unsync=self._should_unsync and not self._is_synced
        )

    def _release(self) -> Release:
        """The release that answers are read from: the one given, or the counts as they are now."""
        return self._given or Release(self.spec, self.counts.cpu())

    def _out(self, values: Tensor) -> Tensor:
        return values.to(self.device, self._curve_dtype)

    def _layout(self) -> Tensor:
        told = (self.spec.fingerprint, self.ignore_index, self.normalization)
        return torch.tensor(list(hashlib.sha256(repr(told).encode()).digest()[:8]), dtype=torch.uint8)

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise unless a state from elsewhere can be counts of this metric. Never prints what it holds."""
        missing = [name for name in self._defaults if not isinstance(state.get(name), Tensor)]
        if missing:
            raise InputError(f"Expected the state to hold tensors {list(self._defaults)} but {missing} are missing.")
        counts, layout = state["counts"], state["layout"]
        if not torch.equal(layout.cpu(), self._layout()):
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
        self._computed = None
        self._update_count = max(self._update_count, 1)
