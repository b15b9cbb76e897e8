"""Families of metrics, curves and areas under them: what ``plot`` takes and draws."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import Interval
from torchmetrics_fed.functional.figures.canvas import Labels, Score, plot_values
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.metrics.base import FederatedMetric
from torchmetrics_fed.typing import Average, Task


class CurveMetric(FederatedMetric):
    """A metric whose ``compute`` returns a curve, a named tuple that knows its figure."""

    result: ClassVar[Any]
    """What ``compute`` returns."""

    def plot(
        self,
        curve: Sequence[Any] | None = None,
        score: Score = None,
        ax: Any = None,
        *,
        label: str | None = None,
        labels: Labels = None,
    ) -> Any:
        """Draw ``curve``, or the one :meth:`compute` returns with its band, and return ``(fig, ax)``.

        Args:
            curve: what :meth:`compute` returned, or a plain tuple of the same, for instance torchmetrics' own.
            score: what the legend shows beside the name; False for nothing, the curve's own if True or not given.
            ax: axes to draw on; new ones if not given.
            label: name in the legend, which tells several models on the same axes apart.
            labels: names of the classes.

        Example:
            >>> import torch
            >>> from torchmetrics_fed import FederatedROC
            >>> metric = FederatedROC()
            >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
            >>> fig, ax = metric.plot(label="ours")
            >>> fig, ax = metric.plot(([0, 0, 1], [0, 1, 1], [1, 0.5, 0]), score=False, ax=ax, label="theirs")
            >>> [text.get_text() for text in ax.get_legend().get_texts()]
            ['chance', 'ours (AUROC 0.7500)', 'theirs']
        """
        if curve is not None:
            return self._given_curve(curve).plot(score, ax, label, labels)
        with self._summed():
            band = {} if self.confidence is None else {"band": self.band()}
            fig, ax = type(self).compute(self).plot(score, ax, label, labels, **band)
        caption(ax, provenance(self.spec.privacy, self.confidence), label)
        return fig, ax

    def _given_curve(self, curve: Sequence[Any]) -> Any:
        fields = self.result._fields
        if not isinstance(curve, list | tuple) or len(curve) != len(fields):
            got = (
                f"{len(curve)} values" if isinstance(curve, list | tuple) else type(curve).__name__
            )
            raise InputError(
                f"Expected argument `curve` to be what `compute` returned, ({', '.join(fields)}), but got {got}. For "
                "several curves call `plot` several times, with the same `ax`."
            )
        return self.result(*map(_stacked, curve))


class AreaMetric(FederatedMetric):
    """A metric whose ``compute`` returns the area under a curve, a number for each class or their average."""

    higher_is_better: bool | None = True
    averages: tuple[Average, ...] = ("micro", "macro", "weighted")
    default_average: Average | None = "macro"
    curve_of: ClassVar[Any]
    """The function that makes the curve whose area this is."""
    interval_of: ClassVar[Any]
    """The function that makes the area's interval of a release."""

    def __init__(self, task: Task = "binary", **kwargs: Any) -> None:
        super().__init__(task, **kwargs)
        self.is_scalar = task == "binary" or self.average is not None

    @abstractmethod
    def _area(self, average: Average | None) -> Tensor:
        """Return the area of the counts as they are, for counts that are summed already."""

    def compute(self) -> Tensor:
        """Return the area of all ranks' counts."""
        return self._answer(self._area(self.average))

    def interval(self, population: bool = False) -> Interval:
        """Return the interval of the exact area, or the ``population``'s, with the metric's ``confidence``."""
        confidence = self._asked_confidence()
        interval: Interval = self.interval_of(self.release(), confidence, population)
        return self._answer(interval)

    def plot(
        self, val: Any = None, ax: Any = None, *, label: str | None = None, labels: Labels = None
    ) -> Any:
        """Draw the curve whose area this is, or given values, and return ``(fig, ax)``.

        Of ``val``, what :meth:`compute` returned is drawn as a point for each class, a list of such values as lines
        over steps, as in torchmetrics. Nothing is computed or released then. The rest is as in
        :meth:`CurveMetric.plot`.
        """
        if val is not None:
            return plot_values(val, ax, (str(self.plot_legend_name), label, labels))
        with self._summed():
            # a mean over classes belongs to none of their curves
            average = None if self.average in ("macro", "weighted") else self.average
            curve, area = self.curve_of(self._read(), average=average), self._area(average)
            shades = (
                {}
                if self.confidence is None
                else {"band": self.band(), "interval": self.interval()}
            )
            fig, ax = curve.plot(area, ax, label, labels, **shades)
        caption(ax, provenance(self.spec.privacy, self.confidence), label)
        return fig, ax


def _stacked(values: Any) -> Tensor:
    """Values as one tensor. Where each class has points of its own, the shorter ones stay at their last point."""
    if not isinstance(values, list | tuple) or not any(isinstance(row, Tensor) for row in values):
        return torch.as_tensor(values)
    longest = max(map(len, values))
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in values])
