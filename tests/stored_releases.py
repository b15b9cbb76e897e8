"""Stored releases, as plain arrays, with the curves, areas, bands and intervals read from them.

A change of the code that reads releases must not change any reading. The file
``tests/data/stored_releases.npz`` holds 48 binary releases (four score files, four epsilons, three
plans) and eight of other kinds. Nothing in the file depends on the package's bytes or on the names
of its classes: :func:`rebuild` alone makes the objects, and :func:`described` alone takes them
apart.

Members of the file, for a release called ``name``:

- ``name/settings``: JSON: task, classes, grid, privacy, plan, groups, models; for each sum its
  query (branching, weights, fraction, pooled), shares and times; and for each reading its name,
  shape and SHA-256.
- ``name/cells/0``, ``name/edges/0``: the cells of the first sum, and the places of its leaves on
  the grid (none where they are even); then ``1`` for a second sum, and ``prior`` for the prior.
- ``name/values``: the readings, one after the other. A reading of at most 65 numbers is stored
  whole. Of a longer one 65 numbers are stored, at even distances, first and last among them.
- ``array/DIGEST``: edges and thresholds, which many releases share: each array whole, and once.

The digest is of the little-endian float64 bytes, so that it depends on every bit of every number.

Commands:

- ``python -m tests.stored_releases --compare`` prints all differences from the file.
- ``python -m tests.stored_releases --renew PATTERN ...`` reads the same releases again and stores
  the readings whose names match a pattern, for example ``"*.thresholds"``: for changes made on
  purpose.
- ``python -m tests.stored_releases --write`` makes all releases again, with new noise, from the
  score files in the folder that the environment variable ``TORCHMETRICS_FED_SHARED`` names.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import math
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.queries import level_weights
from torchmetrics_fed import (
    CentralDP,
    DistributedDP,
    FederatedMetric,
    FederatedModelComparison,
    FederatedROC,
    LocalDP,
    Privacy,
    Query,
    Release,
    ScoreGrid,
    Spec,
    functional,
    paper,
)
from torchmetrics_fed.comparison import compare_models
from torchmetrics_fed.counting import Table, Tree
from torchmetrics_fed.privacy import Exact
from torchmetrics_fed.release import Sum
from torchmetrics_fed.release.query import LevelWeights
from torchmetrics_fed.simulate import simulate
from torchmetrics_fed.typing import IntervalOf

__all__ = ["Case", "Difference", "compare", "fingerprint", "load", "readings", "rebuild"]

FILE = Path(__file__).parent / "data" / "stored_releases.npz"
"""The stored releases."""

SHARED = "TORCHMETRICS_FED_SHARED"
"""The environment variable that names the folder with score files."""

SCORE_FILES = (
    "adult_LogisticRegression",
    "adult_XGBClassifier",
    "bank_LogisticRegression",
    "bank_XGBClassifier",
)
EPSILONS = (0.1, 0.3, 1.0, 3.0)
PLANS: tuple[Literal["single", "adaptive", "carry_over"], ...] = (
    "single",
    "adaptive",
    "carry_over",
)

KEPT_VALUES = 65
"""Numbers that are stored of a reading. A shorter reading is stored whole."""

APART = ("*.edges", "*.thresholds")
"""Readings that are edges of the grid. They are stored whole, and compared in a table of their own.

