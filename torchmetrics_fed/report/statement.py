"""PrivacyStatement: what a release protects, against whom, and what it does not, to be signed and shared."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

from torchmetrics_fed.errors import ReleaseError
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.version import VERSION


@dataclass(frozen=True)
class PrivacyStatement:
    """What :func:`privacy_statement` found: ``str`` says it in words, ``fields`` are plain JSON values.

    ``bytes`` are the fields as JSON in one encoding, keys sorted and no spaces: what to sign.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, LocalDP
        >>> metric = FederatedROC(privacy=LocalDP(epsilon=1.0), data="validation")
        >>> metric.update(torch.rand(100), torch.randint(0, 2, (100,)))
        >>> privacy_statement(metric.release(), metric.ledger).fields["ledger"]["entry"]["data"]
        'validation'
    """

    fields: dict[str, Any]

    def __str__(self) -> str:
        return "\n".join(f"{heading}: {words}" for heading, words in self.fields["words"])

    def __bytes__(self) -> bytes:
        return json.dumps(
            self.fields, sort_keys=True, separators=(",", ":"), allow_nan=False
        ).encode()


def privacy_statement(release: Release, ledger: PrivacyLedger | None = None) -> PrivacyStatement:
    """Return what this release protects, for whom, against whom and at what price, and what it does not protect.

    Args:
        release: any; of exact counts it says that nothing is protected.
        ledger: the one that the release was charged to. Its entry says when, and its digest binds the statement to it.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
        >>> print(str(privacy_statement(metric.release())).splitlines()[2])
        Privacy loss: not limited: the counts are exact.
    """
    if not isinstance(release, Release):
        raise no_release(release)
    spec, privacy = release.spec, release.spec.privacy
    names = (
        "epsilon",
        "neighbours",
        "examples_per_person",
        "mechanism",
        "calibrated_for",
        "unit",
        "holds_against",
    )
    fields: dict[str, Any] = {
        "format": "torchmetrics-fed privacy statement",
        "version": 1,
        "package": f"torchmetrics-fed {VERSION}",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "task": spec.task,
        "classes": spec.classes,
        "leaves": " and ".join(str(query.tree.leaves) for query in release.queries),
        "round": release.round,
        "shares": int(release.shares),
        "clients_needed": spec.clients_needed,
        "spec": spec.digest.hex(),
        "sha256": _digest(release),
        "privacy": None if privacy is None else type(privacy).__name__,
        "delta": None if privacy is None else spec.delta,
        **{name: getattr(privacy, name, None) for name in (*names, "max_colluding")},
        "bound_enforced": None if privacy is None else privacy.enforced,
        "groups": list(spec.groups),
        "skips_bad": release.last.skips_bad,
        "ledger": None if ledger is None or privacy is None else _charged(release, ledger),
    }
    charged = fields["ledger"]
    holding = {
        "exact" if privacy is None else "private",
        "hidden" if spec.hides_shares else "visible",
        "no-entry" if charged is None or charged["entry"] is None else "entry",
        {None: "", True: "enforced", False: "word"}[fields["bound_enforced"]],
        str(fields["privacy"]),
        str(fields["mechanism"]),
        *(name for name in ("round", "groups", "skips_bad") if fields[name]),
        *(name for name, there in (("ledger", charged), ("file", fields["sha256"])) if there),
    }
    lines = (
        (files(__package__) / "assets" / "statement.txt").read_text(encoding="utf-8").splitlines()
    )
    parts = [[part.strip() for part in line.split("|", 2)] for line in lines]
    fields["words"] = [
        [name, text.format(**fields, named=", ".join(spec.groups))]
        for tags, name, text in parts
        if holding.issuperset(tags.split())
    ]
    return PrivacyStatement(fields)


def _digest(release: Release) -> str | None:
    """The SHA-256 of the release's file, or None where it may not leave."""
    try:
        return hashlib.sha256(bytes(release)).hexdigest()
    except ReleaseError:
        return None


def _charged(release: Release, ledger: PrivacyLedger) -> dict[str, Any]:
    found = ledger.entries_of(release.spec.digest, (query.digest for query in release.queries))
    named = [entry for entry in found if entry.round == release.round] or found
    if not named:
        raise ReleaseError(
            f"Expected a ledger with the entry of this release, of round {release.round!r}, but got {ledger}. Pass the "
            "ledger that it was charged to, or none."
        )
    entry = named[0].fields if len(named) == 1 else None
    totals = {"releases": len(ledger), "spent": ledger.spent().epsilon, "budget": ledger.budget}
    return {"entry": entry, "digest": ledger.digest(None if entry is None else named[0]), **totals}
