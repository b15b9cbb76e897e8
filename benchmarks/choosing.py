"""Draw docs/images/choosing.png: the expected error over epsilon, and over the bytes of a client.

    python -m benchmarks.choosing --out docs/images/choosing.png

30,000 reference examples, a fifth of them positive, of 20 clients with
DistributedDP(min_clients=16); the means of --runs simulated releases. The points are printed, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torchmetrics_fed import DistributedDP, Spec
from torchmetrics_fed.exchange import PlanName
from torchmetrics_fed.exchange.placement import LEAST_BINS
from torchmetrics_fed.functional.figures.canvas import PALETTE, dress, figure
from torchmetrics_fed.planning import bytes_per_client, expected_area_error, expected_sampling_error
from torchmetrics_fed.planning.expected import reference_grid

POSITIVES = 6_000
NEGATIVES = 24_000
CLIENTS = 20
MIN_CLIENTS = 16
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
QUANTILES = (16, 64, 256, 1024, 4096)
PLANS: tuple[PlanName, ...] = get_args(PlanName)
PLACED: tuple[PlanName, ...] = ("adaptive", "carry_over")
"""Plans that place leaves, if there are bins enough."""
MARKERS = dict(zip(PLANS, "osD^", strict=True))


class Point(NamedTuple):
    """A plan at one epsilon and resolution."""

    plan: PlanName
    epsilon: float
    quantiles: int
    roc: float
    precision_recall: float
    bytes: int


def point(plan: PlanName, epsilon: float, quantiles: int, runs: int) -> Point:
    """Simulate a point, and print it."""
    privacy = DistributedDP(epsilon, MIN_CLIENTS)
    error = expected_area_error(
        plan, privacy, POSITIVES, NEGATIVES, clients=CLIENTS, quantiles=quantiles, runs=runs
    )
    spec = Spec("binary", 1, reference_grid(plan, quantiles), privacy)
    size = sum(bytes_per_client(spec, query, CLIENTS) for query in error.queries)
    print(
        f"| {plan} | {epsilon:g} | {quantiles} | {error.roc:.5f} | {error.precision_recall:.5f} "
        f"| {size} |",
        flush=True,
    )
    return Point(
        plan=plan,
        epsilon=epsilon,
        quantiles=quantiles,
        roc=error.roc,
        precision_recall=error.precision_recall,
        bytes=size,
    )


def draw(by_epsilon: list[Point], by_bytes: list[Point], sampling: float, out: Path) -> None:
    """Draw both panels."""
    fig, (epsilon_ax, bytes_ax) = figure(1, 2, size=(8.4, 3.6))
    for number, plan in enumerate(PLANS):
        style: dict[str, Any] = {
            "color": PALETTE[number],
            "marker": MARKERS[plan],
            "markersize": 4,
            "linewidth": 1.3,
        }
        points = [point for point in by_epsilon if point.plan == plan]
        epsilons = [point.epsilon for point in points]
        epsilon_ax.plot(epsilons, [point.roc for point in points], label=plan, **style)
        points = [point for point in by_bytes if point.plan == plan]
        bytes_ax.plot([point.bytes for point in points], [point.roc for point in points], **style)
    draw_sampling_error(epsilon_ax, sampling)
    draw_sampling_error(bytes_ax, sampling)
    epsilon_ax.set(xscale="log", yscale="log", ylim=(8e-5, 3e-2))
    bytes_ax.set(xscale="log", yscale="log", ylim=(5e-4, 6e-3))
    annotate_quantiles(bytes_ax, [point for point in by_bytes if point.plan == "paper"])
    dress(epsilon_ax, "epsilon", "ROC Area Error", rates=False)
    dress(bytes_ax, "bytes that a client sends, epsilon = 1", "ROC Area Error", rates=False)
    epsilon_ax.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    epsilon_ax.set_yticks([1e-4, 1e-3, 1e-2], ["0.0001", "0.001", "0.01"])
    bytes_ax.set_xticks([3e3, 1e4, 3e4, 1e5, 3e5], ["3 kB", "10 kB", "30 kB", "100 kB", "300 kB"])
    bytes_ax.set_yticks([5e-4, 1e-3, 2e-3, 5e-3], ["0.0005", "0.001", "0.002", "0.005"])
    epsilon_ax.minorticks_off()
    bytes_ax.minorticks_off()
    handles, labels = epsilon_ax.get_legend_handles_labels()
    epsilon_ax.legend(handles, labels, loc="upper right", fontsize=7.5, frameon=False)
    bytes_ax.get_legend().remove()
    out.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(out, dpi=200, metadata={"Software": None})


def draw_sampling_error(ax: Any, sampling: float) -> None:
    ax.axhline(
        sampling,
        color="0.4",
        linestyle=(0, (4, 3)),
        linewidth=0.9,
        label="sampling error of the test set",
    )


def annotate_quantiles(ax: Any, points: list[Point]) -> None:
    for point in points:
        ax.annotate(
            f"Q = {point.quantiles}",
            (point.bytes, point.roc),
            (-4, 4),
            textcoords="offset points",
            fontsize=7,
            ha="right",
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images/choosing.png"))
    parser.add_argument("--runs", type=int, default=40)
    arguments = parser.parse_args()
    print("| plan | epsilon | quantiles | ROC | PR | bytes |")
    print("|---|---|---|---|---|---|")
    runs = arguments.runs
    by_epsilon = [point(plan, epsilon, 1024, runs) for plan in PLANS for epsilon in EPSILONS]
    by_bytes = [
        point(plan, 1.0, quantiles, runs)
        for plan in PLANS
        for quantiles in QUANTILES
        if plan not in PLACED or reference_grid(plan, quantiles).bins >= LEAST_BINS
    ]
    sampling = expected_sampling_error(POSITIVES, NEGATIVES, runs=runs)
    print(
        f"\nSampling error of the test set: {sampling.roc:.5f} (ROC), "
        f"{sampling.precision_recall:.5f} (PR)"
    )
    draw(by_epsilon, by_bytes, sampling.roc, arguments.out)


if __name__ == "__main__":
    main()
