"""simulate: many clients in one process, for notebooks and papers. Needs no extra.

A simulated release has the law of a real one: the same queries, the same sum of counts, and as many
draws of a share's noise as there are clients. It is charged once: a person is at one client.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
"""Scores, targets and groups in this order, or the arguments of ``update`` by name."""

PARTS_OF_ONE_MODEL = ("preds", "target", "groups")
"""The parts of a batch that is a sequence."""

PARTS_OF_TWO_MODELS = ("preds_old", "preds_new", "target")
"""The same for a comparison of two models."""


@dataclass(frozen=True)
class Comparison:
    """Exact AUROCs, which a federation cannot know. They are not private.

    With several classes, each is the mean over the classes that have an AUROC.
    """

    local: float
    """The mean of the clients' AUROCs, over the clients that have one."""
    local_weighted: float
    """The same weighted by the clients' examples, as trainers average metrics."""
    pooled: float
    """The AUROC of all clients' examples on the grid, without noise."""
    undefined: int
    """The number of clients without an AUROC, because they lack positives or negatives."""


@dataclass(frozen=True)
class Simulation:
    """The release that the federation would have, and the number of its clients.

    Under privacy only the release may be published.
    """

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

    Clients are taken one by one and none is kept, so a generator takes no more memory for 100,000
    clients than for one. The release has the law of real clients' releases, with the same queries:
    each client adds its counts and its own draw of a share's noise (with
    :class:`~torchmetrics_fed.CentralDP` this process draws once, as the trusted party). The release
    is marked as simulated: nothing was hidden from this process, and its privacy statement says so.

    A person is at one client, so the release is charged once, to the ledger of ``metric``, after
    the clients are counted. With fewer than ``min_clients`` clients, or if a client raises, nothing
    is drawn, charged or opened.

    Args:
        clients: each ``(preds, target)``, with groups ``(preds, target, groups)``, or an iterable
            of such batches, for instance a DataLoader, on any device. A batch can be a mapping with
            the arguments of ``update``, as ``{"preds": ..., "target": ..., "persons": ...}``: each
            client then bounds its own persons' examples.
        metric: a metric that has counted nothing; only its ledger is changed.
        compare: whether to return the averaged local and the pooled AUROC, too. They are exact
            whatever the privacy: for data that may be seen.
        progress: whether to count clients on stderr. By default it is done if stderr is a terminal,
            which a notebook is not.
        round: the round's name, in the release and in the ledger, which charges each name once.
        previous: the release before this one, for ``plan="carry_over"``.

    Example:
        >>> import torch
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
            "Expected argument `metric` to have counted nothing because only the clients' data is "
            "summed, but it has. Call `reset`, or build another."
        )
    pack_text(round)  # raises for a name that no message can hold, before anything is charged
    terms = terms_of(template)
    counter = Progress(progress)
    population = _count(counter(clients, "counted {} clients"), template, compare)
    needed = terms.spec.clients_needed
    if population.clients < needed:
        noun = "client" if needed == 1 else "clients"
        raise ReleaseError(
            f"Expected at least {needed} {noun} but got {population.clients}; nothing was drawn or "
            "charged. Simulate more clients, or ask for fewer with `min_clients`."
        )
    cohort = _CountedCohort(Cohort(terms, round), population, counter)
    release = make_release(terms.plan, terms.spec, cohort.sum, previous=previous, round=round)
    release = replace(release, flags=release.flags | ReleaseFlag.SIMULATED)
    return Simulation(release, population.clients, population.comparison)


class _Population(NamedTuple):
    """The clients, added up."""

    clients: int
    counts: Tensor
    comparison: Comparison | None


class _CountedCohort(NamedTuple):
    """The clients of a simulation, with their counts and a display of progress."""

    cohort: Cohort
    population: _Population
    counter: Progress

    def sum(self, query: Query) -> Sum:
        """Return the sum of all clients' replies to a query."""
        draws = self.population.clients
        if self.cohort.spec.privacy.noise_drawn_by == "sum":
            draws = 1
        return self.cohort.sum(
            query,
            self.population.counts,
            clients=self.population.clients,
            draws=self.counter(range(draws), "drew noise for {} clients"),
        )


def _count(clients: Iterable[Any], template: CountsMetric, compare: bool) -> _Population:
    """Add up the counts of all clients."""
    spec = template.spec
    total = spec.empty_counts()
    number = 0
    if not compare:  # no client's counts by themselves: nothing needs them
        for client in clients:
            total = _add_client(template, total, client, number)
            number += 1
        return _Population(number, total, None)
    areas = _Areas(spec)
    counts = spec.empty_counts()
    for client in clients:
        counts = _add_client(template, counts.zero_(), client, number)
        areas.add(counts)
        total += counts
        number += 1
    return _Population(number, total, areas.comparison(total))


