"""FederatedMetric: curves and areas of one model's scores.

``update`` counts, ``compute`` reads the release.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.persons import Ids
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange import PlanArgument, Terms, plan_from
from torchmetrics_fed.functional.averages import checked_average
from torchmetrics_fed.functional.band import Band, Interval, check_confidence
from torchmetrics_fed.functional.curve import warn_if_tied
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_values
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.functional.intervals import (
    check_of,
    intervals,
    is_wide,
    warn_if_drowned,
    warn_of_persons,
)
from torchmetrics_fed.metrics import guards
from torchmetrics_fed.metrics.counts import CountsMetric
from torchmetrics_fed.metrics.definition import Definition
from torchmetrics_fed.metrics.options import TorchmetricsOptions
from torchmetrics_fed.privacy import Privacy, PrivacyLedger
from torchmetrics_fed.reconstruct import Aligned, Histograms, Reconstruction, read
from torchmetrics_fed.release import Release, Spec
from torchmetrics_fed.typing import (
    Average,
    GridName,
    Groups,
    IntervalOf,
    MultiClass,
    Normalization,
    Task,
    Validation,
)


class FederatedMetric(CountsMetric):
    """Base of every curve and area: ``update`` adds counts, ``compute`` reads their release.

    Args:
        task: ``"binary"``, ``"multiclass"`` (each class against the rest) or ``"multilabel"``.
        num_classes: for multi-class tasks.
        num_labels: for multi-label tasks.
        average: over classes or labels: None, ``"micro"``, ``"macro"`` or ``"weighted"``, as far as
            the metric has it.
        multi_class: ``"ovo"`` counts the scores of each class for every true class by itself, which
            also answers one-vs-one questions, at the same sensitivity.
        quantiles: the paper's Q, the one resolution knob: Q quantiles need ``2 ** (ceil(log2(Q)) +
            2)`` bins.
        grid: ``"two_sided"``, bins on [0, 1] that narrow towards both ends, where confident
            networks and rare events have their scores; ``"even"``, the paper's bins; or a
            :class:`~torchmetrics_fed.ScoreGrid`, which brings its own resolution, range or edges.
            Binning is exact in every floating dtype. Scores outside are refused.
        normalization: ``"sigmoid"``, or ``"softmax"`` for multi-class tasks, if scores are logits.
            Never guessed. A two-sided grid then tells logits apart that float32 probabilities
            cannot.
        ignore_index: target value of examples to leave out.
        groups: names of groups of examples, or their number. Each example is in one of them;
            ``compute`` answers for everybody, :meth:`by_group` for each group, from one release and
            at the same sensitivity.
        labels: what the label columns of a study's tables hold, in the order 0, 1, ...; all parties
            agree on it.
        labels_per_example: for multi-label tasks, the most positive labels of an example that are
            counted. Under privacy a small number takes far less noise. Positive labels beyond it
            are left out, the last ones first.
        sums_to_one: for multi-class tasks under privacy, whether the scores of an example add up to
            1, as softmax makes them. ``update`` refuses other scores then, and the noise is less.
            If not given, True under pure noise. False takes any scores, and more noise.
        privacy: None for exact counts, or :class:`~torchmetrics_fed.DistributedDP`,
            :class:`~torchmetrics_fed.LocalDP`, :class:`~torchmetrics_fed.CentralDP`: what leaves
            this process is noisy then, is made once per data, and is charged to ``ledger``.
        secure: with ``privacy=None``, whether counts may only travel through secure aggregation.
        plan: under privacy, which queries a release takes. ``"adaptive"``: two, the first of which
            places the leaves of the second. ``"single"``: one, for any data. ``"carry_over"``: one,
            placed by the release before the last ``reset``. ``"paper"``: every level of the binary
            tree. A :class:`~torchmetrics_fed.Query`: that. If not given, ``"adaptive"`` where the
            aggregator can ask twice, else ``"single"``.
        reconstruction: how curves are read from a release;
            :class:`torchmetrics_fed.paper.Quantiles` reads them as the paper does.
        ledger: where releases are charged; one in memory, without budget, if not given.
        data: the name of the data in the ledger.
        confidence: the probability with which :meth:`intervals` hold the numbers, and :meth:`band`
            the whole curve, of the population that the examples were drawn from: sampling and
            noise together. ``plot`` then shades the band. The sampling unit is the example, also
            where a person has several.
        validate_args: whether ``update`` checks the values of scores and targets, at the price of
            one wait for the device. ``"deferred"``: it does not wait. Examples that cannot be
            counted never are, and ``compute``, ``release`` and ``share`` raise on all ranks if
            there were any, before anything leaves.
        kwargs: torchmetrics' own, for instance ``process_group`` or ``dist_sync_fn``.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC, FederatedMetric
        >>> metric = FederatedAUROC("multilabel", num_labels=3, quantiles=64)
        >>> isinstance(metric, FederatedMetric), metric.counts.shape
        (True, torch.Size([3, 2, 256]))
    """

    definition: ClassVar[Definition]

    def __init__(
        self,
        task: Task = "binary",
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: Average | Literal["default"] | None = "default",
        multi_class: MultiClass = "ovr",
        quantiles: int = 1024,
        grid: GridName | ScoreGrid = "two_sided",
        normalization: Normalization | None = None,
        ignore_index: int | None = None,
        groups: Groups = None,
        labels: Sequence[str] = (),
        labels_per_example: int | None = None,
        sums_to_one: bool | None = None,
        privacy: Privacy | None = None,
        secure: bool = False,
        plan: PlanArgument = None,
        reconstruction: Reconstruction | None = None,
        ledger: PrivacyLedger | None = None,
        data: str = "data",
        confidence: float | None = None,
        validate_args: Validation = True,
        **kwargs: Unpack[TorchmetricsOptions],
    ) -> None:
        guards.refuse_others(kwargs)
        spec = Spec.build(
            task,
            num_classes=num_classes,
            num_labels=num_labels,
            multi_class=multi_class,
            quantiles=quantiles,
            grid=grid,
            normalization=normalization,
            ignore_index=ignore_index,
            privacy=privacy,
            secure=secure,
            groups=groups,
            labels=labels,
            labels_per_example=labels_per_example,
            sums_to_one=sums_to_one,
        )
        terms = Terms(
            spec=spec,
            plan=plan_from(plan, spec),
            ledger=guards.checked_ledger(ledger),
            data=data,
        )
        super().__init__(terms, validate_args=validate_args, **kwargs)
        if average == "default":
            average = None if task == "binary" else self.definition.default_average
        self.average: Average | None = checked_average(average, self.definition.averages, task)
        self.reconstruction = guards.checked_reconstruction(reconstruction or Aligned(), spec.grid)
        self.confidence = confidence
        self._is_scalar = self.definition.result is None and (
            task == "binary" or self.average is not None
        )
        self._part: Release | None = None
        """The group's release that is read at the moment."""
        self._drawn: Histograms | None = None
        """Plausible counts that are read at the moment, in place of those of the release."""
        self._warned_of_ties = False
        if confidence is not None:
            self._check_confidence(confidence)

    @classmethod
    def _arguments(cls, spec: Spec, options: dict[str, Any]) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "quantiles": max(spec.grid.bins // 4, 2),
            **options,
            "task": spec.task,
            "grid": spec.grid,
            "secure": spec.secure,
            "privacy": spec.privacy,
            "groups": spec.groups or None,
            "labels": spec.labels,
            "normalization": spec.normalization,
            "ignore_index": spec.ignore_index,
            "labels_per_example": spec.labels_per_example,
            "sums_to_one": spec.sums_to_one,
        }
        if spec.task != "binary":
            size = "num_classes" if spec.task == "multiclass" else "num_labels"
            arguments[size] = spec.classes
            arguments["multi_class"] = spec.multi_class
        return arguments

    def update(
        self,
        preds: Tensor,
        target: Tensor,
        groups: Tensor | None = None,
        *,
        sample_weight: Tensor | None = None,
        persons: Ids | None = None,
    ) -> None:
        """Count a batch. A batch that is refused changes nothing.

        Args:
            preds: scores of any floating dtype: any shape for binary tasks, ``(N, classes, ...)``
                for others.
            target: 0 or 1 for each score, or for multi-class tasks the class of each of N (bool,
                any int, or floats that are whole numbers), or ``ignore_index``. No one-hot target.
            groups: integers, the group of each example, for metrics that have groups.
            sample_weight: integers, how often each example counts, for exact metrics without
                ``confidence``.
            persons: under privacy the person of each of N, or of each position, integers or
                strings, read on the host: the first ``examples_per_person`` of each are counted,
                and the rest is ``persons.left_out``.
        """
        if sample_weight is not None:
            guards.refuse_weights(self.spec.privacy.charges, self.confidence)
        with self._admitted(persons, preds, target, groups) as (preds, target, groups):
            counts = self.spec.grid.add(
                self.counts,
                preds,
                target,
                rules=self._rules,
                refused=self._refusing(),
                weight=sample_weight,
                group=groups,
            )
            self._set_counts(counts)

    @abstractmethod
    def compute(self) -> Any:
        """Return the metric of all ranks' counts."""

    def by_group(self) -> dict[str, Any]:
        """Return the result of each group alone, by name, from the same release."""
        if not self.spec.groups:
            raise InputError(
                f"Expected a metric with `groups`, as in {type(self).__name__}(groups=3), but got "
                "none."
            )
        with self._summed():
            return {name: self._of_part(part) for name, part in self._source().by_group.items()}

    def intervals(self) -> dict[str, Interval]:
        """Return an interval for each number of the metric, by name.

        Each holds the value of the population that the examples were drawn from, with the metric's
        ``confidence``: sampling and noise together. A metric that is one number has its own name.

        Example:
            >>> import torch
            >>> from torchmetrics_fed import FederatedCalibration
            >>> metric = FederatedCalibration(confidence=0.95)
            >>> metric.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
            >>> sorted(metric.intervals())
            ['brier_score', 'expected_calibration_error']
        """
        confidence = self._asked_confidence()
        release = self.release()
        warn_of_persons(release)
        found = intervals(release, self._of_counts, confidence, average=self.average)
        if self.definition.result is None:
            found = {self.definition.name: found["value"]}
        return {name: self._answer(interval) for name, interval in found.items()}

    def interval(self, of: IntervalOf = "population") -> Interval:
        """Return the interval of a metric that is one number, with its ``confidence``.

        Args:
            of: ``"population"`` for the value of the population that the examples were drawn from,
                ``"examples"``, for areas without average, for the value of all clients' own
                examples.
        """
        check_of(of)
        confidence = self._asked_confidence()
        if self.definition.result is not None:
            raise InputError(
                f"Expected a metric that is one number but {type(self).__name__} is a curve or has "
                "several. Call `intervals`."
            )
        if of == "population":
            return self.intervals()[self.definition.name]
        if self.definition.interval is None or self.average is not None:
            raise InputError(
                'Expected of="population" because only areas without average have intervals of the '
                f"examples, and this is {type(self).__name__} with average={self.average!r}."
            )
        return self._answer(self.definition.interval(self.release(), confidence, of))

    def shown_intervals(self) -> dict[str, Interval]:
        """Return the intervals that numbers are logged with, by name.

        With ``confidence``, all of them. Without it, under privacy, those that are wider than
        one half, with 95%: such a number says little by itself.
        """
        if self.confidence is not None:
            return self.intervals()
        if not self.spec.privacy.charges or self.spec.multi_class == "ovo":
            return {}
        found = intervals(self.release(), self._of_counts, average=self.average)
        if self.definition.result is None:
            found = {self.definition.name: found["value"]}
        return {
            name: self._answer(interval) for name, interval in found.items() if is_wide(interval)
        }

    def _of_counts(self, histograms: Histograms) -> Any:
        """Return what ``compute`` returns for these histograms, without an average over classes."""
        average = self.average
        self.average = None
        self._drawn = histograms
        try:
            return type(self).compute(self)  # without summing over ranks again
        finally:
            self.average = average
            self._drawn = None

    def band(self, of: IntervalOf = "population") -> Band:
        """Return the band of the curve, with the metric's ``confidence``.

        Args:
            of: ``"population"`` for the curve of the population that the examples were drawn from,
                ``"examples"`` for the exact curve of all clients' own examples.
        """
        return self._band(of, self.average)

    def _band(self, of: IntervalOf, average: Average | None) -> Band:
        confidence = self._asked_confidence()
        if self.definition.band is None:
            raise InputError(
                f"Expected a metric with a ROC or PR curve because {type(self).__name__} has no "
                "band. Its numbers have `intervals`."
            )
        release = self.release()
        warn_of_persons(release)
        return self._answer(self.definition.band(release, confidence, of, average))

    def plot(
        self,
        curve: Sequence[Any] | None = None,
        score: Score = None,
        ax: Any = None,
        *,
        label: str | None = None,
        labels: Labels = None,
        **line_kwargs: Any,
    ) -> Any:
        """Draw ``curve``, or the metric's own with its band, and return ``(fig, ax)``.

        Args:
            curve: what :meth:`compute` returned, or a plain tuple of the same, for instance
                torchmetrics' own.
            score: what the legend shows beside the name; False for nothing, the curve's own if True
                or not given.
            ax: axes to draw on; new ones if not given.
            label: name in the legend, which tells several models on the same axes apart.
            labels: names of the classes.
            line_kwargs: matplotlib's keywords for the lines.

        Example:
            >>> import torch
            >>> from torchmetrics_fed import FederatedROC
            >>> metric = FederatedROC()
            >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
            >>> fig, ax = metric.plot(label="ours")
            >>> curve = ([0, 0, 1], [0, 1, 1], [1, 0.5, 0])
            >>> fig, ax = metric.plot(curve, score=False, ax=ax, label="theirs")
            >>> [text.get_text() for text in ax.get_legend().get_texts()]
            ['chance', 'ours (AUROC 0.7500)', 'theirs']
        """
        if curve is not None:
            return self._given_curve(curve).plot(score, ax, label, labels, **line_kwargs)
        with self._summed():
            band = None
            if self._draws_band():
                band = self.band()
            result = type(self).compute(self)  # without summing over ranks again
            if band is None:
                fig, ax = result.plot(score, ax, label, labels, **line_kwargs)
            else:
                fig, ax = result.plot(score, ax, label, labels, band=band, **line_kwargs)
        confidence = self.confidence if self._draws_band() else None
        caption(ax, provenance(self.spec.privacy, confidence), label)
        return fig, ax

    def _draws_band(self) -> bool:
        """Whether a figure of the metric has a band."""
        has_band = self.definition.band is not None and self.average in (None, "micro")
        return self.confidence is not None and has_band

    def _given_curve(self, curve: Sequence[Any]) -> Any:
        fields = self.definition.result._fields
        if not isinstance(curve, list | tuple) or len(curve) != len(fields):
            got = type(curve).__name__
            if isinstance(curve, list | tuple):
                got = f"{len(curve)} values"
            raise InputError(
                f"Expected argument `curve` to be what `compute` returned, ({', '.join(fields)}), "
                f"but got {got}. For several curves call `plot` several times, with the same `ax`."
            )
        return self.definition.result(*map(_stacked, curve))

    def _plot_area(
        self,
        val: Any,
        ax: Any,
        *,
        area_of: Callable[[Average | None], Tensor],
        label: str | None,
        labels: Labels,
        line_kwargs: dict[str, Any],
    ) -> Any:
        """Draw the curve of an area, or given values of it, and return ``(fig, ax)``."""
        if val is not None:
            return plot_values(val, ax, (str(self.plot_legend_name), label, labels))
        assert self.definition.curve is not None
        with self._summed():
            # a mean over classes belongs to none of their curves
            average = None if self.average in ("macro", "weighted") else self.average
            curve = self.definition.curve(self._read(), average=average)
            area = area_of(average)
            if self.confidence is None:
                fig, ax = curve.plot(area, ax, label, labels, **line_kwargs)
            else:
                found = intervals(self.release(), self._of_counts, self.confidence, average=average)
                fig, ax = curve.plot(
                    area,
                    ax,
                    label,
                    labels,
                    band=self._band("population", average),
                    interval=self._answer(found["value"]),
                    **line_kwargs,
                )
        caption(ax, provenance(self.spec.privacy, self.confidence), label)
        return fig, ax

    def _source(self) -> Release:
        if self._part is not None:
            return self._part
        return super()._source()

    def _of_part(self, part: Release) -> Any:
        """Return what ``compute`` returns for one group."""
        self._part = part
        try:
            return type(self).compute(self)  # without summing over ranks again
        finally:
            self._part = None

    def _read(self) -> Histograms:
        """Return the histograms of the release, with a warning where they say little."""
        if self._drawn is not None:
            return self._drawn
        release = self._source()
        histograms = read(release, reconstruction=self.reconstruction)
        if self.spec.privacy.charges:
            warn_if_drowned(release, self.average)
        elif not self.update_called:  # a private release without data is refused
            guards.warn_before_update(type(self).__name__)
        elif self.definition.has_order and not self._warned_of_ties:
            self._warned_of_ties = warn_if_tied(histograms, self.spec.grid)
        return histograms

    def _check_confidence(self, confidence: float) -> None:
        check_confidence(confidence)
        if self.spec.multi_class == "ovo":
            raise InputError(
                'Expected no `confidence` with multi_class="ovo": one-vs-one counts have no '
                'intervals. Count multi_class="ovr".'
            )

    def _asked_confidence(self) -> float:
        if self.confidence is None:
            raise InputError(
                "Expected a metric built with `confidence`, as in FederatedROC(confidence=0.95), "
                f"but this one, a {type(self).__name__}, has none. For any metric there is "
                "`functional.intervals(metric.release(), ...)`."
            )
        return self.confidence


def _stacked(values: Any) -> Tensor:
    """Return values as one tensor.

    Where each class has points of its own, shorter rows stay at their last point.
    """
    if not isinstance(values, list | tuple) or not any(isinstance(row, Tensor) for row in values):
        return torch.as_tensor(values)
    longest = max(map(len, values))
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in values])
