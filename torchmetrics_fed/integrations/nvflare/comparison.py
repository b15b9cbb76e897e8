"""FederatedComparisonAggregator: the server's part, of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional.curve import GridName
from torchmetrics_fed.integrations.nvflare.aggregator import FederatedMetricAggregator
from torchmetrics_fed.metrics import FederatedMetric, FederatedModelComparison
from torchmetrics_fed.privacy import Privacy


class FederatedComparisonAggregator(FederatedMetricAggregator):
    """The same for two models that every site evaluates on the same examples, with a ``FederatedModelComparison``.

    Its numbers, such as ``global_difference``, are in the ``metrics`` of what is aggregated. No best model is chosen.

    Args:
        models: as in the clients' metrics, and likewise all up to ``secure``; the rest as in the base class.

    Example:
        >>> FederatedComparisonAggregator(("old", "new")).spec.models
        ('old', 'new')
    """

    def __init__(
        self,
        models: Sequence[str] = ("old", "new"),
        thresholds: Sequence[float] = (0.5, 0.5),
        grid: GridName | ScoreGrid = "two_sided",
        privacy: Privacy | None = None,
        secure: bool = False,
        plan: PlanName | None = None,
        min_clients: int = 1,
        max_examples: int | None = None,
        stage_timeout: float = 60.0,
        folder: str = "torchmetrics_fed",
        figures: bool = False,
        aggregation_weights: Mapping[str, float] | None = None,
        exclude_vars: str | None = None,
    ) -> None:
        self.models, self.thresholds = models, thresholds
        super().__init__(
            grid=grid,
            privacy=privacy,
            secure=secure,
            plan=plan,
            min_clients=min_clients,
            max_examples=max_examples,
            stage_timeout=stage_timeout,
            folder=folder,
            figures=figures,
            key_metric=None,
            aggregation_weights=aggregation_weights,
            exclude_vars=exclude_vars,
        )

    def _template(self) -> FederatedMetric:
        names = "grid", "privacy", "secure", "plan"
        return FederatedModelComparison(self.models, self.thresholds, **{name: getattr(self, name) for name in names})