Edges are short binary fractions, so that they are equal to the bit on every machine.
"""

CONFIDENCE = 0.95
"""The confidence of all bands and intervals."""

RELATIVE = 1e-9
"""By how much readings may differ on another machine, where sums are rounded otherwise."""

ABSOLUTE = 1e-12
"""The same for numbers that are 0 but for rounding."""

PRIVACY_KINDS: dict[str, Any] = {
    "central": CentralDP,
    "distributed": DistributedDP,
    "local": LocalDP,
}

Numbers: TypeAlias = NDArray[np.float64]
Settings: TypeAlias = dict[str, Any]
Batch: TypeAlias = tuple[Tensor, ...]


@dataclass(frozen=True)
class StoredSum:
    """The sum of the shares of one query."""

    query: Settings
    """Branching, weights, fraction, pooled; for two models also whether the table is joint."""
    edges: NDArray[np.int64] | None
    """The edges of the leaves as places on the grid; None where the leaves are even."""
    cells: NDArray[np.int64]
    shares: int
    times: int


@dataclass(frozen=True)
class Reading:
    """One reading: the digest of all its numbers, and some of the numbers."""

    shape: tuple[int, ...]
    digest: str
    kept: Numbers
    """All numbers, flat, or those at :func:`kept_places`."""

    @property
    def size(self) -> int:
        """How many numbers were read."""
        return math.prod(self.shape)

    @property
    def whole(self) -> bool:
        """Whether all numbers are kept."""
        return len(self.kept) == self.size


@dataclass(frozen=True)
class Case:
    """A stored release, and its readings."""

    name: str
    settings: Settings
    sums: tuple[StoredSum, ...]
    prior: StoredSum | None
    readings: dict[str, Reading]


@dataclass(frozen=True)
class Difference:
    """How one reading differs from the stored one."""

    case: str
    reading: str
    entries: int
    """How many of the compared numbers differ."""
    compared: int
    """How many numbers were compared; all of them where the stored reading is whole."""
    size: int
    places: tuple[int, ...]
    """The first places, of the flat reading, where the numbers differ."""
    largest: float
    """The largest absolute difference; infinite for another shape, and where one number is NaN."""
    close: bool
    """Whether rounding on another machine explains the difference. For edges it never does."""

    def __str__(self) -> str:
        entries = f"{self.entries} of {self.compared} compared"
        if not self.entries:
            entries = f"only between the {self.compared} compared"
        text = f"{self.case:<42} {self.reading:<28} {entries} (size {self.size})"
        text += f", largest {self.largest:.3g}"
        if self.places:
            text += f", at {', '.join(map(str, self.places))}"
        return text


def rebuild(case: Case) -> Release:
    """Return the stored release as an object of the package."""
    settings = case.settings
    layout = settings["grid"]
    if layout["edges"] is None:
        grid = ScoreGrid(
            bins=layout["bins"],
            score_range=(layout["range"][0], layout["range"][1]),
            kind=layout["kind"],
        )
    else:
        grid = ScoreGrid.from_edges(layout["edges"])
    privacy: Privacy = Exact()
    if settings["privacy"] is not None:
        arguments = dict(settings["privacy"])
        kind = PRIVACY_KINDS[arguments.pop("kind")]
        privacy = kind(**arguments)
    spec = Spec(
        task=settings["task"],
        classes=settings["classes"],
        grid=grid,
        privacy=privacy,
        multi_class=settings["multi_class"],
        groups=tuple(settings["groups"]),
        models=tuple(settings["models"]),
        thresholds=tuple(settings["thresholds"]),
    )
    sums = tuple(rebuild_sum(stored, spec) for stored in case.sums)
    prior = None
    if case.prior is not None:
        prior = rebuild_sum(case.prior, spec)
    return Release(sums, prior=prior)


def rebuild_sum(stored: StoredSum, spec: Spec) -> Sum:
    """Return a stored sum as an object of the package."""
    fields = stored.query
    branching = tuple(fields["branching"])
    edges = None
    if stored.edges is not None:
        edges = tuple(stored.edges.tolist())
    if "joint" in fields:
        tree: Tree = Table(branching, edges, joint=fields["joint"])
    else:
        tree = Tree(branching, edges)
    query = Query(
        tree,
        fraction=fields["fraction"],
        weights=tuple(map(LevelWeights.of, fields["weights"])),
        pools_groups=fields["pooled"],
    )
    return Sum(
        spec,
        query,
        torch.from_numpy(stored.cells.copy()),
        shares=stored.shares,
        times=stored.times,
    )


def described(name: str, release: Release, plan: str | None) -> Case:
    """Return a release in plain values, without readings: the inverse of :func:`rebuild`."""
    spec = release.spec
    grid = spec.grid
    privacy = None
    if spec.privacy.charges:
        kinds = {setting: kind for kind, setting in PRIVACY_KINDS.items()}
        arguments = asdict(cast(Any, spec.privacy))
        if arguments["evaluations"] is None:
            del arguments["evaluations"]
        privacy = {"kind": kinds[type(spec.privacy)], **arguments}
    edges = None
    if grid.score_edges is not None:
        edges = list(grid.score_edges)
    settings = {
        "task": spec.task,
        "classes": spec.classes,
        "multi_class": spec.multi_class,
        "grid": {
            "kind": grid.kind,
            "bins": grid.bins,
            "range": list(grid.score_range),
            "edges": edges,
        },
        "privacy": privacy,
        "plan": plan,
        "groups": list(spec.groups),
        "models": list(spec.models),
        "thresholds": list(spec.thresholds),
    }
    prior = None
    if release.prior is not None:
        prior = described_sum(release.prior)
    return Case(
        name=name,
        settings=settings,
        sums=tuple(map(described_sum, release.sums)),
        prior=prior,
        readings={},
    )


def described_sum(total: Sum) -> StoredSum:
    """Return a sum in plain values: the inverse of :func:`rebuild_sum`."""
    tree = total.query.tree
    query: Settings = {
        "branching": list(tree.branching),
        "weights": list(level_weights(total.query)),
        "fraction": total.query.fraction,
        "pooled": total.query.pools_groups,
    }
    if isinstance(tree, Table):
        query["joint"] = tree.joint
    places = None
    if tree.edges is not None:
        places = np.array(tree.edges, dtype=np.int64)
    return StoredSum(
        query=query,
        edges=places,
        cells=total.cells.numpy().copy(),
        shares=total.shares,
        times=total.times,
    )


def readings(release: Release, settings: Settings) -> dict[str, Numbers]:
    """Return all readings of a release by the public functions, in float64, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of large noise: the numbers are compared
        if settings["models"]:
            values = _comparison_readings(release)
        else:
            values = _curve_readings(release)
            if settings["multi_class"] == "ovr":
                values |= _uncertainty_readings(release)
            if settings["classes"] > 1:
                values |= _average_readings(release)
            if settings["groups"]:
                values |= _group_readings(release)
            if settings["plan"] == "paper":
                values |= _quantile_readings(release)
    values["grid.edges"] = release.spec.grid.edges
    return {name: value.numpy().astype("<f8") for name, value in values.items()}


