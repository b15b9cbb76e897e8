"""Beyond 1,024 clients: neighbours in a graph of bounded degree, and the noise of sums of sums.

    python -m benchmarks.beyond

A calculation: nothing of this is in the package. Costs are those of the protocol as it is, with as
many clients as a client has neighbours; the server's costs are counted in operations, each timed
here.
"""

from __future__ import annotations

import math
import time

from scipy import stats

from benchmarks.secure_aggregation import CELLS, cost
from torchmetrics_fed.aggregation.secure.keys import KeyPair, pair_key
from torchmetrics_fed.aggregation.secure.mask import MaskedVector

COLLUDING = 0.2
"""The fraction of clients that collude with the server."""
DROPPED = 0.1
"""The fraction of clients that drop out."""
SECURITY = 40
"""Bits: privacy fails with a probability of at most 2^-40."""
CORRECTNESS = 30
"""Bits: a round fails with a probability of at most 2^-30."""
GROUP = 1_000
"""Clients of a group whose sum is aggregated with those of other groups."""


def degree(clients: int) -> tuple[int, int]:
    """Return the fewest neighbours, and the threshold among them, after Bell et al. (2020).

    Clients stand on a ring in a random order, each linked to the k / 2 next on either side. With t
    of k shares: no client has t colluding neighbours, the honest clients that did not drop out are
    connected (a gap takes k / 2 in a row), and every client keeps t neighbours.
    """
    colluding = round(COLLUDING * clients)
    surviving = round((1 - DROPPED) * clients)
    for k in range(8, clients, 2):
        if clients * (COLLUDING + DROPPED) ** (k / 2) > 2**-SECURITY:
            continue
        colluding_neighbours = stats.hypergeom(clients - 1, colluding, k)
        t = 1
        while clients * colluding_neighbours.sf(t - 1) > 2**-SECURITY:
            t += 1
        surviving_neighbours = stats.hypergeom(clients - 1, surviving, k)
        if clients * surviving_neighbours.cdf(t - 1) <= 2**-CORRECTNESS:
            return k, t
    raise ValueError(f"no degree is enough for {clients} clients")


def pair_seconds(repeats: int = 200) -> float:
    """Return the time to remove the mask of one pair: a key exchange and a keystream."""
    first = KeyPair()
    second = KeyPair()
    vector = MaskedVector(CELLS)
    start = time.process_time()
    for _ in range(repeats):
        vector.mask_pair(pair_key(first.agree(second.public), b"context", 0, 1), 1, 0)
    return (time.process_time() - start) / repeats


def colluders(members: int, clients: int) -> int:
    """Return the most colluding members of a random group, except with probability 2^-SECURITY."""
    in_group = stats.hypergeom(clients, round(COLLUDING * clients), members)
    return int(in_group.isf(2.0**-SECURITY * members / clients))


def print_graphs() -> None:
    """Print costs of graphs of bounded degree."""
    pair = pair_seconds()
    print(f"a pair's mask: {1e6 * pair:.0f} us\n")
    print(
        "| clients | neighbours | threshold | ms per client | kB up / down | server s for pairs "
        "| complete graph s |"
    )
    print("|---|---|---|---|---|---|---|")
    for clients in (1_024, 10_000, 100_000, 1_000_000):
        k, t = degree(clients)
        client_cost = cost(k + 1, 0)
        dropped = DROPPED * clients
        bounded = dropped * k * pair
        complete = dropped * (1 - DROPPED) * clients * pair
        print(
            f"| {clients:,} | {k} | {t} | {client_cost.client_ms:.0f} "
            f"| {client_cost.up_kb:.0f} / {client_cost.down_kb:.0f} "
            f"| {bounded:,.0f} | {complete:,.0f} |",
            flush=True,
        )


def print_groups() -> None:
    """Print the noise of sums of groups' sums, relative to one sum of all clients."""
    print(
        "\n| clients | groups of 1,000 | most colluding in a group | noise x, a group each "
        "| noise x, LocalDP |"
    )
    print("|---|---|---|---|---|")
    for clients in (4_000, 10_000, 100_000, 1_000_000):
        colluding_in_group = colluders(GROUP, clients)
        honest = clients - round(COLLUDING * clients)
        one_sum = math.sqrt(clients / honest)
        group_sums = math.sqrt(clients / (GROUP - colluding_in_group))
        print(
            f"| {clients:,} | {clients // GROUP:,} | {colluding_in_group} "
            f"| {group_sums / one_sum:.1f} | {math.sqrt(clients) / one_sum:,.0f} |"
        )


if __name__ == "__main__":
    print_graphs()
    print_groups()
