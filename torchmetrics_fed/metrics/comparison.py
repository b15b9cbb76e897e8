"""FederatedModelComparison."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import Self

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.persons import Ids
from torchmetrics_fed.counting.rules import check_pairs
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.functional.band import roc_band
from torchmetrics_fed.functional.comparison import ModelComparison, compare_models
from torchmetrics_fed.metrics.guards import warn_before_update
from torchmetrics_fed.metrics.metric import FederatedMetric
from torchmetrics_fed.release import Spec
from torchmetrics_fed.typing import GridName

_QUANTILES = 64  # 256 bins of each model


class FederatedModelComparison(FederatedMetric):
    """Whether the second of two models is better, from all ranks' or clients' data: each example scored by both.

    ``compute`` returns a :class:`~torchmetrics_fed.functional.ModelComparison`: both curves and AUROCs, their
    difference with an interval that knows that the data are paired, reclassification at the thresholds.

    Args:
        models: the names of the two.
        thresholds: of each model, the score from which on it calls an example positive. They become edges of the grid.
        confidence: probability that an interval holds what it is of, in the population.
        grid: bins of both models' scores, 256 of each if a name is given.
        options: those of :class:`~torchmetrics_fed.FederatedMetric` for binary tasks: ``privacy``, ``secure``,
            ``plan``, ``ledger``, ``data``, ``normalization``, ``ignore_index``, ``validate_args``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedModelComparison
        >>> metric = FederatedModelComparison(models=("old", "new"), thresholds=(0.5, 0.5))
        >>> target = torch.tensor([0, 0, 1, 1])
        >>> metric.update(torch.tensor([0.1, 0.6, 0.4, 0.9]), torch.tensor([0.1, 0.3, 0.6, 0.9]), target)
        >>> metric.compute().difference
        tensor(0.2500, dtype=torch.float64)
    """

    short_name = "comparison"
    scalar_names = (
        *("auroc_first", "auroc_second", "difference", "difference_low", "difference_high"),
        *("p_value", "net_reclassification", "mcnemar_p_value"),
    )
    bands_of = staticmethod(roc_band)

    def __init__(
        self,
        models: Sequence[str] = ("old", "new"),
        thresholds: Sequence[float] = (0.5, 0.5),
        confidence: float = 0.95,
        *,
        grid: GridName | ScoreGrid = "two_sided",
        **options: Any,
    ) -> None:
        unfit = {
            "task",
            "num_classes",
            "num_labels",
            "average",
            "multi_class",
            "quantiles",
            "groups",
            "reconstruction",
        }
        if unfit & set(options):
            raise InputError(
                f"Expected no argument {' or '.join(f'`{name}`' for name in sorted(unfit & set(options)))} to compare "
                "two models of a binary task. Leave it out."
            )
        if isinstance(models, str) or not all(isinstance(at, int | float) for at in thresholds):
            raise InputError(
                f"Expected two names and two scores but got models={models!r}, thresholds={thresholds!r}."
            )
        self._asked = tuple(models), tuple(map(float, thresholds))
        chosen = Spec.build("binary", quantiles=_QUANTILES, grid=grid).grid
        edges = chosen.smooth_edges
        wanted = np.union1d(edges, self._asked[1])
        ends_stay = wanted[0] == edges[0] and wanted[-1] == edges[-1]
        if ends_stay and not np.isin(self._asked[1], chosen.edges.numpy()).all():
            chosen = ScoreGrid.from_edges(wanted.tolist())
        super().__init__(
            "binary", quantiles=_QUANTILES, grid=chosen, confidence=confidence, **options
        )

    def _extended(self, spec: Spec) -> Spec:
        models, thresholds = self._asked
        return replace(spec, models=models, thresholds=thresholds)

    @classmethod
    def _like(cls, spec: Spec, options: dict[str, Any]) -> Self:
        if not spec.models:
            raise InputError(
                "Expected a release that compares two models but this one is of a single model's scores."
            )
        known = {
            "grid": spec.grid,
            "secure": spec.secure,
            "privacy": spec.privacy,
            "labels": spec.labels,
            "normalization": spec.normalization,
            "ignore_index": spec.ignore_index,
        }
        return cls(spec.models, spec.thresholds, **(options | known))

    def update(  # type: ignore[override]
        self, preds_old: Tensor, preds_new: Tensor, target: Tensor, *, persons: Ids | None = None
    ) -> None:
        """Count a batch of examples with both models' scores. One that is refused changes nothing.

        Scores have any floating dtype and shape; ``target`` and ``persons`` are as in :meth:`FederatedMetric.update`.
        """
        check_pairs((preds_old, preds_new), target)
        with self._admitted(persons, preds_old, target, preds_new) as (first, labels, second):
            batch = (first, second), labels, self.rules, self._refusing()
            self._set_counts(self.spec.grid.add_pairs(self.counts, *batch))

    def compute(self) -> ModelComparison:
        """Return the comparison of both models on all ranks' data."""
        if not self.spec.privacy.charges and not self.update_called:
            warn_before_update(type(self).__name__)
        return self._answer(compare_models(self._source(), self._asked_confidence()))

    def plot(  # type: ignore[override]
        self, result: ModelComparison | None = None, ax: Any = None
    ) -> Any:
        """Draw ``result``, or what :meth:`compute` returns, and return ``(fig, ax)``."""
        return (self.compute() if result is None else result).plot(ax)
