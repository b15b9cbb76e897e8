"""PrivacyStatement: what a release protects, against whom, and what it does not, to be signed and shared."""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

from torchmetrics_fed.errors import ReleaseError
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import ReleaseFlag
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

    A release that carries the last sum of an earlier one (``plan="carry_over"``) discloses two evaluations: the
    statement names the prior, and the epsilon of both together for a person who is in both. A simulated release hid
    nothing from the process that made it, and the statement says that. A release of fewer than ``min_clients`` shares
    raises: its noise does not add up to epsilon.

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
    release.check_opened()
    spec = release.spec
    privacy = spec.privacy if spec.privacy.charges else None
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
        "version": 2,
        "package": f"torchmetrics-fed {VERSION}",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "task": spec.task,
        "classes": spec.classes,
        "leaves": " and ".join(str(query.tree.leaves) for query in release.queries),
        "round": release.round,
        "shares": int(release.shares),
        "spent_fraction": release.spent_fraction,
        "clients_needed": spec.clients_needed,
        "spec": spec.digest.hex(),
        "sha256": _digest(release),
        "privacy": None if privacy is None else type(privacy).__name__,
        "delta": None if privacy is None else spec.delta,
        **{name: getattr(privacy, name, None) for name in (*names, "max_colluding")},
        "bound_enforced": None if privacy is None else privacy.enforced,
        "groups": list(spec.groups),
        "prior": _prior(release),
        **_flags(release),
        "ledger": None if ledger is None or privacy is None else _charged(release, ledger),
    }
    charged = fields["ledger"]
    holding = {
        "exact" if privacy is None else "private",
        "hidden" if spec.hides_shares else "visible",
        "no-entry" if charged is None or charged["entry"] is None else "entry",
        "prior" if fields["prior"] else "no-prior",
        "simulated" if fields["simulated"] else "federated",
        {None: "", True: "enforced", False: "word"}[fields["bound_enforced"]],
        str(fields["privacy"]),
        str(fields["mechanism"]),
        *(name for name in ("round", "groups", "partial", "rows_skipped") if fields[name]),
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


def _flags(release: Release) -> dict[str, bool]:
    """Each flag by its name, and whether the release has it."""
    return {str(flag.name).lower(): flag in release.flags for flag in ReleaseFlag}


def _prior(release: Release) -> dict[str, Any] | None:
    """What the file tells of an earlier evaluation, and what it costs a person who is in both."""
    if release.prior is None:
        return None
    spec = release.spec
    return {
        "leaves": release.prior.query.tree.leaves,
        "fraction": release.prior.query.fraction,
        "shares": int(release.prior.shares),
        "epsilon": release.prior_epsilon,
        "delta": spec.delta,
        "both_epsilon": spec.epsilon + release.prior_epsilon,
        "both_delta": 2 * spec.delta,
    }


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
