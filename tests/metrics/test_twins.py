"""The federated twin of each of torchmetrics' metrics has its value, in the shapes of its tester."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sklearn.metrics
import torch
import torchmetrics.classification as tm
from torch import Tensor
from torchmetrics import MeanSquaredError, MetricCollection
from torchmetrics.wrappers import MinMaxMetric

from tests.ranks import RankPool
from torchmetrics_fed import (
    CentralDP,
    FederatedAUROC,
    FederatedConfusionMatrix,
    FederatedScoreAtThreshold,
    InputError,
    ScoreGrid,
    federated,
)
from torchmetrics_fed.functional import Confusion
from torchmetrics_fed.metrics.twins import TWINS, WITHOUT_TWIN

PAGE = Path(__file__).parents[2] / "docs" / "coming_from_torchmetrics.md"

CLASSES = 3
BATCHES = 4
BATCH = 256

ROUNDING = 1e-6
"""torchmetrics computes in float32. Calls at 0.5 are exact: 0.5 is an edge of the grid."""

TOLERANCES = {
    "AUROC": 1e-4,
    "AveragePrecision": 1e-3,
    "EER": 3e-3,  # between two points of the curve in place of the nearest one
    "LogAUC": 3e-3,
    "RecallAtFixedPrecision": 4e-3,  # one example of one class, at 300 of each
    "PrecisionAtFixedRecall": 4e-3,
    "SensitivityAtSpecificity": 4e-3,
    "SpecificityAtSensitivity": 4e-3,
    "CalibrationError": 2e-3,  # the leaf around a boundary moves whole
    "HingeLoss": 1e-4,
}
"""The cost of 4,096 bins, by the name of torchmetrics without its task."""

MINIMA = {
    "RecallAtFixedPrecision": {"min_precision": 0.7},
    "PrecisionAtFixedRecall": {"min_recall": 0.7},
    "SensitivityAtSpecificity": {"min_specificity": 0.7},
    "SpecificityAtSensitivity": {"min_sensitivity": 0.7},
    "FBetaScore": {"beta": 2.0},
}
"""Arguments that torchmetrics requires."""

CURVES = ("ROC", "PrecisionRecallCurve")

POINTS = tuple(name for name in MINIMA if name != "FBetaScore")


def task_of(name: str) -> str:
    return next(task for task in ("Binary", "Multiclass", "Multilabel") if name.startswith(task))


def base_of(name: str) -> str:
    return name.removeprefix(task_of(name))


def arguments_of(name: str) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(MINIMA.get(base_of(name), {}))
    if task_of(name) == "Multiclass":
        arguments["num_classes"] = CLASSES
    if task_of(name) == "Multilabel":
        arguments["num_labels"] = CLASSES
    return arguments


def variants(name: str) -> list[dict[str, Any]]:
    """The averages that torchmetrics has, and other arguments."""
    base = base_of(name)
    options: list[dict[str, Any]] = [{}]
    if base in ("AUROC", "AveragePrecision") and task_of(name) != "Binary":
        options = [{"average": average} for average in (None, "macro", "weighted")]
    elif base == "LogAUC":
        options = [{}, {"fpr_range": (0.01, 0.5)}]
        if task_of(name) != "Binary":
            options.append({"average": "macro"})
    elif base == "EER" and task_of(name) == "Multiclass":
        options = [{"average": average} for average in (None, "micro", "macro")]
    elif base == "CalibrationError":
        options = [{"norm": norm, "n_bins": 8} for norm in ("l1", "l2", "max")]
    elif base == "HingeLoss":
        options = [{"squared": squared} for squared in (False, True)]
    elif task_of(name) == "Multilabel" and base not in (*CURVES, *POINTS, "EER"):
        averages = (None, "micro", "macro", "weighted")
        options = [{"average": average} for average in averages]
        if base in ("ConfusionMatrix", "MatthewsCorrCoef"):
            options = [{}]
    elif task_of(name) == "Binary" and base == "Accuracy":
        options = [{"threshold": threshold} for threshold in (0.25, 0.5)]
    return options


def batches(
    task: str, ignored: int | None = None, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches; every second one has a further dimension, as in torchmetrics' tester."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(BATCHES):
        further = () if number % 2 == 0 else (3,)
        shape: tuple[int, ...] = (BATCH, CLASSES, *further)
        if task == "Binary":
            target = torch.randint(0, 2, (BATCH, *further), generator=generator)
            shape = (BATCH, *further)
            preds = (torch.randn(shape, generator=generator) + 1.5 * target - 0.7).sigmoid()
        elif task == "Multiclass":
            target = torch.randint(0, CLASSES, (BATCH, *further), generator=generator)
            one_hot = torch.nn.functional.one_hot(target, CLASSES).movedim(-1, 1)
            preds = (torch.randn(shape, generator=generator) + 1.5 * one_hot).softmax(1)
        else:
            target = torch.randint(0, 2, shape, generator=generator)
            preds = (torch.randn(shape, generator=generator) + target - 0.5).sigmoid()
        if ignored is not None:
            is_ignored = torch.rand(target.shape, generator=generator) < 0.1
            target = torch.where(is_ignored, ignored, target)
        yield preds, target


def check_equal(name: str, twin: Any, reference: Any, part: float = 1.0) -> None:
    """Values, operating points and matrices are equal, but for the cost of bins.

    It is a number of examples, so it grows where only a ``part`` of them was counted."""
    base = base_of(name)
    if base in CURVES:
        return  # tests of curves compare them point by point
    tolerance = ROUNDING
    if base in TOLERANCES:
        tolerance = TOLERANCES[base] / part
    if isinstance(twin, Confusion):
        assert twin.matrix.dtype == torch.int64
        assert torch.equal(twin.matrix, reference)
        return
    if base in POINTS:
        reference, reference_threshold = reference
        twin, twin_threshold = twin
        torch.testing.assert_close(
            twin_threshold.float(), reference_threshold, rtol=0, atol=0.02 / part
        )
    torch.testing.assert_close(twin.float(), reference, rtol=0, atol=tolerance)


NAMES = [name for name in TWINS if hasattr(tm, name)]
"""The oldest supported torchmetrics has no equal error rate."""

CASES = [(name, options) for name in NAMES for options in variants(name)]


def case_id(case: Any) -> str:
    if isinstance(case, str):
        return case
    return ",".join(f"{key}={value}" for key, value in case.items()) or "default"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ignored", [None, -1])
@pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
def test_a_twin_has_the_value_of_torchmetrics(
    name: str, options: dict[str, Any], ignored: int | None
) -> None:
    reference = getattr(tm, name)(**arguments_of(name), **options, ignore_index=ignored)
    twin = federated(reference)
    for preds, target in batches(task_of(name), ignored):
        twin.update(preds, target)
        reference.update(preds, target)
    check_equal(name, twin.compute(), reference.compute())
    twin.reset()
    first = next(batches(task_of(name), ignored))
    reference.reset()
    check_equal(name, twin(*first), reference(*first), part=1 / 8)


def _on_rank(rank: int, name: str) -> Any:
    twin = federated(getattr(tm, name)(**arguments_of(name)))
    twin.update(*list(batches(task_of(name)))[rank])
    return twin.compute()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if base_of(name) not in CURVES])
def test_ranks_have_the_value_of_all_their_data(name: str, ranks: RankPool) -> None:
    reference = getattr(tm, name)(**arguments_of(name))
    for batch in list(batches(task_of(name)))[: ranks.size]:
        reference.update(*batch)
    for twin in ranks.run(_on_rank, name):
        check_equal(name, twin, reference.compute(), part=5 / 8)


def test_every_class_of_torchmetrics_has_a_twin_or_a_reason() -> None:
    tasks = ("Binary", "Multiclass", "Multilabel")
    classes = {name for name in tm.__all__ if name.startswith(tasks)}
    assert set(TWINS) | set(WITHOUT_TWIN) >= classes
    assert not set(TWINS) & set(WITHOUT_TWIN)


def table_rows(heading: str) -> dict[str, list[str]]:
    """The cells of each row of the page's table with this heading, by the name in the first."""
    rows = {}
    lines = PAGE.read_text().partition(f"| {heading} |")[2].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            break
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first.strip("`")] = cells
    return rows


