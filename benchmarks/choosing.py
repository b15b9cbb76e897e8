"""Draw docs/images/choosing.png: the error to expect against epsilon, and against what a client sends.

    python -m benchmarks.choosing --out docs/images/choosing.png

30,000 reference examples, a fifth of them positive, of 20 clients with DistributedDP(min_clients=16); the means of
--runs simulated releases. What is drawn is printed as well.
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

POSITIVES, NEGATIVES, CLIENTS, LEAST = 6_000, 24_000, 20, 16
EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
QUANTILES = (16, 64, 256, 1024, 4096)
PLANS: tuple[PlanName, ...] = get_args(PlanName)
_MARKS = dict(zip(PLANS, "osD^", strict=True))


class Point(NamedTuple):
    """A plan at one epsilon and resolution."""

    plan: PlanName
    epsilon: float
    quantiles: int
    roc: float
    precision_recall: float
    bytes: int


def point(plan: PlanName, epsilon: float, quantiles: int, runs: int) -> Point:
    """Simulate, and print what comes out."""
    privacy, grid = DistributedDP(epsilon, LEAST), reference_grid(plan, quantiles)
    error = expected_area_error(
        plan, privacy, POSITIVES, NEGATIVES, clients=CLIENTS, quantiles=quantiles, runs=runs
    )
    spec = Spec("binary", 1, grid, privacy)
    sent = sum(bytes_per_client(spec, query, CLIENTS) for query in error.queries)
    print(
        f"| {plan} | {epsilon:g} | {quantiles} | {error.roc:.5f} | {error.precision_recall:.5f} | {sent} |",
        flush=True,
    )
    return Point(plan, epsilon, quantiles, error.roc, error.precision_recall, sent)


def draw(by_epsilon: list[Point], by_bytes: list[Point], sampling: float, out: Path) -> None:
    """Draw both panels."""
    fig, (left, right) = figure(1, 2, size=(8.4, 3.6))
    for number, plan in enumerate(PLANS):
        look: dict[str, Any] = {
            "color": PALETTE[number],
            "marker": _MARKS[plan],
            "markersize": 4,
            "linewidth": 1.3,
        }
        points = [p for p in by_epsilon if p.plan == plan]
        left.plot([p.epsilon for p in points], [p.roc for p in points], label=plan, **look)
        points = [p for p in by_bytes if p.plan == plan]
        right.plot([p.bytes for p in points], [p.roc for p in points], **look)
    for ax, limits in ((left, (8e-5, 3e-2)), (right, (5e-4, 6e-3))):
        ax.axhline(
            sampling,
            color="0.4",
            linestyle=(0, (4, 3)),
            linewidth=0.9,
            label="sampling error of the test set",
        )
        ax.set(xscale="log", yscale="log", ylim=limits)
    for p in by_bytes:
        if p.plan == "paper":
            right.annotate(
                f"Q = {p.quantiles}",
                (p.bytes, p.roc),
                (-4, 4),
                textcoords="offset points",
                fontsize=7,
                ha="right",
            )
    dress(left, "epsilon", "ROC Area Error", rates=False)
    dress(right, "bytes that a client sends, epsilon = 1", "ROC Area Error", rates=False)
    left.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    right.set_yticks([5e-4, 1e-3, 2e-3, 5e-3], ["0.0005", "0.001", "0.002", "0.005"])
    right.set_xticks([3e3, 1e4, 3e4, 1e5, 3e5], ["3 kB", "10 kB", "30 kB", "100 kB", "300 kB"])
    left.set_yticks([1e-4, 1e-3, 1e-2], ["0.0001", "0.001", "0.01"])
    left.minorticks_off()
    right.minorticks_off()
    handles = left.get_legend_handles_labels()
    left.legend(*handles, loc="upper right", fontsize=7.5, frameon=False)
    right.get_legend().remove()
    out.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(out, dpi=200, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images/choosing.png"))
    parser.add_argument("--runs", type=int, default=40)
    arguments = parser.parse_args()
    print("| plan | epsilon | quantiles | ROC | PR | bytes |\n|---|---|---|---|---|---|")
    by_epsilon = [
        point(plan, epsilon, 1024, arguments.runs) for plan in PLANS for epsilon in EPSILONS
    ]
    placed = ("adaptive", "carry_over")
    by_bytes = [
        point(plan, 1.0, quantiles, arguments.runs)
        for plan in PLANS
        for quantiles in QUANTILES
        if plan not in placed or reference_grid(plan, quantiles).bins >= LEAST_BINS
    ]
    sampling = expected_sampling_error(POSITIVES, NEGATIVES, runs=arguments.runs)
    print(
        f"\nSampling error of the test set: {sampling.roc:.5f} (ROC), {sampling.precision_recall:.5f} (PR)"
    )
    draw(by_epsilon, by_bytes, sampling.roc, arguments.out)


if __name__ == "__main__":
    main()
