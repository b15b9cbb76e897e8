"""What it takes to pass 1,024 clients: neighbours in a graph of bounded degree, and the noise of sums of sums.

    python -m benchmarks.beyond

On paper: nothing of this is in the package. Costs are those of the protocol as it is, with as many clients as a client
has neighbours; the server's are counted in operations, each timed here.
"""

from __future__ import annotations

import math
import time

from scipy import stats

from benchmarks.secure_aggregation import CELLS, cost
from torchmetrics_fed.aggregation.secure.keys import KeyPair, pair_key
from torchmetrics_fed.aggregation.secure.mask import MaskedVector

COLLUDING, DROPPED = 0.2, 0.1
SECURITY, CORRECTNESS = (
    40,
    30,
)  # bits: failures of privacy, and of a round, in one of two to the power of them
GROUP = 1_000


def degree(clients: int) -> tuple[int, int]:
    """Return the fewest neighbours, and the threshold among them, after Bell et al. (2020).

    Clients stand on a ring in a random order, each linked to the k / 2 next on either side. With t of k shares: nobody
    has t colluding neighbours, those left without colluding and dropped ones are connected (a gap takes k / 2 in a
    row), and everybody keeps t neighbours.
    """
    colluding, left = round(COLLUDING * clients), round((1 - DROPPED) * clients)
    for k in range(8, clients, 2):
        if clients * (COLLUDING + DROPPED) ** (k / 2) > 2**-SECURITY:
            continue
        safe = stats.hypergeom(clients - 1, colluding, k)
        t = next(t for t in range(1, k + 2) if clients * safe.sf(t - 1) <= 2**-SECURITY)
        if clients * stats.hypergeom(clients - 1, left, k).cdf(t - 1) <= 2**-CORRECTNESS:
            return k, t
    raise ValueError(f"no degree is enough for {clients} clients")


def pair_seconds(repeats: int = 200) -> float:
    """The time to remove the mask of one pair: a key exchange and a keystream."""
    mine, theirs, vector = KeyPair(), KeyPair(), MaskedVector(CELLS)
    start = time.process_time()
    for _ in range(repeats):
        vector.mask_pair(pair_key(mine.agree(theirs.public), b"context", 0, 1), 1, 0)
    return (time.process_time() - start) / repeats


def colluders(members: int, clients: int) -> int:
    """The most colluding members that a random group has, but for one time in two to the power of SECURITY."""
    inside = stats.hypergeom(clients, round(COLLUDING * clients), members)
    return int(inside.isf(2.0**-SECURITY * members / clients))


if __name__ == "__main__":
    pair = pair_seconds()
    print(f"a pair's mask: {1e6 * pair:.0f} us\n")
    print(
        "| clients | neighbours | threshold | ms per client | kB up / down | server s for pairs | complete graph s |"
    )
    print("|---|---|---|---|---|---|---|")
    for number in (1_024, 10_000, 100_000, 1_000_000):
        k, t = degree(number)
        each, gone = cost(k + 1, 0), DROPPED * number
        bounded, complete = gone * k * pair, gone * (1 - DROPPED) * number * pair
        figures = f"{each.client_ms:.0f} | {each.up_kb:.0f} / {each.down_kb:.0f} | {bounded:,.0f} | {complete:,.0f}"
        print(f"| {number:,} | {k} | {t} | {figures} |", flush=True)
    print(
        "\n| clients | groups of 1,000 | most colluding in a group | noise x, a group each | noise x, LocalDP |"
    )
    print("|---|---|---|---|---|")
    for number in (4_000, 10_000, 100_000, 1_000_000):
        groups, worst = number // GROUP, colluders(GROUP, number)
        whole = round(COLLUDING * number)
        each_group = math.sqrt(number / (GROUP - worst)) / math.sqrt(number / (number - whole))
        local = math.sqrt(number) / math.sqrt(number / (number - whole))
        print(f"| {number:,} | {groups:,} | {worst} | {each_group:.1f} | {local:,.0f} |")
