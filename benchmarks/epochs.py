"""AUROC of every epoch of a training on one budget: errors per release, and of the trend.

OMP_NUM_THREADS=1 python -m benchmarks.epochs
python -m benchmarks.epochs --figure docs/images/every_epoch.png
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from torchmetrics_fed import CentralDP, FederatedAUROC, Privacy
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.functional.trend import deviation_of, smoothed
from torchmetrics_fed.typing import Floats

EPSILON = 3.0
"""Epsilon of all epochs together."""
EPOCHS = 50
PREVALENCE = 0.3
"""Part of the examples that are positive."""
FIRST_AUROC = 0.65
LAST_AUROC = 0.9
EPOCHS_TO_LEARN = 8
"""Epochs in which the distance to the last AUROC falls by a factor of e."""
SAME_NOISE = 0.95
"""Correlation of an example's score in two epochs, given its class."""

SETTINGS: dict[str, Privacy] = {
    "epsilons are added": CentralDP(EPSILON / EPOCHS),
    "for_run": CentralDP.for_run(EPSILON, evaluations=EPOCHS),
}
PLANS: tuple[PlanName, ...] = ("adaptive", "carry_over")


class Training(NamedTuple):
    """The values of all epochs of one training."""

    exact: Floats
    private: Floats
    deviations: Floats
    """Standard deviations that the intervals of the releases allow for."""


class Errors(NamedTuple):
    """The errors of one training, as root mean squares over its epochs."""

    release: float
    trend: float
    live: float
    """Of the trend's last epoch, at each epoch, from the releases until then."""
    coverage: float
    """Part of the epochs whose exact value is in the interval of the trend."""


def epochs(examples: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scores and labels of one validation set, after each epoch of a training."""
    generator = torch.Generator().manual_seed(seed)
    target = (torch.rand(examples, generator=generator) < PREVALENCE).long()
    lasting = torch.randn(examples, generator=generator, dtype=torch.float64)
    for epoch in range(EPOCHS):
        gap = (LAST_AUROC - FIRST_AUROC) * math.exp(-epoch / EPOCHS_TO_LEARN)
        distance = math.sqrt(2) * float(norm.ppf(LAST_AUROC - gap))
        fresh = torch.randn(examples, generator=generator, dtype=torch.float64)
        noise = SAME_NOISE * lasting + math.sqrt(1 - SAME_NOISE**2) * fresh
        yield (2 * noise + distance * (2 * target - 1)).sigmoid(), target


def train(privacy: Privacy, plan: PlanName, examples: int, seed: int) -> Training:
    """Return exact and private AUROC of every epoch."""
    private = FederatedAUROC(privacy=privacy, plan=plan)
    exact = FederatedAUROC()
    rows = []
    for scores, target in epochs(examples, seed):
        private.update(scores, target)
        exact.update(scores, target)
        deviation = deviation_of(private.release(), "auroc")
        rows.append([exact.compute().item(), private.compute().item(), deviation.item()])
        private.reset()
        exact.reset()
    columns = np.array(rows).T
    return Training(exact=columns[0], private=columns[1], deviations=columns[2])


def errors(training: Training) -> Errors:
    """Return the errors of one training."""
    values = torch.from_numpy(training.private)
    deviations = torch.from_numpy(training.deviations)
    trend = smoothed(values, deviations=deviations)
    live = []
    for epoch in range(1, EPOCHS + 1):
        so_far = smoothed(values[:epoch], deviations=deviations[:epoch])
        live.append(so_far.value[-1].item())
    exact = torch.from_numpy(training.exact)
    covered = (trend.lower <= exact) & (exact <= trend.upper)
    return Errors(
        release=_rms(training.private - training.exact),
        trend=_rms(trend.value.numpy() - training.exact),
        live=_rms(np.array(live) - training.exact),
        coverage=covered.double().mean().item(),
    )


def _rms(differences: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(differences))))


def table(sizes: list[int], runs: int) -> None:
    """Print root mean squares over all epochs of all runs, with standard errors over runs."""
    print("| examples | noise | plan | release | trend | trend so far | coverage |")
    print("|---|---|---|---|---|---|---|")
    for examples in sizes:
        for name, privacy in SETTINGS.items():
            for plan in PLANS:
                rows = [errors(train(privacy, plan, examples, seed)) for seed in range(runs)]
                columns = np.array(rows).T
                cells = [_with_error(column) for column in columns[:3]]
                cells.append(f"{columns[3].mean():.2f}")
                print(f"| {examples:,} | {name} | {plan} | {' | '.join(cells)} |", flush=True)


def _with_error(root_means: Floats) -> str:
    """Return the root mean square over runs, and its standard error by the delta method."""
    mean = float(np.sqrt(np.mean(root_means**2)))
    error = float(np.std(root_means**2, ddof=1) / math.sqrt(len(root_means)) / (2 * mean))
    return f"{mean:.4f} ± {error:.4f}"


def figure(path: str, examples: int) -> None:
    """Draw one training: exact, private, and the trend with its interval."""
    from matplotlib.figure import Figure

    training = train(SETTINGS["for_run"], "carry_over", examples, seed=0)
    added = train(SETTINGS["epsilons are added"], "adaptive", examples, seed=0)
    trend = smoothed(
        torch.from_numpy(training.private), deviations=torch.from_numpy(training.deviations)
    )
    time = np.arange(1, EPOCHS + 1)
    fig = Figure(figsize=(7, 4), layout="constrained")
    ax = fig.subplots()
    ax.plot(time, added.private, ".", color="tab:red", alpha=0.5, label="epsilon 3 / 50 each")
    ax.plot(time, training.private, ".", color="tab:blue", label="for_run, carry_over")
    ax.plot(time, trend.value, color="tab:blue", label="its trend")
    ax.fill_between(time, trend.lower, trend.upper, color="tab:blue", alpha=0.15, linewidth=0)
    ax.plot(time, training.exact, color="black", linewidth=1, label="exact")
    ax.set(xlabel="Epoch", ylabel="AUROC", xlim=(1, EPOCHS))
    ax.legend(frameon=False, loc="lower right")
    fig.savefig(path, dpi=150)


def main() -> None:
    """Print the table, or draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 1_000])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--figure", help="draw one training to this file instead")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # of noise, and of a ledger without a budget
    if options.figure:
        figure(options.figure, options.sizes[0])
        return
    table(options.sizes, options.runs)


if __name__ == "__main__":
    main()