def _curve_readings(release: Release) -> dict[str, Tensor]:
    roc = functional.roc_from_counts(release)
    precision_recall = functional.precision_recall_from_counts(release)
    det = functional.det_from_counts(release)
    calibration = functional.calibration_from_counts(release)
    return {
        "roc.fpr": roc.fpr,
        "roc.tpr": roc.tpr,
        "roc.thresholds": roc.thresholds,
        "precision_recall.precision": precision_recall.precision,
        "precision_recall.recall": precision_recall.recall,
        "precision_recall.thresholds": precision_recall.thresholds,
        "auroc": functional.auroc_from_counts(release),
        "average_precision": functional.average_precision_from_counts(release),
        "equal_error_rate": det.scalars["equal_error_rate"],
        "calibration.expected_calibration_error": calibration.expected_calibration_error,
        "calibration.brier_score": calibration.brier_score,
        "calibration.predicted": calibration.predicted,
        "calibration.observed": calibration.observed,
        "calibration.examples": calibration.examples,
    }


def _uncertainty_readings(release: Release) -> dict[str, Tensor]:
    values = {}
    targets: tuple[IntervalOf, ...] = ("examples", "population")
    for of in targets:
        bands = {
            "roc_band": functional.roc_band(release, CONFIDENCE, of),
            "precision_recall_band": functional.precision_recall_band(release, CONFIDENCE, of),
        }
        for name, band in bands.items():
            values[f"{name}.{of}.x"] = band.x
            values[f"{name}.{of}.low"] = band.low
            values[f"{name}.{of}.high"] = band.high
        intervals = {
            "auroc_interval": functional.auroc_interval(release, CONFIDENCE, of),
            "average_precision_interval": functional.average_precision_interval(
                release, CONFIDENCE, of
            ),
        }
        for name, interval in intervals.items():
            values[f"{name}.{of}.low"] = interval.low
            values[f"{name}.{of}.high"] = interval.high
    return values


