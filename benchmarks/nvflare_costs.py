"""The cost of a release for a site of an NVFlare job in every round: CPU time and bytes.

    python -m benchmarks.nvflare_costs

One process, with NVFlare's own messages and dispatcher; 10,000 examples a site; the mean over sites
and three rounds. The model, which travels anyway, is left out. Needs the extra ``nvflare``.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs

from tests.integrations.nvflare_sites import Federation, Site
from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.nvflare import META_KEY

ROUNDS = 3
EXAMPLES = 10_000


class Cost(NamedTuple):
    """The cost of one round for one site."""

    milliseconds: float
    sent_kb: float
    received_kb: float


class MeteredFederation(Federation):
    """A federation that adds up the work of its sites and the bytes that they receive."""

    seconds = 0.0
    received = 0

    def ask(self, name: str, request: Request) -> Shareable:
        """Ask a site, and record the cost."""
        start = thread_time()
        reply = super().ask(name, request)
        self.seconds += thread_time() - start
        self.received += len(fobs.dumps(vars(request)))
        return reply


class MeteredSite(Site):
    """A site that adds up its work and the bytes that it sends with its model."""

    seconds = 0.0
    sent_bytes = 0

    def result(self, round: int) -> Shareable:
        """Return the site's result, and record the cost of this package's part."""
        start = thread_time()
        result = super().result(round)
        self.seconds += thread_time() - start
        self.sent_bytes += len(from_shareable(result).meta[META_KEY])
        return result


def cost(number: int, **options: Any) -> Cost:
    """Return the cost of one site in one round of this many sites."""
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        sites = []
        for index in range(number):
            target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
            scores = (torch.randn(EXAMPLES, generator=generator) + target).sigmoid()
            ledger = PrivacyLedger(1e6, Path(folder, f"{index}"))
            metric = FederatedROC(ledger=ledger, **options)
            sites.append(MeteredSite(f"site-{index}", metric, scores, target))
        federation = MeteredFederation(list(sites), Path(folder), key_metric=None, **options)
        federation.round(0)  # a warm-up
        federation.seconds = 0.0
        federation.received = 0
        federation.sent.clear()
        for site in sites:
            site.seconds = 0.0
            site.sent_bytes = 0
        for round in range(1, ROUNDS + 1):
            federation.round(round)
        for site in sites:
            site.end()
        seconds = federation.seconds + sum(site.seconds for site in sites)
        sent_bytes = sum(site.sent_bytes for site in sites)
        sent_bytes += sum(len(data) for _, stage, data in federation.sent if stage != "model")
        site_rounds = number * ROUNDS
        return Cost(
            milliseconds=1e3 * seconds / site_rounds,
            sent_kb=sent_bytes / site_rounds / 1e3,
            received_kb=federation.received / site_rounds / 1e3,
        )


def main() -> None:
    """Print a table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    print("| sites | | CPU | sent | received |\n|---|---|---|---|---|")
    one_number = len(fobs.dumps({"auroc": 0.5})) / 1e3
    print(f"| any | the mean of local AUROCs | | {one_number:.2f} kB | |")
    for sites in (5, 50):
        privacy = DistributedDP(epsilon=1.0, min_clients=3)
        rows: dict[str, dict[str, Any]] = {
            "plain": {},
            "`secure=True`": {"secure": True},
            "`DistributedDP`": {"privacy": privacy},
            '`DistributedDP`, `plan="single"`': {"privacy": privacy, "plan": "single"},
        }
        for name, options in rows.items():
            costs = cost(sites, **options)
            print(
                f"| {sites} | {name} | {costs.milliseconds:.1f} ms | {costs.sent_kb:.1f} kB "
                f"| {costs.received_kb:.1f} kB |",
                flush=True,
            )


if __name__ == "__main__":
    main()
