"""FederatedModelComparison: two models on the same examples, as a torchmetrics Metric."""

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
"""Quantiles of each model's scores: 256 bins."""


class FederatedModelComparison(CountsMetric):
    """Whether the second of two models is better, from all ranks' or clients' data: each example scored by both.

    ``compute`` returns a :class:`~torchmetrics_fed.comparison.ModelComparison`: both curves and AUROCs, their
    difference with an interval that knows that the data are paired, reclassification at the thresholds.

    Args:
        models: the names of the two.
        thresholds: for each model, the score from which on it calls an example positive. They become edges of the grid.
        confidence: probability that an interval holds what it is of, in the population.
        grid: bins of both models' scores, 256 of each if a name is given.
        normalization: as in :class:`~torchmetrics_fed.FederatedMetric`, and likewise all that follow.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedModelComparison
        >>> metric = FederatedModelComparison(models=("old", "new"), thresholds=(0.5, 0.5))
        >>> target = torch.tensor([0, 0, 1, 1])
        >>> metric.update(torch.tensor([0.1, 0.6, 0.4, 0.9]), torch.tensor([0.1, 0.3, 0.6, 0.9]), target)
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
                "Expected a release that compares two models but this one is of a single model's scores."
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
        self, preds_old: Tensor, preds_new: Tensor, target: Tensor, *, persons: Ids | None = None
    ) -> None:
        """Count a batch of examples with both models' scores. A batch that is refused changes nothing.

        Scores have any floating dtype and shape; ``target`` and ``persons`` are as in :meth:`FederatedMetric.update`.
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
        """Draw ``result``, or what :meth:`compute` returns, and return ``(fig, ax)``."""
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
    if isinstance(models, str) or not all(isinstance(at, int | float) for at in thresholds):
        raise InputError(
            f"Expected two names and two scores but got models={models!r}, thresholds={thresholds!r}."
        )
    scores = tuple(float(threshold) for threshold in thresholds)
    chosen = Spec.build("binary", quantiles=QUANTILES, grid=grid).grid
    edges = chosen.smooth_edges
    wanted = np.union1d(edges, scores)
    ends_stay = wanted[0] == edges[0] and wanted[-1] == edges[-1]
    if ends_stay and not np.isin(scores, chosen.edges.numpy()).all():
        chosen = ScoreGrid.from_edges(wanted.tolist())
    spec = Spec.build(
        "binary",
        quantiles=QUANTILES,
        grid=chosen,
        normalization=normalization,
        ignore_index=ignore_index,
        privacy=privacy,
        secure=secure,
        labels=labels,
    )
    return replace(spec, models=tuple(models), thresholds=scores)