def _average_readings(release: Release) -> dict[str, Tensor]:
    micro = functional.roc_from_counts(release, average="micro")
    return {
        "micro.roc.fpr": micro.fpr,
        "micro.roc.tpr": micro.tpr,
        "macro.auroc": functional.auroc_from_counts(release, average="macro"),
        "macro.average_precision": functional.average_precision_from_counts(
            release, average="macro"
        ),
    }


def _group_readings(release: Release) -> dict[str, Tensor]:
    values = {}
    for name, part in release.by_group.items():
        roc = functional.roc_from_counts(part)
        values[f"group.{name}.roc.fpr"] = roc.fpr
        values[f"group.{name}.roc.tpr"] = roc.tpr
        values[f"group.{name}.auroc"] = functional.auroc_from_counts(part)
    gaps = functional.group_gaps(release, confidence=CONFIDENCE)
    for name, rate in gaps.rates.items():
        values[f"group_rates.{name}"] = torch.stack(tuple(rate))
    for name, gap in gaps.largest.items():
        values[f"group_gaps.{name}"] = torch.stack(tuple(gap))
    return values


def _quantile_readings(release: Release) -> dict[str, Tensor]:
    curve = functional.roc_from_counts(release, reconstruction=paper.Quantiles(1024))
    return {
        "quantile.roc.fpr": curve.fpr,
        "quantile.roc.tpr": curve.tpr,
        "quantile.roc.scores": curve.thresholds,
        "quantile.auroc": functional.auroc_from_curve(curve),
    }


def _comparison_readings(release: Release) -> dict[str, Tensor]:
    comparison = compare_models(release, CONFIDENCE)
    values = dict(comparison.scalars)
    for name, curve in zip(("first", "second"), comparison.curves, strict=True):
        values[f"{name}.roc.fpr"] = curve.fpr
        values[f"{name}.roc.tpr"] = curve.tpr
        values[f"{name}.roc.thresholds"] = curve.thresholds
    values["reclassified"] = comparison.reclassified
    values["net_interval"] = torch.stack(tuple(comparison.net_interval))
    values["mcnemar"] = comparison.mcnemar
    return values


