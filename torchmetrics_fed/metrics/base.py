"""FederatedCurve: what every metric here has. ``update`` counts, one sum moves the counts, ``compute`` reads them."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from typing_extensions import Self

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.average import Average, checked_average
from torchmetrics_fed.functional.band import check_confidence
from torchmetrics_fed.functional.curve import Quantiles, choose_grid, classes_of
from torchmetrics_fed.functional.source import Source, read
from torchmetrics_fed.kernel import Normalization, Task
from torchmetrics_fed.metrics.released import ReleasedMetric
from torchmetrics_fed.metrics.scope import ReleaseScope
from torchmetrics_fed.privacy import Privacy, PrivacyLedger
from torchmetrics_fed.reconstruct import LEAST_BINS, Interpolation, Method, Plan, PlanName, Reconstruction
from torchmetrics_fed.release import Release
from torchmetrics_fed.spec import MultiClass, Spec
from torchmetrics_fed.tree import Tree

__all__ = ["FederatedCurve"]

_Curve = TypeVar("_Curve", bound=tuple[Tensor, ...])


class FederatedCurve(ReleasedMetric):
    """Base of every metric here: ``update`` adds counts, one sum moves them, ``compute`` reads a release.

    Args:
        task: ``"binary"``, ``"multiclass"`` (each class against the rest) or ``"multilabel"``.
        num_classes: for multi-class tasks.
        num_labels: for multi-label tasks.
        average: over classes or labels: None, ``"micro"``, ``"macro"`` or ``"weighted"``, as far as the metric has it.
        multi_class: ``"ovo"`` counts the scores of each class for every true class by itself, which also answers
            one-vs-one questions, at the same sensitivity.
        quantiles: the paper's Q, the one resolution knob: Q quantiles need ``2 ** (ceil(log2(Q)) + 2)`` bins.
        score_range: lowest and highest score there can be. [0, 1] is binned exactly in every floating dtype; any other
            range by comparison with its float64 edges. Scores outside are refused.
        score_edges: sorted bin edges instead of even bins, where the support of the scores is known.
        normalization: ``"sigmoid"``, or ``"softmax"`` for multi-class tasks, if scores are logits. Never guessed.
        ignore_index: target value of examples to leave out.
        method: ``"aligned"`` (both classes' distributions at every bin edge) or ``"quantile"`` (the paper's).
        interpolation: between quantiles, ``"pchip"`` or ``"linear"``.
        privacy: None for exact counts, or :class:`~torchmetrics_fed.DistributedDP`,
            :class:`~torchmetrics_fed.LocalDP`, :class:`~torchmetrics_fed.CentralDP`: what leaves this process is noisy
            then, is made once per data, and is booked in ``ledger``.
        secure: with ``privacy=None``, whether counts may only travel through a sum that hides each client's.
        plan: under privacy, which leaves a release is about. ``"one_message"``: a tree over all bins, branching by
            16. ``"two_round"``: a small part of epsilon places the leaves, inside one ``compute``; a client's
            ``release`` is the first message, and ``release(plan=...)`` the second. ``"carry_over"``: the release before
            the last ``reset`` places them (two rounds if there is none). ``"paper"``: every level of the binary tree. A
            :class:`~torchmetrics_fed.Plan`: that. If not given, what measures best and is safe: two rounds in
            ``compute`` for binary tasks, one message else.
        least_squares: under privacy, whether noisy levels are made consistent; off for comparison only.
        non_negative: under privacy, whether negative cells are projected away; off for comparison only.
        ledger: where releases are booked; one in memory, without budget, if not given.
        data: the name of the data in the ledger.
        scope: for metrics that count the same data and share one release; see
            :func:`~torchmetrics_fed.federated_collection`.
        confidence: for metrics that have bands, the probability that the band holds the curve, or the interval the
            area, of all clients' exact scores; ``plot`` then shades it. Several classes have one each, so leave them
            without average.
        population: whether the band is for the population that the examples were drawn from.
        validate_args: whether ``update`` checks the values of scores and targets.
        kwargs: torchmetrics' own, for instance ``process_group`` or ``dist_sync_fn``.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC, FederatedCurve
        >>> metric = FederatedAUROC("multilabel", num_labels=3, quantiles=64)
        >>> isinstance(metric, FederatedCurve), metric.counts.shape
        (True, torch.Size([3, 2, 256]))
    """

    averages: tuple[Average, ...] = ("micro", "macro")
    """The averages that this metric has."""
    default_average: Average | None = None
    has_bands: bool = False
    """Whether there are confidence bands of this metric."""

    def __init__(
        self,
        task: Task = "binary",
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: Average | Literal["default"] | None = "default",
        multi_class: MultiClass = "ovr",
        quantiles: int = 1024,
        score_range: tuple[float, float] = (0.0, 1.0),
        score_edges: Sequence[float] | Tensor | None = None,
        normalization: Normalization | None = None,
        ignore_index: int | None = None,
        method: Method = "aligned",
        interpolation: Interpolation = "pchip",
        privacy: Privacy | None = None,
        secure: bool = False,
        plan: PlanName | Plan | None = None,
        least_squares: bool = True,
        non_negative: bool = True,
        ledger: PrivacyLedger | None = None,
        data: str = "data",
        scope: ReleaseScope | None = None,
        confidence: float | None = None,
        population: bool = False,
        validate_args: bool = True,
        thresholds: None = None,
        **kwargs: Any,
    ) -> None:
        grid = choose_grid(quantiles, score_range, score_edges, normalization, task, thresholds)
        if ignore_index is not None and not isinstance(ignore_index, int):
            raise InputError(f"Expected argument `ignore_index` to be None or an int but got {ignore_index!r}.")
        classes = classes_of(task, num_classes, num_labels)
        tree, portion = _first_message(plan, grid.bins, privacy)
        spec = Spec(task, classes, grid, tree, privacy, multi_class, secure, portion)
        super().__init__(
            spec,
            plan,
            (ignore_index, normalization),
            PrivacyLedger() if ledger is None else ledger,
            data,
            ReleaseScope() if scope is None else scope,
            **kwargs,
        )
        if privacy is not None and (self.dist_sync_on_step or not self.sync_on_compute):
            raise InputError(
                "Expected neither `dist_sync_on_step=True`, which would release every batch, nor "
                "`sync_on_compute=False`, which would compute from raw counts, with `privacy`."
            )
        self.average = None
        if task != "binary":
            self.average = checked_average(self.default_average if average == "default" else average, self.averages)
        self.reconstruction = Reconstruction(method, quantiles, interpolation, least_squares, non_negative)
        self.normalization: Normalization | None = normalization
        self.ignore_index = ignore_index
        self.validate_args = validate_args
        self.confidence = confidence
        self.population = population
        if confidence is not None:
            self._check_bands(confidence)

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
        options["secure"] = release.spec.secure
        if release.spec.privacy is not None:
            options |= {"privacy": release.spec.privacy, "plan": Plan(release.spec.tree, release.spec.portion)}
        if release.spec.task != "binary":
            name = "num_classes" if release.spec.task == "multiclass" else "num_labels"
            options |= {name: release.spec.classes, "multi_class": release.spec.multi_class}
        metric = cls(release.spec.task, **bins, **options)
        release.spec.check(metric.spec)
        metric._given = release
        return metric

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch. One that is refused changes nothing.

        Args:
            preds: scores of any floating dtype: any shape for binary tasks, ``(N, classes, ...)`` for others.
            target: 0 or 1 for each score, or for multi-class tasks the class of each of N (bool or any int), or
                ``ignore_index``.
        """
        try:
            self._check_local()
            self._join_round()
            before = self.counts
            after = self.spec.grid.add(
                before, preds, target, self.normalization, self.ignore_index, self.validate_args, self.spec.task
            )
            if after is not before:  # setting an attribute of a module costs as much as counting a small batch
                self.counts = after
        except Exception:
            self._update_count -= 1  # torchmetrics has counted the call already
            raise

    @abstractmethod
    def compute(self) -> Any:
        """Return the metric of all ranks' counts."""

    def quantile(self, q: float | Sequence[float] | Tensor) -> Quantiles:
        """Return the scores at or below which a fraction ``q`` of each class lies, from the tree, as in the paper."""
        fractions = torch.as_tensor(q, dtype=torch.float64, device="cpu")
        if not bool(((fractions >= 0) & (fractions <= 1)).all()):
            raise InputError(f"Expected argument `q` to be fractions from 0 to 1 but got {q}.")
        with self._summed():
            source = self._read()
        scores = self.reconstruction.scores(source.levels, source.edges, fractions.reshape(-1))
        negative, positive = (scores[..., row, :].unflatten(-1, fractions.shape or (1,)) for row in (0, 1))
        if fractions.ndim == 0:
            negative, positive = negative[..., 0], positive[..., 0]
        return Quantiles(self._out(negative), self._out(positive))

    def _check_bands(self, confidence: float) -> None:
        check_confidence(confidence)
        if not self.has_bands:
            raise InputError(f"Expected no `confidence`, for {type(self).__name__} has no bands. Leave it out.")
        if self.average is not None or self.spec.multi_class == "ovo":
            raise InputError(
                "Expected `average=None` and no one-vs-one counts with `confidence` but got "
                f"average={self.average!r}, multi_class={self.spec.multi_class!r}. Each class has its own band."
            )

    def _asked_confidence(self) -> float:
        """The confidence that this metric was built with."""
        if self.confidence is None:
            raise InputError(
                f"Expected a metric built with `confidence`, as in {type(self).__name__}(confidence=0.95), but this "
                "one was built without. For any metric there is `functional.roc_band(metric.total())`."
            )
        return self.confidence

    def _area_of_curves(self, value: Tensor | None) -> Tensor | None:
        """The value, or this metric's own, to show beside its curves; a mean over classes belongs to none of them."""
        value = self.compute() if value is None else value
        return None if self.average in ("macro", "weighted") else value

    def _read(self) -> Source:
        """The histograms that answers are read from."""
        return read(self._source(), reconstruction=self.reconstruction)

    def _answer(self, curve: _Curve) -> _Curve:
        """The curve, a named tuple of tensors, on the metric's device and in its dtype."""
        kind: Any = type(curve)
        answer: _Curve = kind(*map(self._out, curve))
        return answer


def _first_message(plan: PlanName | Plan | None, bins: int, privacy: Privacy | None) -> tuple[Tree | None, float]:
    """The tree and the portion of epsilon of what a client's ``release`` sends."""
    if privacy is not None and not isinstance(privacy, Privacy):
        raise InputError(
            f"Expected argument `privacy` to be None, DistributedDP, LocalDP or CentralDP but got {privacy!r}."
        )
    if plan is None:
        return None, 1.0
    if privacy is None:
        raise InputError("Expected no argument `plan` without `privacy`: exact counts are sent as they are.")
    if isinstance(plan, Plan):
        return plan.tree, plan.portion
    if plan not in get_args(PlanName):
        raise InputError(f"Expected argument `plan` to be a Plan or one of {get_args(PlanName)} but got {plan!r}.")
    if plan in ("two_round", "carry_over") and bins < LEAST_BINS:
        raise InputError(
            f'Expected at least {LEAST_BINS} bins to place leaves on with plan="{plan}" but there are {bins}. Leave '
            "`plan` out: so few bins can all be sent."
        )
    if plan == "two_round":
        pilot = Plan.pilot(bins)
        return pilot.tree, pilot.portion
    return Tree.binary(bins) if plan == "paper" else None, 1.0
