"""FederatedModelComparison: two models on the same examples, as a torchmetrics Metric.

The counts are tables: the examples of each class by the bin of the first model's score and the bin
of the second model's score. The thresholds of both models are edges of the grid, so that calls at a
threshold can be read off the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import Unpack

from torchmetrics_fed.comparison.plan import TABLES
from torchmetrics_fed.comparison.result import ModelComparison, compare_models
from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.persons import Ids
from torchmetrics_fed.counting.validation import check_pairs
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange import PlanArgument, Terms, plan_from
from torchmetrics_fed.functional.band import check_confidence
from torchmetrics_fed.metrics import CountsMetric, Definition
from torchmetrics_fed.metrics.guards import checked_ledger, warn_before_update
from torchmetrics_fed.metrics.options import TorchmetricsOptions
from torchmetrics_fed.privacy import Privacy, PrivacyLedger
from torchmetrics_fed.release import Spec
from torchmetrics_fed.typing import GridName, Normalization, Validation

QUANTILES = 64
"""Quantiles of each model's scores, which give 256 bins: a table has 256 x 256 cells."""


class FederatedModelComparison(CountsMetric):
    """Whether the second of two models is better, from all ranks' or clients' data.

    Both models score each example. ``compute`` returns a
    :class:`~torchmetrics_fed.comparison.ModelComparison`: both curves and AUROCs, their difference
    with an interval for paired data, and reclassification at the thresholds.

    Args:
        models: the names of the two models.
        thresholds: for each model, the lowest score at which it calls an example positive. They
            become edges of the grid.
        confidence: the probability that an interval holds the population's value.
        grid: the bins of both models' scores; a name gives 256 bins of each.
        normalization: as in :class:`~torchmetrics_fed.FederatedMetric`, and likewise all arguments
            that follow.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedModelComparison
        >>> metric = FederatedModelComparison(models=("old", "new"), thresholds=(0.5, 0.5))
        >>> old = torch.tensor([0.1, 0.6, 0.4, 0.9])
        >>> new = torch.tensor([0.1, 0.3, 0.6, 0.9])
        >>> metric.update(old, new, torch.tensor([0, 0, 1, 1]))
        >>> metric.compute().difference
        tensor(0.2500, dtype=torch.float64)
    """

    definition = Definition(
        "comparison",
        result=ModelComparison,
        scalars=(
            "auroc_first",
            "auroc_second",
            "difference",
            "difference_low",
            "difference_high",
            "p_value",
            "net_reclassification",
            "mcnemar_p_value",
        ),
        averages=(),
    )

    confidence: float

    def __init__(
        self,
        models: Sequence[str] = ("old", "new"),
        thresholds: Sequence[float] = (0.5, 0.5),
        confidence: float = 0.95,
        *,
        grid: GridName | ScoreGrid = "two_sided",
        normalization: Normalization | None = None,
        ignore_index: int | None = None,
        labels: Sequence[str] = (),
        privacy: Privacy | None = None,
        secure: bool = False,
        plan: PlanArgument = None,
        ledger: PrivacyLedger | None = None,
        data: str = "data",
        validate_args: Validation = True,
        **kwargs: Unpack[TorchmetricsOptions],
    ) -> None:
        check_confidence(confidence)
        spec = comparison_spec(
            models,
            thresholds,
            grid=grid,
            normalization=normalization,
            ignore_index=ignore_index,
            labels=labels,
            privacy=privacy,
            secure=secure,
        )
        terms = Terms(
            spec=spec,
            plan=plan_from(plan, spec, TABLES),
            ledger=checked_ledger(ledger),
            data=data,
        )
        super().__init__(terms, validate_args=validate_args, **kwargs)
        self.confidence = confidence

    @classmethod
    def _arguments(cls, spec: Spec, options: dict[str, Any]) -> dict[str, Any]:
        if not spec.models:
            raise InputError(
                "Expected a release that compares two models but this one is of a single model's "
                "scores."
            )
        return {
            **options,
            "models": spec.models,
            "thresholds": spec.thresholds,
            "grid": spec.grid,
            "normalization": spec.normalization,
            "ignore_index": spec.ignore_index,
            "labels": spec.labels,
            "privacy": spec.privacy,
            "secure": spec.secure,
        }

    def update(
        self,
        preds_old: Tensor,
        preds_new: Tensor,
        target: Tensor,
        *,
        persons: Ids | None = None,
    ) -> None:
        """Count a batch of examples with both models' scores. A refused batch changes nothing.

        Scores have any floating dtype and shape. ``target`` and ``persons`` are as in
        :meth:`FederatedMetric.update`.
        """
        check_pairs((preds_old, preds_new), target)
        with self._admitted(persons, preds_old, target, preds_new) as (first, labels, second):
            counts = self.spec.grid.add_pairs(
                self.counts, (first, second), labels, self._rules, self._refusing()
            )
            self._set_counts(counts)

    def compute(self) -> ModelComparison:
        """Return the comparison of both models on all ranks' data."""
        if not self.spec.privacy.charges and not self.update_called:
            warn_before_update(type(self).__name__)
        return self._answer(compare_models(self._source(), self.confidence))

    def plot(self, result: ModelComparison | None = None, ax: Any = None) -> Any:
        """Draw ``result``, or the result of :meth:`compute`, and return ``(fig, ax)``."""
        if result is None:
            result = self.compute()
        return result.plot(ax)


def comparison_spec(
    models: Sequence[str],
    thresholds: Sequence[float],
    *,
    grid: GridName | ScoreGrid = "two_sided",
    normalization: Normalization | None = None,
    ignore_index: int | None = None,
    labels: Sequence[str] = (),
    privacy: Privacy | None = None,
    secure: bool = False,
) -> Spec:
    """Return the spec of a comparison, with the thresholds among the edges of its grid."""
    are_scores = all(isinstance(threshold, int | float) for threshold in thresholds)
    if isinstance(models, str) or not are_scores:
        raise InputError(
            f"Expected two names and two scores but got models={models!r}, "
            f"thresholds={thresholds!r}."
        )
    scores = tuple(float(threshold) for threshold in thresholds)
    base_grid = Spec.build("binary", quantiles=QUANTILES, grid=grid).grid
    spec = Spec.build(
        "binary",
        quantiles=QUANTILES,
        grid=_grid_with_edges(base_grid, scores),
        normalization=normalization,
        ignore_index=ignore_index,
        privacy=privacy,
        secure=secure,
        labels=labels,
    )
    return replace(spec, models=tuple(models), thresholds=scores)


def _grid_with_edges(grid: ScoreGrid, scores: Sequence[float]) -> ScoreGrid:
    """Return the grid with these scores among its edges.

    Scores outside of the grid are not added; the spec refuses them.
    """
    edges = grid.smooth_edges
    all_edges = np.union1d(edges, scores)
    has_same_ends = all_edges[0] == edges[0] and all_edges[-1] == edges[-1]
    if not has_same_ends or np.isin(scores, grid.edges.numpy()).all():
        return grid
    return ScoreGrid.from_edges(all_edges.tolist())