def test_the_page_names_every_class_of_torchmetrics_with_a_reason_for_every_no() -> None:
    rows = table_rows("torchmetrics | binary")
    tasks = ("Binary", "Multiclass", "Multilabel")
    named = set()
    for base, cells in rows.items():
        here, reason = cells[3:]
        for task, cell in zip(tasks, cells, strict=False):
            name = task + base
            if name in tm.__all__:
                assert cell == ("yes" if name in TWINS else "no")
            if cell:
                named.add(name)
        assert bool(here) == ("yes" in cells)
        assert bool(reason) == ("no" in cells)
    assert named | set(rows) >= set(tm.__all__) - {"Dice"}  # which torchmetrics 1.7 removed
    assert named == {*TWINS, *WITHOUT_TWIN}


def test_the_page_names_every_function_of_scikit_learn_for_classification() -> None:
    rows = table_rows("scikit-learn | here")
    homes = ("sklearn.metrics._classification", "sklearn.metrics._ranking")
    functions = {
        name
        for name in sklearn.metrics.__all__
        if getattr(getattr(sklearn.metrics, name), "__module__", "") in homes
    }
    assert set(rows) >= functions
    assert all(reason for here, reason in rows.values() if here == "no")


# torchmetrics 1.6 copies a tensor in a way that torch warns of
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_a_collection_keeps_names_prefix_postfix_and_makes_one_release(
    scored: tuple[Tensor, Tensor],
) -> None:
    reference = MetricCollection(
        {
            name.lower(): getattr(tm, name)(**arguments_of(name))
            for name in NAMES
            if task_of(name) == "Binary"
        },
        prefix="val_",
        postfix="_all",
    )
    twin = federated(reference, privacy=CentralDP(epsilon=5.0))
    twin.update(*scored)
    values = twin.compute()
    assert list(values) == sorted(f"val_{name.lower()}_all" for name in NAMES if "Binary" in name)
    members: list[Any] = list(twin.values(copy_state=False))
    assert len({bytes(member.release()) for member in members}) == 1
    assert all(member.ledger is members[0].ledger for member in members)
    assert [entry.epsilon for entry in members[0].ledger] == [5.0]
    for name in ("accuracy", "auroc", "f1score"):
        reference.update(*scored)
        expected = reference.compute()[f"val_binary{name}_all"].item()
        assert values[f"val_binary{name}_all"].item() == pytest.approx(expected, abs=0.05)
        reference.reset()


