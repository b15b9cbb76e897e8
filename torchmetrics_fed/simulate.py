"""simulate: many clients in one process, for notebooks and papers. Needs no extra."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from torchmetrics_fed.errors import InputError, ReleaseError
from torchmetrics_fed.exchange.cohort import Cohort
from torchmetrics_fed.exchange.plans import make_release
from torchmetrics_fed.functional import auroc_from_counts
from torchmetrics_fed.metrics import CountsMetric, representative, terms_of
from torchmetrics_fed.reconstruct.histograms import read
from torchmetrics_fed.release import Query, Release, ReleaseFlag, Spec, Sum
from torchmetrics_fed.release.wire import pack_text
from torchmetrics_fed.report.progress import Progress

__all__ = ["simulate"]

Batch = Sequence[Tensor] | Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What a federation cannot know: exact areas, each the mean over the classes that have one. Not private."""

    local: float
    """The mean of the clients' own AUROCs, of those that have one."""
    local_weighted: float
    """The same weighted by the clients' examples, as trainers average metrics."""
    pooled: float
    """The AUROC of all clients' examples on the grid, without noise."""
    undefined: int
    """How many clients have no AUROC because they lack positives or negatives."""


@dataclass(frozen=True)
class Simulation:
    """The release that the federation would have, under privacy all that may be published, and of how many clients."""

    release: Release
    clients: int
    comparison: Comparison | None = None


def simulate(
    clients: Iterable[Batch | Iterable[Batch]],
    metric: CountsMetric | MetricCollection,
    *,
    compare: bool = False,
    progress: bool | None = None,
    round: str = "",
    previous: Release | None = None,
) -> Simulation:
    """Return the release of a federation whose clients are all in this process.

    Clients are taken one by one and none is kept, so a generator of them takes no more memory for 100,000 than for one.
    The release has the law that real clients' would have, with the same queries: each adds its counts, and its own draw
    of a share's noise (with :class:`~torchmetrics_fed.CentralDP` this process draws it once, as the trusted party).
    It is marked as simulated: nothing was hidden from this process, and its privacy statement says so.

    A person is at one client, so the release is charged once, to the ledger of ``metric``, after the clients are
    counted. With fewer than ``min_clients`` clients, or if one of them raises, nothing is drawn, charged or opened.

    Args:
        clients: each ``(preds, target)``, with groups ``(preds, target, groups)``, or an iterable of such batches, for
            instance a DataLoader, on any device. A batch can be a mapping of what ``update`` takes, as ``{"preds": ...,
            "target": ..., "persons": ...}``: each client then bounds its own persons' examples.
        metric: one that has counted nothing; it is not changed except for its ledger.
        compare: whether to give the averaged local and the pooled AUROC, too, exact whatever the privacy: for data that
            may be seen.
        progress: whether to count clients on stderr; if not given, where that is a terminal, which a notebook is not.
        round: the round's name, in the release and in the ledger, which charges each name once.
        previous: the release before this one, for ``plan="carry_over"``.

    Example:
        >>> from torchmetrics_fed import FederatedROC
        >>> clients = ((torch.rand(50), torch.randint(0, 2, (50,))) for _ in range(20))
        >>> simulation = simulate(clients, FederatedROC())
        >>> simulation.clients, simulation.release.leaf.sum().item()
        (20, 1000)
        >>> fpr, tpr, thresholds = FederatedROC.from_release(simulation.release).compute()
    """
    template = representative(metric)
    if template.update_called:
        raise InputError(
            "Expected argument `metric` to have counted nothing because only the clients' data is summed, but it has. "
            "Call `reset`, or build another."
        )
    pack_text(round)  # raises for a name that no message can hold, before anything is charged
    terms = terms_of(template)
    spec = terms.spec
    counter = Progress(progress)
    areas = _Areas(spec) if compare else None
    total, own, count = spec.empty_counts(), spec.empty_counts(), 0
    for count, client in enumerate(counter(clients, "counted {} clients"), 1):
        if areas is None:  # counts of one client by itself are nobody's business
            total = _added(template, total, client, count - 1)
        else:
            own = _added(template, own.zero_(), client, count - 1)
            areas.add(own)
            total += own
    needed = spec.clients_needed
    if count < needed:
        raise ReleaseError(
            f"Expected at least {needed} client{'s' * (needed > 1)} but got {count}; nothing was drawn or charged. "
            "Simulate more clients, or ask for fewer with `min_clients`."
        )
    cohort = Cohort(terms, round)
    draws = 1 if spec.privacy.noise_drawn_by == "sum" else count

    def answer(query: Query) -> Sum:
        counted = counter(range(draws), "drew noise for {} clients")
        return cohort.sum(query, total, clients=count, draws=counted)

    release = make_release(terms.plan, spec, answer, previous=previous, round=round)
    release = replace(release, flags=release.flags | ReleaseFlag.SIMULATED)
    return Simulation(release, count, None if areas is None else areas.compared(total))


