"""NVFlare as a carrier: its aggregator and filters, with its own messages, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.transports.carriers import CLIENTS, MARK, VISIBLE, Carried, Part, built, leaking
from torchmetrics_fed import PrivacyLedger, Release

__all__ = ["NVFlare"]

OF_CLIENTS = ("kind", "average", "confidence")


def agreed(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the aggregator: not those that shape an answer."""
    return {name: value for name, value in options.items() if name not in OF_CLIENTS}


class NVFlare:
    """NVFlare's aggregator, and sites with the filter."""

    settings = VISIBLE

    def carry(
        self,
        options: dict[str, Any],
        parts: list[Part],
        rounds: int,
        folder: Path,
        mark: bool,
        leak: bool,
    ) -> list[Carried]:
        from tests.integrations.nvflare_sites import JOB, Federation, Site

        paths = [folder / f"ledger {number}" for number in range(CLIENTS)]
        sites = [
            Site(f"site-{number}", built(options, path), *part, times=MARK if mark else 1)
            for number, (path, part) in enumerate(zip(paths, parts, strict=True))
        ]
        try:
            federation = Federation(sites, folder, **agreed(options))
            with leaking(leak):
                for number in range(rounds):
                    federation.round(number)
        finally:
            for site in sites:
                site.end()
        entries = [list(PrivacyLedger(path=path)) for path in paths]
        assert all(len(mine) <= rounds for mine in entries)
        traffic = b"".join(data for _, _, data in federation.sent)
        return [
            Carried(
                Release.load(folder / JOB / f"round-{number:04d}.release"),
                [mine[number : number + 1] for mine in entries],
                traffic,
            )
            for number in range(rounds)
        ]
