"""What a release costs a site of an NVFlare job in every round: CPU time, bytes sent and bytes received.

    python -m benchmarks.nvflare_costs

One process, with NVFlare's own messages and dispatcher; 10,000 examples a site; the mean over sites and three rounds.
The model, which travels anyway, is left out. Needs the extra ``nvflare``.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs

from tests.integrations.nvflare_sites import Federation, Site
from torchmetrics_fed import DistributedDP, FederatedROC, PrivacyLedger
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.integrations.nvflare import META_KEY

ROUNDS, EXAMPLES = 3, 10_000


class Metered(Federation):
    """A federation that adds up what its sites do and receive."""

    seconds, received = 0.0, 0

    def ask(self, name: str, asked: Request) -> Shareable:
        """Ask a site, and note what that costs it."""
        start = thread_time()
        reply = super().ask(name, asked)
        self.seconds += thread_time() - start
        self.received += len(fobs.dumps(vars(asked)))
        return reply


class MeteredSite(Site):
    """A site that adds up what it does when it sends its model."""

    seconds, sent = 0.0, 0

    def result(self, round: int) -> Shareable:
        """Return what leaves the site, and note what our part of it costs."""
        start = thread_time()
        result = super().result(round)
        self.seconds += thread_time() - start
        self.sent += len(from_shareable(result).meta[META_KEY])
        return result


def cost(sites: int, **options: Any) -> tuple[float, float, float]:
    """Return milliseconds, kB sent and kB received, of one site in one round."""
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for number in range(sites):
            target = torch.randint(0, 2, (EXAMPLES,), generator=generator)
            scores = (torch.randn(EXAMPLES, generator=generator) + target).sigmoid()
            ledger = PrivacyLedger(1e6, Path(folder, f"{number}"))
            made.append(
                MeteredSite(
                    f"site-{number}", FederatedROC(ledger=ledger, **options), scores, target
                )
            )
        federation = Metered(list(made), Path(folder), key_metric=None, **options)
        federation.round(0)  # a warm-up
        federation.seconds, federation.received = 0.0, 0
        federation.sent.clear()
        for site in made:
            site.seconds, site.sent = 0.0, 0
        for number in range(1, ROUNDS + 1):
            federation.round(number)
        for site in made:
            site.end()
        seconds = federation.seconds + sum(site.seconds for site in made)
        up = sum(site.sent for site in made) + sum(
            len(data) for _, stage, data in federation.sent if stage != "model"
        )
        each = sites * ROUNDS
        return 1e3 * seconds / each, up / each / 1e3, federation.received / each / 1e3


def main() -> None:
    """Print a table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    print("| sites | | CPU | sent | received |\n|---|---|---|---|---|")
    print(
        f"| any | the mean of local AUROCs | | {len(fobs.dumps({'auroc': 0.5})) / 1e3:.2f} kB | |"
    )
    for sites in (5, 50):
        privacy = DistributedDP(epsilon=1.0, min_clients=3)
        rows: dict[str, dict[str, Any]] = {
            "plain": {},
            "`secure=True`": {"secure": True},
            "`DistributedDP`": {"privacy": privacy},
            '`DistributedDP`, `plan="single"`': {"privacy": privacy, "plan": "single"},
        }
        for name, options in rows.items():
            milliseconds, sent, received = cost(sites, **options)
            print(
                f"| {sites} | {name} | {milliseconds:.1f} ms | {sent:.1f} kB | {received:.1f} kB |",
                flush=True,
            )


if __name__ == "__main__":
    main()