def _added(template: CountsMetric, counts: Tensor, client: Any, number: int) -> Tensor:
    """Add a client to ``counts``, in place where the grid's kernel can, and return them."""
    spec, own, plain = template.spec, None, False
    names = ("preds_old", "preds_new", "target") if spec.models else ("preds", "target", "groups")
    try:
        for batch in [client] if _is_batch(client) or not isinstance(client, Iterable) else client:
            if not _is_batch(batch):
                raise InputError(
                    "Expected (preds, target), with groups (preds, target, groups), or an iterable of such batches, "
                    f"tensors or a mapping each, but got {type(batch).__name__}."
                )
            named = batch if isinstance(batch, Mapping) else dict(zip(names, batch, strict=False))
            parts = {
                name: part.cpu() if isinstance(part, Tensor) else part
                for name, part in named.items()
            }
            if named is batch or spec.models or spec.privacy.enforced:
                own = own or deepcopy(template)  # for this client's table of persons
                own.validate_args = bool(template.validate_args)
                own.update(**parts)
            else:
                arrays, group, plain = (parts["preds"], parts["target"]), parts.get("groups"), True
                counts = spec.grid.add(
                    counts,
                    *arrays,
                    spec.rules(validates=bool(template.validate_args)),
                    group=group,
                )
            if own is not None and plain:
                raise InputError(
                    "Expected batches of one kind but got tuples and mappings. Name the parts of all."
                )
    except InputError as error:
        raise InputError(f"Client {number}, counted from 0: {error}") from error
    return counts if own is None else counts.add_(own.counts)


def _is_batch(client: Any) -> bool:
    """Whether this is one batch rather than an iterable of some."""
    if isinstance(client, Mapping):
        return "target" in client
    return (
        isinstance(client, tuple | list)
        and len(client) in (2, 3)
        and all(isinstance(x, Tensor) for x in client)
    )


class _Areas:
    """The clients' own areas: their sum, that weighted by examples, and how many clients and examples these are."""

    def __init__(self, spec: Spec) -> None:
        self._exact = Spec(
            spec.task, spec.classes, spec.grid, multi_class=spec.multi_class, groups=spec.groups
        )
        self._sums, self._undefined = torch.zeros(4, dtype=torch.float64), 0

    def add(self, counts: Tensor) -> None:
        area, examples = self._area(counts), int(counts[0].sum())  # any class has seen them all
        if math.isnan(area):
            self._undefined += 1
        else:
            self._sums += torch.tensor([area, area * examples, 1, examples], dtype=torch.float64)

    def compared(self, total: Tensor) -> Comparison:
        """Return the means beside the area of all counts; NaN where nobody has any."""
        local, weighted = (self._sums[:2] / self._sums[2:]).tolist()
        return Comparison(local, weighted, self._area(total), self._undefined)

    def _area(self, counts: Tensor) -> float:
        """The mean over the classes that have both positives and negatives; NaN where none has."""
        source = read(Release.exact(self._exact, counts))
        by_class = source.leaf.reshape(
            -1, *source.leaf.shape[-2:]
        )  # binary tasks have no class axis
        defined = by_class[(by_class.sum(-1) > 0).all(-1)]
        return auroc_from_counts(defined, source.edges).mean().item() if len(defined) else math.nan
