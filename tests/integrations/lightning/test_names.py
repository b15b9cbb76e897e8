"""A logged name belongs to one metric; a name that would not is refused before a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torchmetrics import MetricCollection

from tests.integrations.lightning_scores import QUIET, Scorer, loader, scores, trainer
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedCalibration,
    FederatedMetric,
    FederatedPrecisionRecallCurve,
    FederatedROC,
    InputError,
    PrivacyLedger,
    federated_collection,
)
from torchmetrics_fed.integrations.lightning import FederatedEvaluation

pytestmark = QUIET


def area(max_fpr: float | None = None) -> float:
    metric = FederatedAUROC(max_fpr=max_fpr)
    metric.update(*scores(1))
    return float(metric.compute().float())


def logged(folder: Path, module: Scorer, *callbacks: FederatedEvaluation) -> dict[str, float]:
    """Return the numbers of one validation."""
    (numbers,) = trainer(folder, *callbacks).validate(module, loader(1), verbose=False)
    return dict(numbers)


def check_refused(
    folder: Path, module: Scorer, *callbacks: FederatedEvaluation, match: str
) -> None:
    """Check that fit, validate and test raise at their start, before a step."""
    metrics = [metric for metric in module.modules() if isinstance(metric, FederatedMetric)]
    runner = trainer(folder, *callbacks, num_sanity_val_steps=0)
    with pytest.raises(InputError, match=match):
        runner.fit(module, loader(0), loader(1))
    assert runner.global_step == 0
    for evaluate in (runner.validate, runner.test):
        with pytest.raises(InputError, match=match):
            evaluate(module, loader(1), verbose=False)
    assert not any(metric.counts.any() for metric in metrics)


def test_a_curves_scalar_gives_way_to_the_metric_of_that_name(tmp_path: Path) -> None:
    metrics: dict[str, Any] = {
        "roc": FederatedROC(),
        "auroc": FederatedAUROC(max_fpr=0.1),
    }
    module = Scorer(MetricCollection(metrics))
    numbers = logged(tmp_path, module, FederatedEvaluation("metrics"))
    assert numbers == {"val_auroc": area(0.1), "val_roc_auroc": area()}


def test_two_curves_of_one_kind_have_their_own_names(tmp_path: Path) -> None:
    metrics: dict[str, Any] = {
        "fine": FederatedROC(),
        "coarse": FederatedROC(quantiles=4),
        "pr": FederatedPrecisionRecallCurve(),
    }
    module = Scorer(MetricCollection(metrics))
    numbers = logged(tmp_path, module, FederatedEvaluation("metrics"))
    assert set(numbers) == {"val_fine_auroc", "val_coarse_auroc", "val_average_precision"}
    assert numbers["val_fine_auroc"] == area() != numbers["val_coarse_auroc"]


def test_names_without_need_stay_short(tmp_path: Path) -> None:
    names = ["roc", "precision_recall_curve", "calibration"]
    module = Scorer(federated_collection(metrics=names))
    numbers = logged(tmp_path, module, FederatedEvaluation("metrics"))
    scalars = {"auroc", "average_precision", "expected_calibration_error", "brier_score"}
    assert set(numbers) == {f"val_{name}" for name in scalars}


def test_names_that_collide_all_the_same_are_refused(tmp_path: Path) -> None:
    metrics: dict[str, Any] = {
        "roc": FederatedROC(),
        "auroc": FederatedAUROC(),
        "roc_auroc": FederatedAUROC(max_fpr=0.1),
    }
    module = Scorer(MetricCollection(metrics))
    roc = r"'roc' of `Scorer\.metrics`"
    area = r"'roc_auroc' of `Scorer\.metrics`"
    match = f"({roc}.*{area}|{area}.*{roc}).*_roc_auroc'.*another name"
    check_refused(tmp_path, module, FederatedEvaluation("metrics"), match=match)


def test_numbers_of_classes_are_names_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": "multiclass", "num_classes": 3, "average": None}
    metrics: dict[str, Any] = {
        "auroc": FederatedAUROC(**options),
        "auroc_1": FederatedAUROC(max_fpr=0.1, **options),
    }
    module = Scorer(MetricCollection(metrics))
    match = "'(val|test)_auroc_1'"
    check_refused(tmp_path, module, FederatedEvaluation("metrics"), match=match)


def test_two_callbacks_with_different_attributes_live_together(tmp_path: Path) -> None:
    module = Scorer(FederatedROC(), calibration=FederatedCalibration())
    callbacks = [FederatedEvaluation("metrics"), FederatedEvaluation("calibration")]
    numbers = logged(tmp_path, module, *callbacks)
    assert set(numbers) == {"val_auroc", "val_expected_calibration_error", "val_brier_score"}


def test_two_callbacks_with_different_prefixes_read_one_release(tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    module = Scorer(FederatedROC(privacy=CentralDP(1.0), ledger=ledger))
    callbacks = [
        FederatedEvaluation("metrics"),
        FederatedEvaluation("metrics", "again_"),
    ]
    numbers = logged(tmp_path, module, *callbacks)
    assert numbers["val_auroc"] == numbers["again_auroc"]
    assert len(ledger) == 1


def test_two_callbacks_with_one_name_are_refused(tmp_path: Path) -> None:
    module = Scorer(FederatedROC(), auroc=FederatedAUROC(max_fpr=0.1))
    pair = [FederatedEvaluation("metrics"), FederatedEvaluation("auroc")]
    match = r"`Scorer\.metrics` and `Scorer\.auroc` for '(val|test)_auroc'.*prefix"
    check_refused(tmp_path, module, *pair, match=match)
    twins = [FederatedEvaluation("metrics"), FederatedEvaluation("metrics")]
    check_refused(tmp_path, module, *twins, match=r"for '(val|test)_auroc'.*prefix")


def test_a_callback_that_resets_beside_one_that_keeps_is_refused(tmp_path: Path) -> None:
    pair = [
        FederatedEvaluation("metrics"),
        FederatedEvaluation("metrics", federated=True),
    ]
    check_refused(tmp_path, Scorer(FederatedROC()), *pair, match="federated=True")
