"""AreaMetric: a metric whose answer is the area under a curve."""

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from torchmetrics_fed.functional.band import Interval
from torchmetrics_fed.functional.figures.canvas import Labels, plot_values
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.typing import Average, Task


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

    def plot(  # type: ignore[override]
        self, val: Any = None, ax: Any = None, *, label: str | None = None, labels: Labels = None
    ) -> Any:
        """Draw the curve whose area this is, or given values, and return ``(fig, ax)``.

        Of ``val``, what :meth:`compute` returned is drawn as a point for each class, a list of such values as lines
        over steps, as in torchmetrics. Nothing is computed or released then. The rest is as in
        :meth:`FederatedMetric.plot`.
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
