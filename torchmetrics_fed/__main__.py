"""``python -m torchmetrics_fed plan``: the error to expect of every plan, what it sends, and one recommended."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from torchmetrics_fed.errors import FederatedMetricError, InputError
from torchmetrics_fed.planning import advise
from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP, Privacy

# Of all clients, the part that takes part at least, unless --min-clients says how many.
_SURVIVING = 0.8


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m torchmetrics_fed", description="Help with federated curves.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help=__doc__.split(": ")[1], description=__doc__)
    _add_options(plan)
    given = parser.parse_args(arguments)
    try:
        n_pos = _positives(given.examples, given.positives)
        advice = advise(
            _privacy(given),
            n_pos,
            given.examples - n_pos,
            clients=given.clients,
            auroc=given.auroc,
            quantiles=given.quantiles,
            runs=given.runs,
        )
    except FederatedMetricError as error:
        plan.error(str(error))
    sys.stdout.write(f"{advice}\n")


def _add_options(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--epsilon", type=float, required=True, help="privacy loss of one evaluation")
    plan.add_argument("--examples", type=int, required=True, help="of all clients together")
    plan.add_argument("--clients", type=int, default=1, help="how many take part (default: %(default)s)")
    plan.add_argument("--positives", type=float, default=0.2, help="their part of the examples (default: %(default)s)")
    who = plan.add_mutually_exclusive_group()
    who.add_argument("--local", action="store_true", help="LocalDP: every client adds all of the noise")
    who.add_argument("--central", action="store_true", help="CentralDP: one trusted party adds it once")
    who.add_argument("--trusted-aggregator", action="store_true", help="DistributedDP without secure aggregation")
    plan.add_argument("--min-clients", type=int, help="fewer are not summed (default: four fifths of the clients)")
    plan.add_argument("--max-colluding", type=int, default=1, help="clients who may collude (default: %(default)s)")
    plan.add_argument("--auroc", type=float, default=0.85, help="expected of the model (default: %(default)s)")
    plan.add_argument("--quantiles", type=int, default=1024, help="the resolution, Q (default: %(default)s)")
    plan.add_argument("--runs", type=int, default=20, help="simulated releases of each plan (default: %(default)s)")


def _positives(examples: int, part: float) -> int:
    if examples < 2 or not 0 < part < 1:
        raise InputError(
            f"Expected --examples of at least 2 and --positives between 0 and 1 but got {examples} and {part}."
        )
    return min(max(round(examples * part), 1), examples - 1)


def _privacy(given: argparse.Namespace) -> Privacy:
    if given.local or given.central:
        if given.min_clients is not None:
            raise InputError("Expected no --min-clients with --local or --central: no noise is divided. Leave it out.")
        return LocalDP(given.epsilon) if given.local else CentralDP(given.epsilon)
    least = 2 if given.trusted_aggregator else 3
    if given.clients < least:
        raise InputError(
            f"Expected --clients of at least {least} because fewer cannot hide each other's counts, but got "
            f"{given.clients}. Say how many there are, or who else adds noise: --local or --central."
        )
    several = max(math.ceil(_SURVIVING * given.clients), least) if given.min_clients is None else given.min_clients
    return DistributedDP(given.epsilon, several, given.max_colluding, trusted_aggregator=given.trusted_aggregator)


if __name__ == "__main__":
    main()
