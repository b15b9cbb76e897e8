"""Contents: what bytes of this package are, in words. Never the counts in them."""

from __future__ import annotations

from collections.abc import Iterator

from torchmetrics_fed.release.query import Query
from torchmetrics_fed.release.release import Release
from torchmetrics_fed.release.share import Share
from torchmetrics_fed.release.spec import Spec
from torchmetrics_fed.release.wire import Kind, kind_of


def contents(data: bytes, agreed: tuple[Spec, Query] | None = None) -> str:
    """Return what a share, release, query or other message is; a share that is not of the ``agreed`` spec raises."""
    kind = kind_of(data)
    text = f"{kind.name.lower().replace('_', ' ')}, {len(data):,} bytes"
    lines: list[str] = []
    if kind is Kind.RELEASE:
        release = Release.from_bytes(data)
        text += f", round {release.round!r}, {release.shares} share{'s' * (release.shares != 1)}"
        lines = [*(f"query: {_asked(query)}" for query in release.queries), *_agreed(release.spec)]
    elif kind is Kind.QUERY:
        lines = [_asked(Query.from_bytes(data))]
    elif kind is Kind.SHARE and agreed is not None:
        share = Share.from_bytes(data, *agreed)
        text += f", round {share.round!r}, one of this study"
        lines = [*_agreed(share.spec)]
    elif kind is Kind.SHARE:
        text += "; it names no spec: pass --study to check it"
    return "\n  ".join([text, *lines])


def _asked(query: Query) -> str:
    tree = query.tree
    return f"{tree.leaves} leaves, levels of {', '.join(map(str, tree.sizes))}, {query.fraction:g} of epsilon"


def _agreed(spec: Spec) -> Iterator[str]:
    groups = f", groups {', '.join(spec.groups)}" if spec.groups else ""
    yield f"task: {spec.task}, {spec.classes} class{'es' * (spec.classes > 1)}{groups}"
    yield f"grid: {spec.grid.bins} {spec.grid.kind} bins on {list(spec.grid.score_range)}"
    yield f"privacy: {spec.privacy or 'none, exact counts'}"
    yield f"spec: {spec.digest.hex()}"