def is_matched(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a reading's name matches one of the patterns."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def is_apart(name: str) -> bool:
    """Return whether a reading is edges of the grid."""
    return is_matched(name, APART)


def digest_of(values: Numbers) -> str:
    """Return the SHA-256 of the little-endian float64 bytes."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f8").tobytes()).hexdigest()


def kept_places(size: int) -> NDArray[np.int64]:
    """Return the places of the numbers that are stored of a reading of this size."""
    if size <= KEPT_VALUES:
        return np.arange(size)
    return np.arange(KEPT_VALUES) * (size - 1) // (KEPT_VALUES - 1)


def reading_of(name: str, values: Numbers) -> Reading:
    """Return a reading as it is stored."""
    flat = values.reshape(-1)
    if not is_apart(name):
        flat = flat[kept_places(len(flat))]
    return Reading(values.shape, digest_of(values), flat)


def compare(case: Case, values: Mapping[str, Numbers]) -> list[Difference]:
    """Return which readings differ from the stored ones by at least a bit, in the stored order."""
    differences = []
    for name, stored in case.readings.items():
        if name not in values or values[name].shape != stored.shape:
            differences.append(_another_shape(case, name, stored.size))
        elif digest_of(values[name]) != stored.digest:
            differences.append(_difference(case, name, values[name]))
    added = sorted(values.keys() - case.readings.keys())
    differences += [_another_shape(case, name, values[name].size) for name in added]
    return differences


def _another_shape(case: Case, name: str, size: int) -> Difference:
    return Difference(
        case=case.name,
        reading=name,
        entries=size,
        compared=size,
        size=size,
        places=(),
        largest=math.inf,
        close=False,
    )


def _difference(case: Case, name: str, values: Numbers) -> Difference:
    stored = case.readings[name]
    places = np.arange(stored.size)
    if not stored.whole:
        places = kept_places(stored.size)
    numbers = values.reshape(-1)[places]
    differs = numbers.view("<u8") != stored.kept.view("<u8")
    distances = np.abs(numbers - stored.kept)[differs]
    close = np.isclose(numbers, stored.kept, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    return Difference(
        case=case.name,
        reading=name,
        entries=int(differs.sum()),
        compared=len(places),
        size=stored.size,
        places=tuple(places[differs][:8].tolist()),
        largest=float(np.nan_to_num(distances, nan=math.inf).max(initial=0.0)),
        close=bool(close.all()) and not is_apart(name),
    )


def fingerprint() -> dict[str, str]:
    """Return libraries, processor and its instructions: they decide how floats are rounded."""
    try:
        core: Any = import_module("numpy._core._multiarray_umath")
    except ModuleNotFoundError:  # numpy 1
        core = import_module("numpy.core._multiarray_umath")
    features = sorted(name for name, is_used in core.__cpu_features__.items() if is_used)
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "numpy_instructions": " ".join(features),
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _processor() -> str:
    """Return the model of the processor where Linux names it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [line for line in text.splitlines() if line.startswith("model name")]
    if not names:
        return platform.processor()
    return names[0].partition(":")[2].strip()


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Return the names of the stored releases, in the order in which they were made."""
    with np.load(FILE) as stored:
        return tuple(
            member.removesuffix("/settings")
            for member in stored.files
            if member.endswith("/settings")
        )


def recorded_fingerprint() -> dict[str, str]:
    """Return the fingerprint of the machine that made the stored readings."""
    with np.load(FILE) as stored:
        return dict(json.loads(str(stored["fingerprint"])))


def load(only: Sequence[str] | None = None) -> dict[str, Case]:
    """Return the stored releases by name, all of them or ``only`` those."""
    with np.load(FILE) as stored:
        return {name: _loaded(stored, name) for name in only or names()}


def _loaded(stored: Mapping[str, Any], name: str) -> Case:
    settings = json.loads(str(stored[f"{name}/settings"]))
    sums = [
        _loaded_sum(stored, name, str(place), fields)
        for place, fields in enumerate(settings.pop("sums"))
    ]
    prior = None
    prior_fields = settings.pop("prior")
    if prior_fields is not None:
        prior = _loaded_sum(stored, name, "prior", prior_fields)
    values = stored[f"{name}/values"]
    read = {}
    start = 0
    for reading, fields in settings.pop("readings").items():
        shape = tuple(fields["shape"])
        if is_apart(reading):
            numbers = stored[f"array/{fields['sha256']}"]
        else:
            end = start + min(math.prod(shape), KEPT_VALUES)
            numbers = values[start:end]
            start = end
        read[reading] = Reading(shape, fields["sha256"], numbers)
    return Case(name=name, settings=settings, sums=tuple(sums), prior=prior, readings=read)


def _loaded_sum(stored: Mapping[str, Any], name: str, place: str, fields: Settings) -> StoredSum:
    edges = None
    if fields.pop("placed"):
        edges = stored[f"{name}/edges/{place}"].astype(np.int64)
    return StoredSum(
        query=fields["query"],
        edges=edges,
        cells=stored[f"{name}/cells/{place}"],
        shares=fields["shares"],
        times=fields["times"],
    )


def save(cases: Sequence[Case]) -> None:
    """Write the file: the cases with their readings."""
    members: dict[str, Any] = {"fingerprint": np.array(json.dumps(fingerprint()))}
    for case in cases:
        members |= _members(case)
        for name, reading in case.readings.items():
            if is_apart(name):
                members[f"array/{reading.digest}"] = reading.kept
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **members)


def _members(case: Case) -> dict[str, Any]:
    parts = {str(place): part for place, part in enumerate(case.sums)}
    prior = None
    if case.prior is not None:
        prior = _sum_fields(case.prior)
        parts["prior"] = case.prior
    settings = case.settings | {
        "sums": [_sum_fields(part) for part in case.sums],
        "prior": prior,
        "readings": {
            name: {"shape": reading.shape, "sha256": reading.digest}
            for name, reading in case.readings.items()
        },
    }
    values = [reading.kept for name, reading in case.readings.items() if not is_apart(name)]
    members = {
        f"{case.name}/settings": np.array(json.dumps(settings)),
        f"{case.name}/values": np.concatenate(values),
    }
    for place, part in parts.items():
        members[f"{case.name}/cells/{place}"] = part.cells
        if part.edges is not None:
            members[f"{case.name}/edges/{place}"] = part.edges.astype(np.int32)
    return members


def _sum_fields(part: StoredSum) -> Settings:
    return {
        "query": part.query,
        "placed": part.edges is not None,
        "shares": part.shares,
        "times": part.times,
    }


def scores_of(file: str) -> Batch:
    """Return the scores and labels of a score file."""
    folder = os.environ.get(SHARED)
    if not folder:
        raise SystemExit(f"Set {SHARED} to a folder with data/scores to make releases.")
    with np.load(Path(folder, "data", "scores", f"{file}.npz")) as stored:
        return torch.from_numpy(stored["y_score"]), torch.from_numpy(stored["y_true"]).long()


def class_scores(classes: int, examples: int) -> Batch:
    """Return the scores of a fair classifier of several classes, and the classes."""
    generator = torch.Generator().manual_seed(classes)
    target = torch.randint(0, classes, (examples,), generator=generator)
    logits = 1.5 * torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(examples), target] += 2.5
    return logits.softmax(1), target


def released(metric: FederatedMetric, *batch: Tensor) -> Release:
    """Return the release of one batch."""
    metric.reset()
    metric.update(*batch)
    return metric.release()


def carried_over(epsilon: float, batch: Batch) -> Release:
    """Return the release after an adaptive one of the same scores, which it carries."""
    metric = FederatedROC(privacy=CentralDP(epsilon), plan="carry_over")
    released(metric, *batch)
    release = released(metric, *batch)
    assert release.prior is not None
    return release


def binary_releases() -> Iterator[Case]:
    """Make the 48 releases of score files."""
    for file in SCORE_FILES:
        batch = scores_of(file)
        for epsilon in EPSILONS:
            for plan in PLANS:
                if plan == "carry_over":
                    release = carried_over(epsilon, batch)
                else:
                    metric = FederatedROC(privacy=CentralDP(epsilon), plan=plan)
                    release = released(metric, *batch)
                yield described(f"{file}_{epsilon:g}_{plan}", release, plan)


def other_releases() -> Iterator[Case]:
    """Make a release of each other kind."""
    adult = scores_of("adult_LogisticRegression")
    trees = scores_of("adult_XGBClassifier")
    bank = scores_of("bank_LogisticRegression")
    assert torch.equal(adult[1], trees[1])

    metric: FederatedMetric = FederatedROC(
        "multiclass", num_classes=10, privacy=CentralDP(3.0), plan="adaptive"
    )
    release = released(metric, *class_scores(classes=10, examples=20_000))
    yield described("ten_classes", release, "adaptive")

    metric = FederatedROC(
        "multiclass", num_classes=4, multi_class="ovo", privacy=CentralDP(3.0), plan="single"
    )
    release = released(metric, *class_scores(classes=4, examples=20_000))
    yield described("one_against_one", release, "single")

    metric = FederatedROC(groups=("a", "b", "c"), privacy=CentralDP(1.0), plan="adaptive")
    release = released(metric, *bank, torch.arange(len(bank[0])) % 7 % 3)
    yield described("groups", release, "adaptive")

    halves = [(adult[0][start::2], adult[1][start::2]) for start in range(2)]
    local = FederatedROC(privacy=LocalDP(1.0), plan="adaptive")
    yield described("two_clients_local", simulate(halves, local).release, "adaptive")

    tenths = [(bank[0][start::10], bank[1][start::10]) for start in range(10)]
    distributed = FederatedROC(privacy=DistributedDP(1.0, min_clients=8), plan="single")
    yield described("ten_clients_distributed", simulate(tenths, distributed).release, "single")

    metric = FederatedROC(grid="even", privacy=CentralDP(1.0), plan="paper")
    yield described("paper", released(metric, *adult), "paper")

    yield described("exact", released(FederatedROC(), *bank), None)

    comparison = FederatedModelComparison(privacy=CentralDP(3.0), plan="adaptive")
    comparison.update(adult[0], trees[0], adult[1])
    yield described("two_models", comparison.release(), "adaptive")


def read_again(case: Case, patterns: Sequence[str]) -> Case:
    """Return the case with new readings in place of those whose names match a pattern."""
    values = readings(rebuild(case), case.settings)
    result = {}
    for name in dict.fromkeys([*case.readings, *values]):
        if not is_matched(name, patterns):
            if name in case.readings:
                result[name] = case.readings[name]
        elif name in values:
            result[name] = reading_of(name, values[name])
    return replace(case, readings=result)


def table_of(differences: Sequence[Difference]) -> Iterator[str]:
    """Return the lines of a report: every difference, and a summary for each reading."""
    yield from map(str, differences)
    for name in sorted({difference.reading for difference in differences}):
        same_name = [difference for difference in differences if difference.reading == name]
        largest = max(difference.largest for difference in same_name)
        entries = max(difference.entries for difference in same_name)
        yield (
            f"{name}: differs in {len(same_name)} releases, in up to {entries} of the entries "
            f"compared, largest {largest:.3g}"
        )


def report() -> int:
    """Print all differences from the file, edges apart, and return their number."""
    machine = fingerprint()
    lines = [
        f"another {name}: {machine[name]}, recorded with {value}"
        for name, value in recorded_fingerprint().items()
        if machine[name] != value
    ]
    differences: list[Difference] = []
    for case in load().values():
        differences += compare(case, readings(rebuild(case), case.settings))
    parts = {
        "Values": [part for part in differences if not is_apart(part.reading)],
        "Edges and thresholds": [part for part in differences if is_apart(part.reading)],
    }
    for title, part in parts.items():
        lines.append(f"{title}: {len(part)} readings of {len(names())} releases differ.")
        lines += table_of(part)
    sys.stdout.write("\n".join(lines) + "\n")
    return len(differences)


def write() -> None:
    """Make all releases, read them, and write the file."""
    cases = [*binary_releases(), *other_releases()]
    save([read_again(case, ["*"]) for case in cases])


def renew(patterns: Sequence[str]) -> None:
    """Read the stored releases again, and store the readings whose names match a pattern."""
    if fingerprint() != recorded_fingerprint() and "*" not in patterns:
        raise SystemExit(
            "Cannot renew some readings: the others were recorded on another machine, and the file "
            "names one machine. Renew all readings with '*'."
        )
    save([read_again(case, patterns) for case in load().values()])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code of ``--compare`` is 1 if there is a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.stored_releases")
    command = parser.add_mutually_exclusive_group(required=True)
    command.add_argument("--compare", action="store_true", help="print all differences")
    command.add_argument("--renew", nargs="+", metavar="PATTERN", help="store new readings")
    command.add_argument("--write", action="store_true", help="make all releases again")
    options = parser.parse_args(arguments)
    if options.compare:
        return int(report() > 0)
    if options.write:
        write()
    else:
        renew(options.renew)
    return 0


if __name__ == "__main__":
    sys.exit(main())
