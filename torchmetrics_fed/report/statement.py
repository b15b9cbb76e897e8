"""PrivacyStatement: what a release protects, against whom, and what it does not, to be signed.

The sentences are in ``assets/statement.txt``, one a line: tags, a heading and a text with places
for the fields of the statement. A sentence is part of a statement if all of its tags hold.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.resources import files
from typing import Any

from torchmetrics_fed.errors import ReleaseError
from torchmetrics_fed.privacy import Privacy, PrivacyLedger
from torchmetrics_fed.release import ReleaseFlag
from torchmetrics_fed.release.release import Release, no_release
from torchmetrics_fed.version import VERSION

_PRIVACY_FIELDS = (
    "epsilon",
    "neighbours",
    "examples_per_person",
    "mechanism",
    "calibrated_for",
    "unit",
    "holds_against",
    "max_colluding",
)
"""Attributes of the privacy setting that are fields of the statement, None where it has none."""


@dataclass(frozen=True)
class PrivacyStatement:
    """The result of :func:`privacy_statement`: ``str`` gives words, ``fields`` plain JSON values.

    ``bytes`` are the fields as JSON in one encoding, keys sorted and no spaces: sign these.

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
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode()


def privacy_statement(release: Release, ledger: PrivacyLedger | None = None) -> PrivacyStatement:
    """Return what this release protects, for whom, against whom and at what price.

    The statement names what the release does not protect, too. A release that carries the last sum
    of an earlier one (``plan="carry_over"``) discloses two evaluations: the statement names the
    prior, and the epsilon of both together for a person who is in both. A simulated release hid
    nothing from the process that made it, and the statement says so. A release of fewer than
    ``min_clients`` shares raises: its noise does not add up to epsilon.

    Args:
        release: any; the statement of exact counts says that nothing is protected.
        ledger: the ledger that the release was charged to. Its entry gives the time, and its digest
            binds the statement to it.

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
    fields = _fields(release, ledger)
    fields["words"] = _words(fields, _tags(fields, release.spec.hides_shares))
    return PrivacyStatement(fields)


def _fields(release: Release, ledger: PrivacyLedger | None) -> dict[str, Any]:
    """Return the fields of the statement, without its words."""
    spec = release.spec
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
        "sha256": _file_digest(release),
        "privacy": None,
        "delta": None,
        **dict.fromkeys(_PRIVACY_FIELDS),
        "bound_enforced": None,
        "run": None,
        "groups": list(spec.groups),
        "prior": _prior(release),
        **_flags(release),
        "ledger": None,
    }
    if spec.privacy.charges:
        fields["privacy"] = type(spec.privacy).__name__
        fields["delta"] = spec.delta
        for name in _PRIVACY_FIELDS:
            fields[name] = getattr(spec.privacy, name, None)
        fields["epsilon"] = spec.epsilon
        fields["bound_enforced"] = spec.privacy.enforced
        fields["run"] = _run(spec.privacy)
        if ledger is not None:
            fields["ledger"] = _ledger_fields(release, ledger)
    return fields


def _run(privacy: Privacy) -> dict[str, Any] | None:
    """Return the number of evaluations that share one epsilon, and their cost together."""
    if privacy.evaluations is None:
        return None
    return {
        "evaluations": privacy.evaluations,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
    }


def _tags(fields: Mapping[str, Any], hides_shares: bool) -> set[str]:
    """Return the tags that hold, for the sentences of the statement."""
    ledger = fields["ledger"]
    tags = {
        "private" if fields["privacy"] else "exact",
        "hidden" if hides_shares else "visible",
        "prior" if fields["prior"] else "no-prior",
        "simulated" if fields["simulated"] else "federated",
    }
    if fields["privacy"]:
        tags.add(fields["privacy"])
        tags.add(fields["mechanism"])
        tags.add("enforced" if fields["bound_enforced"] else "word")
    if ledger is not None:
        tags.add("ledger")
    if ledger is not None and ledger["entry"] is not None:
        tags.add("entry")
    else:
        tags.add("no-entry")
    if fields["sha256"]:
        tags.add("file")
    for name in ("round", "groups", "run", "partial", "rows_skipped"):
        if fields[name]:
            tags.add(name)
    return tags


def _words(fields: Mapping[str, Any], tags: set[str]) -> list[list[str]]:
    """Return heading and text of every sentence whose tags hold."""
    template = (files(__package__) / "assets" / "statement.txt").read_text(encoding="utf-8")
    group_names = ", ".join(fields["groups"])
    words = []
    for line in template.splitlines():
        needed_tags, heading, text = line.split("|", 2)
        if tags.issuperset(needed_tags.split()):
            sentence = text.strip().format(**fields, named=group_names)
            words.append([heading.strip(), sentence])
    return words


def _flags(release: Release) -> dict[str, bool]:
    """Return each flag by its name, and whether the release has it."""
    return {str(flag.name).lower(): flag in release.flags for flag in ReleaseFlag}


def _prior(release: Release) -> dict[str, Any] | None:
    """Return what the file tells of an earlier evaluation, and the loss of a person in both."""
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


def _file_digest(release: Release) -> str | None:
    """Return the SHA-256 of the release's file, or None where the release may not leave."""
    try:
        return hashlib.sha256(bytes(release)).hexdigest()
    except ReleaseError:
        return None


def _ledger_fields(release: Release, ledger: PrivacyLedger) -> dict[str, Any]:
    """Return the entry of the release, None if several entries could be it, and the totals."""
    queries = [query.digest for query in release.queries]
    entries = ledger.entries_of(release.spec.digest, queries)
    if not entries:
        raise ReleaseError(
            f"Expected a ledger with the entry of this release, of round {release.round!r}, but "
            f"got {ledger}. Pass the ledger that it was charged to, or none."
        )
    same_round = [entry for entry in entries if entry.round == release.round]
    if same_round:
        entries = same_round
    entry_fields = None
    digest = ledger.digest()
    if len(entries) == 1:
        entry_fields = entries[0].fields
        digest = ledger.digest(entries[0])
    return {
        "entry": entry_fields,
        "digest": digest,
        "releases": len(ledger),
        "spent": ledger.spent().epsilon,
        "budget": ledger.budget,
    }
