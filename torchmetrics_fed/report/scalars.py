"""The numbers of a release that trainers log."""

from __future__ import annotations

from torchmetrics_fed.comparison import compare_models
from torchmetrics_fed.metrics import FederatedAUROC, FederatedAveragePrecision, FederatedMetric
from torchmetrics_fed.release import Release


def release_scalars(release: Release) -> dict[str, float]:
    """Return AUROC and average precision by name, means over classes if there are several.

    One-vs-one counts have an AUROC alone. A comparison of two models has its own scalars. Where
    noise leaves an interval wider than one half, its ends follow as ``auroc_low`` and
    ``auroc_high``.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.report.scalars import release_scalars
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> release_scalars(metric.release())["auroc"]
        0.75
    """
    if release.spec.models:
        scalars = compare_models(release).scalars
        return {name: float(value) for name, value in scalars.items()}
    kinds: list[type[FederatedMetric]] = [FederatedAUROC]
    if release.spec.multi_class != "ovo":
        kinds.append(FederatedAveragePrecision)
    numbers = {}
    for kind in kinds:
        metric = kind.from_release(release)
        name = kind.definition.name
        numbers[name] = float(metric.compute())
        for interval in metric.shown_intervals().values():
            numbers[f"{name}_low"] = float(interval.low)
            numbers[f"{name}_high"] = float(interval.high)
    return numbers
