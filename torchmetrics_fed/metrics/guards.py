"""Guards: arguments that belong elsewhere, and callers that a private metric must not serve."""

import inspect
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.wrappers import BootStrapper

from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.errors import InputError, ReleaseError, SpecMismatchError
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.reconstruct import Reconstruction

_LOGGED = "_ResultMetric"
"""Lightning's class around a metric that was given to `self.log`. Lightning may not be
installed."""
_INSTEAD = {
    "thresholds": (
        "the bins are the thresholds: `quantiles` sets how fine they are, "
        "`grid=ScoreGrid.from_edges(edges)` sets them one by one"
    ),
    "score_range": "use `grid=ScoreGrid.even(quantiles, score_range)`",
    "score_edges": "use `grid=ScoreGrid.from_edges(edges)`",
    "epsilon": (
        "use `privacy=CentralDP(epsilon=1.0)`, `LocalDP(epsilon=1.0)` or "
        "`DistributedDP(epsilon=1.0, min_clients=8)`"
    ),
    "delta": 'use `privacy=CentralDP(epsilon=1.0, delta=1e-6, mechanism="discrete_gaussian")`',
    "min_clients": "use `privacy=DistributedDP(epsilon=1.0, min_clients=8)`",
    "budget": "use `ledger=PrivacyLedger(budget=3.0)`",
    "method": "use `reconstruction=paper.Quantiles(1024)` from `torchmetrics_fed.paper`",
    "strategy": (
        "use `reconstruction=paper.Quantiles(1024, strategy=...)` from `torchmetrics_fed.paper`"
    ),
}


def refuse_others(kwargs: Any) -> None:
    """Raise for arguments that others have, and say what to pass here."""
    if kwargs.get("thresholds", 0) is None:  # torchmetrics' own default
        del kwargs["thresholds"]
    for name in kwargs:
        if name in _INSTEAD:
            raise InputError(
                f"Expected no argument `{name}` but got {kwargs[name]!r}: {_INSTEAD[name]}."
            )


def checked_ledger(ledger: Any) -> PrivacyLedger:
    """Return the ledger, or one in memory, or raise and say how to make one."""
    if ledger is None or isinstance(ledger, PrivacyLedger):
        return PrivacyLedger() if ledger is None else ledger
    number = isinstance(ledger, int | float) and not isinstance(ledger, bool)
    path = isinstance(ledger, str | os.PathLike)
    use = (
        f"path={os.fspath(ledger)!r}, budget=3.0" if path else f"budget={ledger if number else 3.0}"
    )
    raise InputError(
        f"Expected argument `ledger` to be a PrivacyLedger but got {ledger!r}. Pass "
        f"`ledger=PrivacyLedger({use})`."
    )


def checked_reconstruction(reconstruction: Any, grid: ScoreGrid) -> Reconstruction:
    """Return the reconstruction if curves of this grid can be read by it."""
    if not isinstance(reconstruction, Reconstruction):
        raise InputError(
            f"Expected argument `reconstruction` to be a Reconstruction but got {reconstruction!r}."
        )
    reconstruction.check_grid(grid)
    return reconstruction


def refuse_weights(private: bool, confidence: float | None) -> None:
    """Raise where examples must count once."""
    if private:
        raise InputError(
            "Expected no `sample_weight` with `privacy`: noise is calibrated for examples that "
            "count once, and one that counts w times is protected w times less. Leave it out, or "
            "release without privacy."
        )
    if confidence is not None:
        raise InputError(
            "Expected no `sample_weight` with `confidence`: a band knows how examples vary, not "
            "how weights do. Leave out one of them."
        )


def check_state(state: dict[str, Any], counts: Tensor, layout: Tensor) -> None:
    """Raise unless a state from elsewhere can be counts of a metric with these states.

    Never prints what it holds.
    """
    names = "_layout", "counts", "_refused"
    if missing := [name for name in names if not isinstance(state.get(name), Tensor)]:
        raise InputError(
            f"Expected the state to hold the tensors {names} but {missing} are missing."
        )
    if not torch.equal(state["_layout"].cpu(), layout.cpu()):
        raise SpecMismatchError(
            "Expected the state of a metric with the same bins, `ignore_index` and `normalization` "
            "but its layout differs. Build both with the same arguments."
        )
    added = state["counts"]
    shape = tuple(counts.shape)
    if added.dtype != torch.int64 or tuple(added.shape) != shape or bool((added < 0).any()):
        got = f"{added.dtype} of shape {tuple(added.shape)}"
        raise InputError(
            f"Expected non-negative int64 counts of shape {shape} but got {got}, or negative ones."
        )


def warn_before_update(name: str) -> None:
    """Warn as torchmetrics does of an answer without data.

    Every rank does once all have summed, so that none waits.
    """
    text = f"The ``compute`` method of metric {name} was called before the ``update`` method"
    warnings.warn(
        f"{text} which may lead to errors, as metric states have not yet been updated.",
        stacklevel=3,
    )


# The three guards below look at the objects whose methods are on the stack, because nothing plainer
# tells: BootStrapper copies a metric as trackers and Lightning do, and resamples before the copies
# see a batch; Lightning asks a metric for its answer before it looks whether that is a number; and
# a collection tells its metrics nothing of each other. Without the guards, examples are counted too
# often, a release is charged and lost, or data is released several times by habit. An exact metric
# never looks.


def refuse_resampling() -> None:
    """Raise if this copy of a private metric is made by a wrapper that resamples.

    It would release the same data again, and count some people several times, beyond the declared
    sensitivity.
    """
    if any(isinstance(caller, BootStrapper) for caller in _callers()):
        raise ReleaseError(
            "Expected a private metric outside BootStrapper, which resamples: an example that is "
            "drawn twice is protected half as well. Bootstrap without `privacy`, or ask a release "
            "for its bands."
        )


def refuse_logging(name: str) -> None:
    """Raise if Lightning is about to log a private answer that is not one number."""
    if any(type(caller).__name__ == _LOGGED for caller in _callers()):
        raise ReleaseError(
            f"Expected one number in `self.log` but {name} has several. Log FederatedAUROC or "
            "FederatedAveragePrecision, of several classes with an `average`, in one "
            "`federated_collection` with the curve; of a confusion matrix "
            "FederatedScoreAtThreshold, of an operating point `with_threshold=False`. Or use "
            "integrations.lightning.FederatedEvaluation, which logs the scalars and hands the "
            "figure to the logger."
        )


def warn_of_several_releases(metric: Metric) -> None:
    """Warn if a collection's private metrics make a release each, before the first does.

    Never while ranks sum: one whose warning is an error would leave the others waiting.
    """
    callers = _callers()
    collection = next((caller for caller in callers if isinstance(caller, MetricCollection)), None)
    if collection is None:
        return
    members: list[Any] = list(collection.values(copy_state=False))
    private = [
        member for member in members if hasattr(member, "spec") and member.spec.privacy.charges
    ]
    releases = {id(member._shared): member.spec.epsilon for member in private}
    if len(releases) > 1 and private[0] is metric:
        warnings.warn(
            f"This collection's {len(private)} private metrics make {len(releases)} releases of "
            f"the same data, epsilon {sum(releases.values()):g} in all. `federated_collection` "
            "makes one for all of them.",
            stacklevel=3,
        )


def _callers() -> Iterator[Any]:
    """The objects whose methods are on the stack, the nearest first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back
