"""BandedCurve: metrics that can say how sure they are."""

from typing import Any

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import check_confidence
from torchmetrics_fed.kernel import Task
from torchmetrics_fed.metrics.base import FederatedCurve

__all__ = ["BandedCurve"]


class BandedCurve(FederatedCurve):
    """A metric with a confidence band, made from the release that it reads: at no further cost of privacy.

    Args:
        task: as in :class:`~torchmetrics_fed.FederatedCurve`.
        confidence: probability that the band holds the curve, or the interval the area, of all clients' exact scores.
            ``plot`` then shades the band. For several classes each has its own, so leave them without average.
        population: whether the curve of the population that the examples were drawn from is meant.
        kwargs: those of :class:`~torchmetrics_fed.FederatedCurve`.
    """

    def __init__(
        self, task: Task = "binary", *, confidence: float | None = None, population: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(task, **kwargs)
        if confidence is not None:
            check_confidence(confidence)
            if self.average is not None or self.spec.multi_class == "ovo":
                raise InputError(
                    "Expected `average=None` and no one-vs-one counts with `confidence` but got "
                    f"average={self.average!r}, multi_class={self.spec.multi_class!r}. Each class has its own band."
                )
        self.confidence = confidence
        self.population = population

    def _asked_confidence(self) -> float:
        """The confidence that this metric was built with."""
        if self.confidence is None:
            raise InputError(
                f"Expected a metric built with `confidence`, as in {type(self).__name__}(confidence=0.95), but this "
                "one was built without. For any metric there is `functional.roc_band(metric.total())`."
            )
        return self.confidence
