"""How far one has to walk to follow the code: the files of the package that a call goes through.

    python -m benchmarks.walk

A profiler notes every call inside the package, in four walks: one score by hand, from the metric's
constructor to its curve; a later ``update``; a private release over ranks; and a Flower client's
private round, from its first message to its last reply. For each walk:

- files: the distinct files of the package whose functions are called, and how many of each package;
- package switches: calls, and returns from calls, that lead from one package to another;
- object switches: calls from a method of an object to a method of the same object that stands in
  another file.

Then the classes of ``FederatedROC`` that are ours, and those of them with exactly one subclass: one
class in two files. Properties and comprehensions count as calls. To measure another tree by the
same definition, put it first on the path: ``PYTHONPATH=OTHER_TREE python benchmarks/walk.py``.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import torchmetrics_fed
from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger

PACKAGE = Path(torchmetrics_fed.__file__).parent


class Walk:
    """The files and switches of the calls that are made inside :meth:`noted`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.package_switches = 0
        self.object_switches = 0
        self._package = ""

    @contextmanager
    def noted(self) -> Any:
        """Note every call inside."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        reader_at = frame if event == "call" else frame.f_back
        path = _path(reader_at)
        if not path:
            return
        self.files.add(path)
        package = Path(path).relative_to(PACKAGE).parts[0]
        if self._package and package != self._package:
            self.package_switches += 1
        self._package = package
        if event == "call":
            caller_path = _path(frame.f_back)
            caller_self = None if frame.f_back is None else frame.f_back.f_locals.get("self")
            is_same_object = caller_self is not None and frame.f_locals.get("self") is caller_self
            if is_same_object and caller_path and caller_path != path:
                self.object_switches += 1

    def __str__(self) -> str:
        return (
            f"{len(self.files)} files, {self.package_switches} package switches, "
            f"{self.object_switches} object switches"
        )

    @property
    def by_package(self) -> str:
        """The number of files in each package, the largest first."""
        packages = Counter(Path(path).relative_to(PACKAGE).parts[0] for path in self.files)
        return ", ".join(f"{package} {files}" for package, files in packages.most_common())


def _path(frame: FrameType | None) -> str:
    """The file of a frame inside the package; empty for any other."""
    path = "" if frame is None else frame.f_code.co_filename
    return path if path.startswith(str(PACKAGE)) else ""


def one_score() -> Walk:
    """One score from the constructor to the curve."""

    def call() -> None:
        metric = FederatedROC()
        metric.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
        metric.compute()

    call()  # tables and caches are made once
    walk = Walk()
    with walk.noted():
        call()
    return walk


def later_update() -> Walk:
    """An update after the first."""
    metric = FederatedROC()
    for _ in range(3):
        metric.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
    walk = Walk()
    with walk.noted():
        metric.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
    return walk


def over_ranks() -> Walk:
    """A private release over the ranks of a process group; one rank is enough to see the way."""
    privacy = DistributedDP(1.0, min_clients=1, max_colluding=0)

    def metric() -> FederatedROC:
        updated = FederatedROC(privacy=privacy)
        updated.update(torch.rand(1000), torch.randint(0, 2, (1000,)))
        return updated

    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            metric().compute()
            updated = metric()
            with walk.noted():
                updated.compute()
        finally:
            dist.destroy_process_group()
    return walk


def flower_round() -> Walk:
    """A Flower client's round of two queries through secure aggregation, its evaluation
    included."""
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from tests.integrations.flower_grid import Client, LocalGrid
    from torchmetrics_fed.integrations.flower import FederatedEvaluationMixin

    class Curves(FederatedEvaluationMixin, FedAvg):
        pass

    def metric() -> FederatedROC:
        privacy = DistributedDP(1.0, min_clients=3)
        return FederatedROC(quantiles=64, privacy=privacy, ledger=PrivacyLedger(budget=9.0))

    walk = Walk()

    def walked(make_app: Callable[[], Any]) -> Callable[[], Any]:
        def app() -> Any:
            client_app = make_app()

            def answer(message: Any, context: Any) -> Any:
                with walk.noted():
                    return client_app(message, context)

            return answer

        return app

    with tempfile.TemporaryDirectory() as folder:
        apps: dict[int, Callable[[], Any]] = {}
        for node in range(11, 15):
            preds = torch.rand(200)
            target = torch.randint(0, 2, (200,))
            apps[node] = Client(metric, preds, target, folder=Path(folder)).app
        apps[11] = walked(apps[11])
        arrays = ArrayRecord({"weight": Array(torch.ones(1).numpy())})
        strategy: Any = Curves(metric=metric(), min_available_nodes=4)
        strategy.start(LocalGrid(apps), arrays, num_rounds=1, timeout=1.0)
    assert strategy.releases, "the round has no release"
    return walk


def main() -> None:
    """Print all walks."""
    warnings.simplefilter("ignore")
    walks = {
        "one score": one_score,
        "a later update": later_update,
        "a private compute over ranks": over_ranks,
        "a Flower client's round": flower_round,
    }
    measured = {name: measure() for name, measure in walks.items()}
    for name, walk in measured.items():
        print(f"{name}: {walk}")
        print(f"    {walk.by_package}")
    classes = [
        kind for kind in FederatedROC.__mro__ if kind.__module__.startswith("torchmetrics_fed")
    ]
    only_children = [kind.__name__ for kind in classes if len(kind.__subclasses__()) == 1]
    names = ", ".join(kind.__name__ for kind in classes)
    print(
        f"{len(classes)} own classes of FederatedROC ({names}); with one subclass: {only_children}"
    )


if __name__ == "__main__":
    main()