def _add_client(template: CountsMetric, counts: Tensor, client: Any, number: int) -> Tensor:
    """Add a client to ``counts``, in place where the grid's kernel can, and return them."""
    batches = client
    if _is_batch(client) or not isinstance(client, Iterable):
        batches = [client]
    counting = _ClientCounts(template, counts)
    try:
        for batch in batches:
            counting.add(batch)
    except InputError as error:
        raise InputError(f"Client {number}, counted from 0: {error}") from error
    return counting.total()


class _ClientCounts:
    """Adds one client's batches to counts.

    Plain batches go to the grid directly. Batches with named parts, pairs of scores, and batches
    whose persons are bounded go to a metric of the client, which has the table of its persons.
    """

    def __init__(self, template: CountsMetric, counts: Tensor) -> None:
        self._template = template
        self._counts = counts
        self._metric: CountsMetric | None = None
        self._has_plain_batches = False

    def add(self, batch: Any) -> None:
        if not _is_batch(batch):
            raise InputError(
                "Expected (preds, target), with groups (preds, target, groups), or an iterable of "
                "such batches, tensors or a mapping each, but got "
                f"{type(batch).__name__}."
            )
        if isinstance(batch, Mapping):
            self._update_metric(dict(batch))
        else:
            self._add_sequence(batch)
        if self._metric is not None and self._has_plain_batches:
            raise InputError(
                "Expected batches of one kind but got tuples and mappings. Name the parts of all."
            )

    def total(self) -> Tensor:
        """Return the counts with all batches added."""
        if self._metric is None:
            return self._counts
        return self._counts.add_(self._metric.counts)

    def _add_sequence(self, batch: Sequence[Tensor]) -> None:
        spec = self._template.spec
        if spec.models:
            self._update_metric(dict(zip(PARTS_OF_TWO_MODELS, batch, strict=False)))
            return
        parts = dict(zip(PARTS_OF_ONE_MODEL, batch, strict=False))
        if spec.privacy.enforced:
            self._update_metric(parts)
        else:
            self._add_plain(parts)

    def _update_metric(self, parts: dict[str, Any]) -> None:
        if self._metric is None:
            self._metric = deepcopy(self._template)
        self._metric.validate_args = bool(self._template.validate_args)
        self._metric.update(**_on_cpu(parts))

    def _add_plain(self, parts: dict[str, Any]) -> None:
        spec = self._template.spec
        tensors = _on_cpu(parts)
        self._has_plain_batches = True
        self._counts = spec.grid.add(
            self._counts,
            tensors["preds"],
            tensors["target"],
            spec.rules(validates=bool(self._template.validate_args)),
            group=tensors.get("groups"),
        )


def _on_cpu(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a batch with their tensors on the CPU."""
    on_cpu = dict(parts)
    for name, part in parts.items():
        if isinstance(part, Tensor):
            on_cpu[name] = part.cpu()
    return on_cpu


def _is_batch(client: Any) -> bool:
    """Return whether this is one batch rather than an iterable of batches."""
    if isinstance(client, Mapping):
        return "target" in client
    return (
        isinstance(client, tuple | list)
        and len(client) in (2, 3)
        and all(isinstance(part, Tensor) for part in client)
    )


class _Areas:
    """The AUROCs of single clients, added up, plain and weighted by examples."""

    def __init__(self, spec: Spec) -> None:
        self._exact_spec = Spec(
            spec.task,
            spec.classes,
            spec.grid,
            multi_class=spec.multi_class,
            groups=spec.groups,
        )
        self._sum = 0.0
        self._weighted_sum = 0.0
        self._clients = 0
        self._examples = 0
        self._undefined = 0

    def add(self, counts: Tensor) -> None:
        """Add the AUROC of one client."""
        auroc = self._auroc(counts)
        if math.isnan(auroc):
            self._undefined += 1
            return
        examples = int(counts[0].sum())  # each class has counted every example
        self._sum += auroc
        self._weighted_sum += auroc * examples
        self._clients += 1
        self._examples += examples

    def comparison(self, total: Tensor) -> Comparison:
        """Return the means beside the AUROC of all counts; NaN if no client has an AUROC."""
        return Comparison(
            local=_ratio(self._sum, self._clients),
            local_weighted=_ratio(self._weighted_sum, self._examples),
            pooled=self._auroc(total),
            undefined=self._undefined,
        )

    def _auroc(self, counts: Tensor) -> float:
        """Return the mean over classes with positives and negatives; NaN if there is none."""
        histograms = read(Release.exact(self._exact_spec, counts))
        # binary tasks have no axis of classes
        by_class = histograms.leaf.reshape(-1, *histograms.leaf.shape[-2:])
        has_both = (by_class.sum(-1) > 0).all(-1)
        defined = by_class[has_both]
        if len(defined) == 0:
            return math.nan
        return auroc_from_counts(defined, histograms.edges).mean().item()


def _ratio(numerator: float, denominator: int) -> float:
    if denominator == 0:
        return math.nan
    return numerator / denominator
