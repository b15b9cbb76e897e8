"""A run of many rounds in Flower: what it would spend, and the trend of its numbers."""

from __future__ import annotations

from torchmetrics_fed.exchange import Terms
from torchmetrics_fed.metrics.history import History
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Release


def planned_remark(terms: Terms, rounds: int) -> str:
    """Return what is wrong with a planned number of rounds, as far as a server can know; or "".

    Ledgers are the clients' own. The server knows what a release costs, and how many a setting is
    for.

    Args:
        terms: what the server agrees to.
        rounds: the planned number of rounds, each with an evaluation.
    """
    at_any_client = Terms(terms.spec, terms.plan, PrivacyLedger(), terms.data)
    remark = at_any_client.check_run(rounds)
    if not remark:
        return ""
    return f"{remark} Each client refuses the rounds that its own budget does not allow."


def trends(history: History, release: Release, scalars: dict[str, float]) -> dict[str, float]:
    """Add the numbers of a round to the history, and return their trends by name.

    Args:
        history: the numbers of the rounds before.
        release: the release of the round.
        scalars: the numbers of the round, by the names that are logged.
    """
    smooth = {}
    for name, value in scalars.items():
        trend = history.add_scalar(name, value, release)
        smooth[f"{name}-trend"] = float(trend.value[-1])
    return smooth
