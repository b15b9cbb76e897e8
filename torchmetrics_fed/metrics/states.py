"""StateMetric: counts as a torchmetrics state that no cast, move, load or merge can spoil."""

import functools
import hashlib
import secrets
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from typing_extensions import Self

from torchmetrics_fed.aggregation import Alone, Ranks
from torchmetrics_fed.errors import InputError, ReleaseError, SpecMismatchError
from torchmetrics_fed.metrics.guards import check_state
from torchmetrics_fed.release import Spec
from torchmetrics_fed.typing import Validation


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


class StateMetric(Metric):
    """A Metric with int64 ``counts`` of what a spec says, and what belongs to them.

    ``meaning`` is what else tells two metrics' counts apart; metrics of a collection that agree in it may share them.
    """

    is_differentiable: bool = False
    higher_is_better: bool | None = None
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0
    is_scalar: bool = False
    """Whether ``compute`` returns one number, which can be logged."""

    counts: Tensor
    layout: Tensor
    refused: Tensor
    validate_args: Validation

    def __init__(self, spec: Spec, meaning: object, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec, self._curve_dtype = spec, torch.float64
        # torchmetrics merges metrics of a collection into one compute group when their states look equal, so what the
        # counts mean has to be a state as well: as bytes, which `allclose` cannot find nearly equal, and as the first
        # state because torchmetrics 1.6 compares no other.
        self._digest = hashlib.sha256(spec.digest + repr(meaning).encode()).digest()
        for name, value in self._fresh_states().items():
            self.add_state(name, value, dist_reduce_fx="max" if name == "layout" else "sum")

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
