"""A logged name is one metric's: made so where that is natural, else an error before anything is counted."""

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
    (found,) = trainer(folder, *callbacks).validate(module, loader(1), verbose=False)
    return dict(found)


def refused(folder: Path, module: Scorer, *callbacks: FederatedEvaluation, match: str) -> None:
    """An error at the start of fit, validate and test, before a step."""
    held = [metric for metric in module.modules() if isinstance(metric, FederatedMetric)]
    runner = trainer(folder, *callbacks, num_sanity_val_steps=0)
    with pytest.raises(InputError, match=match):
        runner.fit(module, loader(0), loader(1))
    assert runner.global_step == 0
    for evaluate in (runner.validate, runner.test):
        with pytest.raises(InputError, match=match):
            evaluate(module, loader(1), verbose=False)
    assert not any(metric.counts.any() for metric in held)


def test_a_curves_scalar_gives_way_to_the_metric_of_that_name(tmp_path: Path) -> None:
    module = Scorer(MetricCollection({"roc": FederatedROC(), "auroc": FederatedAUROC(max_fpr=0.1)}))
    found = logged(tmp_path, module, FederatedEvaluation("metrics"))
    assert found == {"val_auroc": area(0.1), "val_roc_auroc": area()}


def test_two_curves_of_one_kind_have_their_own_names(tmp_path: Path) -> None:
    several: dict[str, Any] = {"fine": FederatedROC(), "coarse": FederatedROC(quantiles=4)}
    module = Scorer(MetricCollection(several | {"pr": FederatedPrecisionRecallCurve()}))
    found = logged(tmp_path, module, FederatedEvaluation("metrics"))
    assert set(found) == {"val_fine_auroc", "val_coarse_auroc", "val_average_precision"}
    assert found["val_fine_auroc"] == area() != found["val_coarse_auroc"]


def test_names_without_need_stay_short(tmp_path: Path) -> None:
    module = Scorer(federated_collection(metrics=["roc", "precision_recall_curve", "calibration"]))
    found = logged(tmp_path, module, FederatedEvaluation("metrics"))
    scalars = {"auroc", "average_precision", "expected_calibration_error", "brier_score"}
    assert set(found) == {f"val_{name}" for name in scalars}


def test_names_that_collide_all_the_same_are_refused(tmp_path: Path) -> None:
    both: dict[str, Any] = {
        "roc": FederatedROC(),
        "auroc": FederatedAUROC(),
        "roc_auroc": FederatedAUROC(max_fpr=0.1),
    }
    expected = (
        r"'roc' of `Scorer\.metrics`.*'roc_auroc' of `Scorer\.metrics`.*_roc_auroc'.*another name"
    )
    reverse = (
        r"'roc_auroc' of `Scorer\.metrics`.*'roc' of `Scorer\.metrics`.*_roc_auroc'.*another name"
    )
    module = Scorer(MetricCollection(both))
    refused(tmp_path, module, FederatedEvaluation("metrics"), match=f"{expected}|{reverse}")


def test_numbers_of_classes_are_names_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": "multiclass", "num_classes": 3, "average": None}
    both: dict[str, Any] = {
        "auroc": FederatedAUROC(**options),
        "auroc_1": FederatedAUROC(max_fpr=0.1, **options),
    }
    refused(
        tmp_path,
        Scorer(MetricCollection(both)),
        FederatedEvaluation("metrics"),
        match="'(val|test)_auroc_1'",
    )


def test_two_callbacks_with_other_attributes_live_together(tmp_path: Path) -> None:
    module = Scorer(FederatedROC(), calibration=FederatedCalibration())
    found = logged(
        tmp_path, module, FederatedEvaluation("metrics"), FederatedEvaluation("calibration")
    )
    assert set(found) == {"val_auroc", "val_expected_calibration_error", "val_brier_score"}


def test_two_callbacks_with_other_prefixes_read_one_release(tmp_path: Path) -> None:
    ledger = PrivacyLedger()
    module = Scorer(FederatedROC(privacy=CentralDP(1.0), ledger=ledger))
    found = logged(
        tmp_path, module, FederatedEvaluation("metrics"), FederatedEvaluation("metrics", "again_")
    )
    assert found["val_auroc"] == found["again_auroc"]
    assert len(ledger) == 1


def test_two_callbacks_with_one_name_are_refused(tmp_path: Path) -> None:
    module = Scorer(FederatedROC(), auroc=FederatedAUROC(max_fpr=0.1))
    pair = FederatedEvaluation("metrics"), FederatedEvaluation("auroc")
    refused(
        tmp_path,
        module,
        *pair,
        match=r"`Scorer\.metrics` and `Scorer\.auroc` for '(val|test)_auroc'.*prefix",
    )
    twins = FederatedEvaluation("metrics"), FederatedEvaluation("metrics")
    refused(tmp_path, module, *twins, match=r"for '(val|test)_auroc'.*prefix")


def test_a_callback_that_resets_beside_one_that_keeps_is_refused(tmp_path: Path) -> None:
    pair = FederatedEvaluation("metrics"), FederatedEvaluation("metrics", federated=True)
    refused(tmp_path, Scorer(FederatedROC()), *pair, match="federated=True")