def test_thresholds_become_edges(scored: tuple[Tensor, Tensor]) -> None:
    preds = scored[0].float()
    target = scored[1]
    for thresholds in (11, [0.0, 0.25, 0.5, 1.0], torch.tensor([0.2, 0.3])):
        reference = tm.BinaryROC(thresholds=thresholds)
        twin = federated(reference)
        twin.update(preds, target)
        reference.update(preds, target)
        fpr, tpr, reference_thresholds = reference.compute()
        curve: Any = twin.compute()
        place = torch.isin(curve.thresholds.float(), reference_thresholds) & (curve.thresholds <= 1)
        torch.testing.assert_close(curve.fpr[place].float(), fpr)
        torch.testing.assert_close(curve.tpr[place].float(), tpr)


def test_the_class_of_a_task_and_nested_collections_are_converted() -> None:
    of_task: Any = tm.AUROC(task="multiclass", num_classes=3)
    assert isinstance(federated(of_task), FederatedAUROC)
    nested = MetricCollection({"inner": MetricCollection([tm.BinaryAUROC()], prefix="a_")})
    assert list(federated(nested).keys()) == list(nested.keys())


def test_options_win_and_are_what_torchmetrics_lacks() -> None:
    reference = tm.BinaryROC(thresholds=11)
    grid = ScoreGrid.even(64)
    twin = federated(reference, grid=grid, normalization="sigmoid", groups=["a", "b"])
    assert twin.spec.grid == grid
    assert twin.spec.normalization == "sigmoid"
    assert len(twin.spec.groups) == 2


def test_arguments_of_torchmetrics_are_kept() -> None:
    reference = tm.MultilabelFBetaScore(
        num_labels=3, beta=0.5, threshold=0.25, average="weighted", ignore_index=-1
    )
    twin = federated(reference)
    assert isinstance(twin, FederatedScoreAtThreshold)
    assert (twin.score, twin.beta, twin.threshold) == ("fbeta", 0.5, 0.25)
    assert (twin.average, twin.spec.classes, twin.spec.ignore_index) == ("weighted", 3, -1)


def test_metrics_without_a_twin_are_named_with_their_reasons() -> None:
    reference = MetricCollection(
        {
            "acc": tm.MulticlassAccuracy(num_classes=3),
            "auroc": tm.MulticlassAUROC(num_classes=3),
            "ece": tm.MulticlassCalibrationError(num_classes=3),
        }
    )
    with pytest.raises(InputError) as caught:
        federated(reference)
    text = str(caught.value)
    assert "acc (MulticlassAccuracy): it compares the scores of all classes" in text
    assert "ece (MulticlassCalibrationError): it is that of the top label" in text
    assert "auroc" not in text


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (tm.BinaryAccuracy(multidim_average="samplewise"), "samplewise"),
        (tm.BinaryConfusionMatrix(normalize="true"), "normalize"),
        (tm.BinaryPrecision(zero_division=1), "zero_division"),
        (MinMaxMetric(tm.BinaryAUROC()), "wrapper"),
        (MeanSquaredError(), "not a metric of torchmetrics.classification"),
        (FederatedAUROC(), "federated already"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_arguments_without_a_twin_are_refused(metric: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        federated(metric)


def test_a_class_of_the_users_own_is_not_guessed() -> None:
    class Subclass(tm.BinaryAUROC):
        pass

    with pytest.raises(InputError, match="Subclass"):
        federated(Subclass())


def test_metrics_that_count_differently_share_no_private_release() -> None:
    reference = MetricCollection([tm.BinaryROC(thresholds=11), tm.BinaryAUROC()])
    exact = federated(reference)
    members: list[Any] = list(exact.values(copy_state=False))
    digests = {member.spec.digest for member in members}
    assert len(digests) == 2
    with pytest.raises(InputError, match="grid="):
        federated(reference, privacy=CentralDP(epsilon=1.0))
    federated(reference, privacy=CentralDP(epsilon=1.0), grid="two_sided")


def test_a_twin_of_a_confusion_matrix_has_a_matrix_for_each_label() -> None:
    twin = federated(tm.MultilabelConfusionMatrix(num_labels=3))
    assert isinstance(twin, FederatedConfusionMatrix)
    twin.update(torch.rand(10, 3), torch.randint(0, 2, (10, 3)))
    assert twin.compute().matrix.shape == (3, 2, 2)
