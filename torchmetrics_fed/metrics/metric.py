"""FederatedMetric: a torchmetrics Metric that has a client. ``update`` counts, one release moves the counts."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import Self

from torchmetrics_fed.aggregation import Alone, Ranks
from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.persons import Ids, Persons
from torchmetrics_fed.counting.rules import Rules
from torchmetrics_fed.errors import InputError, ReleaseError
from torchmetrics_fed.exchange import Plan
from torchmetrics_fed.exchange.client import Client, SharedClient
from torchmetrics_fed.exchange.queries import check_plan, first_query
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.functional.band import Band, check_confidence, warn_if_drowned
from torchmetrics_fed.functional.curve import Quantiles, warn_if_tied
from torchmetrics_fed.functional.figures.canvas import Labels, Score
from torchmetrics_fed.functional.figures.page import caption, provenance
from torchmetrics_fed.functional.source import Source, checked_average, read
from torchmetrics_fed.metrics import guards
from torchmetrics_fed.metrics.counts import CountsMetric
from torchmetrics_fed.metrics.persons import PersonsInCounts
from torchmetrics_fed.privacy import Privacy, PrivacyLedger
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.release import Query, Release, Share, Spec
from torchmetrics_fed.release.release import no_release
from torchmetrics_fed.typing import (
    Average,
    GridName,
    Groups,
    MultiClass,
    Normalization,
    Task,
    Validation,
)

_Value = TypeVar("_Value")


class FederatedMetric(CountsMetric):
    """Base of every metric here: ``update`` adds counts, one release moves them, ``compute`` reads the release.

    Args:
        task: ``"binary"``, ``"multiclass"`` (each class against the rest) or ``"multilabel"``.
        num_classes: for multi-class tasks.
        num_labels: for multi-label tasks.
        average: over classes or labels: None, ``"micro"``, ``"macro"`` or ``"weighted"``, as far as the metric has it.
        multi_class: ``"ovo"`` counts the scores of each class for every true class by itself, which also answers
            one-vs-one questions, at the same sensitivity.
        quantiles: the paper's Q, the one resolution knob: Q quantiles need ``2 ** (ceil(log2(Q)) + 2)`` bins.
        grid: ``"two_sided"``, bins on [0, 1] that narrow towards both ends, where confident networks and rare events
            have their scores; ``"even"``, the paper's bins; or a :class:`~torchmetrics_fed.ScoreGrid`, which brings its
            own resolution, range or edges. Binning is exact in every floating dtype. Scores outside are refused.
        normalization: ``"sigmoid"``, or ``"softmax"`` for multi-class tasks, if scores are logits. Never guessed. A
            two-sided grid then tells logits apart that float32 probabilities cannot.
        ignore_index: target value of examples to leave out.
        groups: names of groups of examples, or their number. Each example is in one of them; ``compute`` answers for
            everybody, :meth:`by_group` for each group, from one release and at the same sensitivity.
        labels: what the label columns of a study's tables hold, in the order 0, 1, ...; all parties agree on it.
        privacy: None for exact counts, or :class:`~torchmetrics_fed.DistributedDP`,
            :class:`~torchmetrics_fed.LocalDP`, :class:`~torchmetrics_fed.CentralDP`: what leaves this process is noisy
            then, is made once per data, and is charged to ``ledger``.
        secure: with ``privacy=None``, whether counts may only travel through secure aggregation.
        plan: under privacy, which queries a release takes. ``"adaptive"``: two, the first of which places the leaves of
            the second. ``"single"``: one, for any data. ``"carry_over"``: one, placed by the release before the last
            ``reset``. ``"paper"``: every level of the binary tree. A :class:`~torchmetrics_fed.Query`: that. If not
            given, ``"adaptive"`` where the aggregator can ask twice, else ``"single"``.
        reconstruction: how curves are read from a release, for comparisons with the paper.
        ledger: where releases are charged; one in memory, without budget, if not given.
        data: the name of the data in the ledger.
        confidence: for metrics that have bands, the probability that the band holds the curve, or the interval the
            area, of all clients' exact scores; ``plot`` then shades it. Several classes have one each, so leave them
            without average.
        validate_args: whether ``update`` checks the values of scores and targets, at the price of one wait for the
            device. ``"deferred"``: it does not wait. Examples that cannot be counted never are, and ``compute``,
            ``release`` and ``share`` raise on all ranks if there were any, before anything leaves.
        kwargs: torchmetrics' own, for instance ``process_group`` or ``dist_sync_fn``.

    Example:
        >>> from torchmetrics_fed import FederatedAUROC, FederatedMetric
        >>> metric = FederatedAUROC("multilabel", num_labels=3, quantiles=64)
        >>> isinstance(metric, FederatedMetric), metric.counts.shape
        (True, torch.Size([3, 2, 256]))
    """

    __jit_unused_properties__: ClassVar[list[str]] = [
        *CountsMetric.__jit_unused_properties__,
        "rules",
        "terms",
        "bound_enforced",
        "left_out",
        "_table",
    ]
    short_name: str = ""
    """What collections call it."""
    scalar_names: tuple[str, ...] = ()
    """The scalars that what ``compute`` returns has, unless it is a number itself."""
    averages: tuple[Average, ...] = ("micro", "macro")
    """The averages that this metric has."""
    default_average: Average | None = None
    bands_of: ClassVar[Any] = None
    """The function that makes confidence bands of a release, if this metric has them."""
    result: ClassVar[Any] = None
    """The curve that ``compute`` returns, a named tuple that knows its figure."""

    def __init__(
        self,
        task: Task = "binary",
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: Average | Literal["default"] | None = "default",
        multi_class: MultiClass = "ovr",
        quantiles: int = 1024,
        grid: GridName | ScoreGrid = "two_sided",
        normalization: Normalization | None = None,
        ignore_index: int | None = None,
        groups: Groups = None,
        labels: Sequence[str] = (),
        privacy: Privacy | None = None,
        secure: bool = False,
        plan: Plan = None,
        reconstruction: Reconstruction | None = None,
        ledger: PrivacyLedger | None = None,
        data: str = "data",
        confidence: float | None = None,
        validate_args: Validation = True,
        **kwargs: Any,
    ) -> None:
        guards.refuse_others(kwargs)
        spec = self._extended(
            Spec.build(
                task,
                num_classes=num_classes,
                num_labels=num_labels,
                multi_class=multi_class,
                quantiles=quantiles,
                grid=grid,
                normalization=normalization,
                ignore_index=ignore_index,
                privacy=privacy,
                secure=secure,
                groups=groups,
                labels=labels,
            )
        )
        check_plan(plan, spec)
        if not isinstance(validate_args, bool) and validate_args != "deferred":
            raise InputError(
                f'Expected argument `validate_args` to be True, False or "deferred" but got {validate_args!r}.'
            )
        meaning = validate_args == "deferred"
        super().__init__(spec, meaning, **kwargs)
        self.plan = plan
        self.ledger = guards.checked_ledger(ledger)
        self.data = data
        self.shared = SharedClient()
        self._client: Client | None = None
        self._persons = PersonsInCounts(spec.privacy)
        self._part: Release | None = None
        """The group's release that is read at the moment."""
        if average == "default":
            average = None if task == "binary" else self.default_average
        self.average: Average | None = checked_average(average, self.averages, task)
        self.reconstruction = Reconstruction.sized(reconstruction, quantiles)
        self.reconstruction.check_grid(spec.grid)
        self.validate_args = validate_args
        self.confidence = confidence
        self._warned = False  # of ties that its bins make; once is enough
        if confidence is not None:
            self._check_bands(confidence)

    @classmethod
    def from_release(cls, release: Release, **options: Any) -> Self:
        """Return a metric that reads ``release``: ``compute`` and ``plot`` work, ``update`` needs a ``reset`` first.

        Options are what shapes the answer, for instance ``reconstruction``; the rest comes from the release.
        """
        if not isinstance(release, Release):
            raise no_release(release)
        metric = cls._like(release.spec, options)
        release.spec.check(metric.spec)
        metric._given = release
        return metric

    @classmethod
    def _like(cls, spec: Spec, options: dict[str, Any]) -> Self:
        options.setdefault("quantiles", max(spec.grid.bins // 4, 2))
        options |= {
            "grid": spec.grid,
            "secure": spec.secure,
            "privacy": spec.privacy,
            "groups": spec.groups or None,
            "labels": spec.labels,
            "normalization": spec.normalization,
            "ignore_index": spec.ignore_index,
        }
        if spec.task != "binary":
            name = "num_classes" if spec.task == "multiclass" else "num_labels"
            options |= {name: spec.classes, "multi_class": spec.multi_class}
        return cls(spec.task, **options)

    def update(
        self,
        preds: Tensor,
        target: Tensor,
        groups: Tensor | None = None,
        *,
        sample_weight: Tensor | None = None,
        persons: Ids | None = None,
    ) -> None:
        """Count a batch. One that is refused changes nothing.

        Args:
            preds: scores of any floating dtype: any shape for binary tasks, ``(N, classes, ...)`` for others.
            target: 0 or 1 for each score, or for multi-class tasks the class of each of N (bool, any int, or floats
                that are whole numbers), or ``ignore_index``. No one-hot target.
            groups: integers, the group of each example, for metrics that have groups.
            sample_weight: integers, how often each example counts, for exact metrics without ``confidence``.
            persons: under privacy the person of each of N, or of each position, integers or strings, read on the
                host: the first ``examples_per_person`` of each are counted, and the rest is :attr:`left_out`.
        """
        if sample_weight is not None:
            guards.refuse_weights(self.spec.privacy.charges, self.confidence)
        with self._admitted(persons, preds, target, groups) as (preds, target, groups):
            counts = self.spec.grid.add(
                self.counts,
                preds,
                target,
                rules=self.rules,
                refused=self._refusing(),
                weight=sample_weight,
                group=groups,
            )
            self._set_counts(counts)

    @property
    def rules(self) -> Rules:
        """How a batch is to be read."""
        spec = self.spec
        return Rules(
            task=spec.task,
            normalization=spec.normalization,
            ignore_index=spec.ignore_index,
            validate=bool(self.validate_args),
            private=spec.privacy.charges,
            groups=len(spec.groups),
        )

    @abstractmethod
    def compute(self) -> Any:
        """Return the metric of all ranks' counts."""

    def release(self) -> Release:
        """Return the release of all ranks, which every answer is read from; under privacy it is made once."""
        with self._summed():
            return self._source()

    def by_group(self) -> dict[str, Any]:
        """Return what :meth:`compute` would for each group alone, by name, from the same release."""
        if not self.spec.groups:
            raise InputError(
                f"Expected a metric with `groups`, as in {type(self).__name__}(groups=3), but got none."
            )
        with self._summed():
            return {name: self._of_part(part) for name, part in self._source().by_group.items()}

    def quantile(self, q: float | Sequence[float] | Tensor) -> Quantiles:
        """Return the scores at or below which a fraction ``q`` of each class lies, from the tree, as in the paper."""
        fractions = torch.as_tensor(q, dtype=torch.float64, device="cpu")
        if not bool(((fractions >= 0) & (fractions <= 1)).all()):
            raise InputError(f"Expected argument `q` to be fractions from 0 to 1 but got {q}.")
        with self._summed():
            scores = self._read().quantiles(fractions)
        rows = scores.movedim(-1 - fractions.ndim, 0)
        return self._answer(Quantiles(rows[0], rows[1]))

    def band(self, population: bool = False) -> Band:
        """Return the band that holds the exact curve, or the ``population``'s, with the metric's ``confidence``."""
        confidence = self._asked_confidence()  # which a metric without bands does not take
        band: Band = self.bands_of(self.release(), confidence, population)
        return self._answer(band)

    def plot(
        self,
        curve: Sequence[Any] | None = None,
        score: Score = None,
        ax: Any = None,
        *,
        label: str | None = None,
        labels: Labels = None,
    ) -> Any:
        """Draw ``curve``, or the one :meth:`compute` returns with its band, and return ``(fig, ax)``.

        Args:
            curve: what :meth:`compute` returned, or a plain tuple of the same, for instance torchmetrics' own.
            score: what the legend shows beside the name; False for nothing, the curve's own if True or not given.
            ax: axes to draw on; new ones if not given.
            label: name in the legend, which tells several models on the same axes apart.
            labels: names of the classes.

        Example:
            >>> import torch
            >>> from torchmetrics_fed import FederatedROC
            >>> metric = FederatedROC()
            >>> metric.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0, 1, 0, 1]))
            >>> fig, ax = metric.plot(label="ours")
            >>> fig, ax = metric.plot(([0, 0, 1], [0, 1, 1], [1, 0.5, 0]), score=False, ax=ax, label="theirs")
            >>> [text.get_text() for text in ax.get_legend().get_texts()]
            ['chance', 'ours (AUROC 0.7500)', 'theirs']
        """
        if curve is not None:
            return self._given_curve(curve).plot(score, ax, label, labels)
        with self._summed():
            band = {} if self.confidence is None else {"band": self.band()}
            fig, ax = type(self).compute(self).plot(score, ax, label, labels, **band)
        caption(ax, provenance(self.spec.privacy, self.confidence), label)
        return fig, ax

    def _given_curve(self, curve: Sequence[Any]) -> Any:
        fields = self.result._fields
        if not isinstance(curve, list | tuple) or len(curve) != len(fields):
            got = (
                f"{len(curve)} values" if isinstance(curve, list | tuple) else type(curve).__name__
            )
            raise InputError(
                f"Expected argument `curve` to be what `compute` returned, ({', '.join(fields)}), but got {got}. For "
                "several curves call `plot` several times, with the same `ax`."
            )
        return self.result(*map(_stacked, curve))

    def share(self, *, round: str = "", query: Query | None = None) -> Share:
        """Return this client's answer to a query. Ranks of one client (its ``process_group``) are summed first.

        Under privacy the answer is drawn once, and its release charged once: asked again, in the same round, it is the
        very same one. Where shares may only travel through secure aggregation this raises; use :meth:`mask`.

        Args:
            round: the round that the aggregator has opened, if it has; only shares of one round add up.
            query: what the aggregator asks; the first query of this metric's own plan if not given.
        """
        return self._answering().share(
            self.counts, query or first_query(self.plan, self.spec), round, self._ranks()
        )

    def mask(
        self,
        client: SecureAggregationClient,
        boxes: bytes,
        *,
        round: str = "",
        query: Query | None = None,
    ) -> bytes:
        """Return this client's answer, masked for one secure aggregation: the message that the server waits for.

        Noise is drawn and the ledger charged only when the protocol has checked everything else. An answer enters one
        aggregation; a retry after masking is a new round, drawn and charged again.

        Args:
            client: this client's side of the aggregation, after ``share_keys``.
            boxes: the server's ciphertexts for this client.
            round: as in :meth:`share`, and likewise ``query``.
        """
        answering = self._answering()
        ranks = self._ranks()
        if not isinstance(ranks, Alone):
            raise ReleaseError(
                "Expected one process for secure aggregation but this client has ranks. Add their counts up in one "
                "metric with `merge_state`, outside of the process group."
            )
        return answering.mask(
            self.counts, client, boxes, query or first_query(self.plan, self.spec), round, ranks
        )

    def suspend(self) -> bytes:
        """Return this client with its raw counts, for a node that is asked the second query in a new process.

        Keep it where this user alone may read it, erase it when the round is over, and send it nowhere.
        """
        return self._answering().to_bytes(self.counts)

    def resume(self, note: bytes) -> None:
        """Continue the client that :meth:`suspend` returned. What was answered before is refused."""
        client, counts = Client.from_bytes(note, self.terms)
        self.reset()
        self._client = client
        self.counts = counts.to(self.counts.device)
        self._update_count = 1

    def charge_to(self, ledger: PrivacyLedger) -> None:
        """Charge releases to another ledger from now on; raises once something of this data was drawn."""
        client = self._current_client()
        if client is not None:
            client.check("update")
        self.ledger = ledger
        if client is not None:
            client.terms = self.terms

    def check_ledger(self) -> None:
        """Raise unless a server may decide how often this metric is asked: a private one needs a limit that lasts."""
        if self.spec.privacy.charges:
            self.ledger.check_lasting()

    def reset(self) -> None:
        """Forget counts, persons and release. The ledger keeps what was spent."""
        super().reset()
        self.shared.close(self._client)
        self._client = None
        self._given = None
        self._persons.table = None

    @property
    def terms(self) -> Terms:
        """What this metric tells the exchange."""
        return Terms(self.spec, self.plan, self.ledger, self.data)

    @property
    def bound_enforced(self) -> bool:
        """Whether all batches came with ids, so that nobody has more than ``examples_per_person`` in these counts."""
        table = self._table
        return table is not None and table.batches == self._update_count > 0

    @property
    def left_out(self) -> int:
        """How many examples were not counted because their person had enough. It is not private: keep it here."""
        table = self._table
        return 0 if table is None else table.left_out

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the counts of another metric that counts the same; with ids, of no person too many."""
        table = self._persons.merged(
            self._table,
            self._update_count,
            other=getattr(incoming_state, "_table", None),
            other_updates=getattr(incoming_state, "_update_count", 1),
        )
        super().merge_state(incoming_state)
        self._persons.table = table

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo every update inside if there is an error."""
        counts = self.counts.clone()
        refused = self.refused.clone()
        updates = self._update_count
        table = deepcopy(self._table)
        try:
            yield
        except Exception:
            self.counts = counts
            self.refused = refused
            self._update_count = updates
            self._persons.table = table
            client = self._current_client()
            if client is not None:
                client.persons = table
            raise

    def extra_repr(self) -> str:
        """Settings and what was spent; never counts."""
        text = f"{self.spec.task}, {self.spec.grid.bins} bins"
        return (
            text if not self.spec.privacy.charges else f"{text}, {self.spec.privacy}, {self.ledger}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle, without persons. Under privacy a release travels, raw counts stay behind."""
        state = super().__getstate__()
        state["_persons"] = PersonsInCounts(self.spec.privacy)
        client = self._current_client()
        if self.spec.privacy.charges and client is not None:
            state["_client"] = client.without_counts(state["counts"])
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with counts of its own. A copy that holds private data shares the client, so it cannot draw again."""
        return self._copied(memo, _client=self._current_client(), ledger=self.ledger)

    def _source(self) -> Release:
        """The release that answers are read from: the one given, the one made, or the exact counts as they are now."""
        if self._part is not None:
            return self._part
        if self._given is not None:
            return self._given
        client = self._current_client()
        if client is not None and client.release is not None:
            client.check_unchanged(self.counts)
            return client.release
        if not self.spec.privacy.charges:
            return Release.exact(self.spec, self.counts, self._parties if self._is_synced else 1)
        raise ReleaseError(
            "Expected a release to compute from but the sum over ranks is switched off here."
        )

    def _of_part(self, part: Release) -> Any:
        """What ``compute`` returns for one group."""
        self._part = part
        try:
            return type(self).compute(self)  # without summing over ranks again
        finally:
            self._part = None

    def _released(self) -> Release | None:
        """Return the release that was given or made, if there is one."""
        if self._given is not None:
            return self._given
        client = self._current_client()
        return None if client is None else client.release

    def _publish(self, ranks: Ranks) -> None:
        self._joined().publish(self.counts, self.shared.previous, self.update_called, ranks)

    def _begin_update(self) -> None:
        """Make sure that data can be added, and where shares are noisy or hidden that it belongs to a client."""
        if self._given is not None:
            raise ReleaseError(
                "Expected no update of a metric that was made from a release: its data is elsewhere. Call `reset` "
                "first."
            )
        if self.spec.privacy.charges and self._current_client() is None:
            guards.warn_of_several_releases(self)
        if self.spec.privacy.charges or self.spec.hides_shares or self._client is not None:
            self._joined().check("update")

    def _current_client(self) -> Client | None:
        """The client that this metric's data belongs to. In a compute group only the leader is updated and joins."""
        return self._client or self.shared.client

    def _joined(self) -> Client:
        """The client that this metric's data belongs to, begun if there is none."""
        self._client = self._current_client() or self.shared.begun(self.terms)
        return self._client

    def _answering(self) -> Client:
        """The client that answers queries."""
        if self._given is not None:
            raise ReleaseError(
                "Expected a client's metric but this one was made from a release, which has no share."
            )
        self._check_local()
        return self._joined()

    def _admitted(self, persons: Ids | None, *batch: Any) -> Any:
        """What may be counted of scores, targets and more, in an update that ``_update_count`` counts already."""
        rules = Rules(
            task=self.spec.task,
            ignore_index=self.spec.ignore_index,
            validate=bool(self.validate_args),
        )
        return self._persons.admitted(
            persons,
            batch,
            updates=self._update_count,
            columns=len(self.counts),
            rules=rules,
            client=self._joined,
        )

    def _ranks(self, *settings: Any) -> Ranks:
        persons = self._table
        if persons is None and not self._update_count:
            persons = Persons(1)  # nobody
        return replace(super()._ranks(*settings), persons=persons)

    @property
    def _table(self) -> Persons | None:
        """The table of all persons in the counts, if batches came with ids."""
        return self._persons.complete(self._current_client(), self._update_count)

    def _extended(self, spec: Spec) -> Spec:
        return spec  # with what else a kind of metric agrees on, before anything else is set

    def _check_bands(self, confidence: float) -> None:
        check_confidence(confidence)
        if self.bands_of is None:
            raise InputError(
                f"Expected no `confidence` because {type(self).__name__} has no bands. Leave it out."
            )
        if self.average is not None or self.spec.multi_class == "ovo":
            raise InputError(
                "Expected `average=None` and no one-vs-one counts with `confidence` but got "
                f"average={self.average!r}, multi_class={self.spec.multi_class!r}. Each class has its own band."
            )

    def _asked_confidence(self) -> float:
        if self.confidence is None:
            raise InputError(
                "Expected a metric built with `confidence`, as in FederatedROC(confidence=0.95), but this one, a "
                f"{type(self).__name__}, has none. For any metric there is `functional.roc_band(metric.release())`."
            )
        return self.confidence

    def _read(self) -> Source:
        """The histograms that answers are read from."""
        release = self._source()
        source = read(release, reconstruction=self.reconstruction)
        if self.spec.privacy.charges:
            warn_if_drowned(release, self.average)
        elif not self.update_called:  # a private release without data is refused
            guards.warn_before_update(type(self).__name__)
        elif not self._warned:
            self._warned = warn_if_tied(source, self.spec.grid)
        return source

    def _answer(self, value: _Value) -> _Value:
        """The tensors of a value, itself or in a tuple of such, on the metric's device and in its dtype."""
        if isinstance(value, Tensor):
            return cast(_Value, value.to(self.device, self.dtype))
        make: Any = getattr(value, "_make", tuple)
        return cast(_Value, make(map(self._answer, value))) if isinstance(value, tuple) else value


def _stacked(values: Any) -> Tensor:
    """Values as one tensor. Where each class has points of its own, the shorter ones stay at their last point."""
    if not isinstance(values, list | tuple) or not any(isinstance(row, Tensor) for row in values):
        return torch.as_tensor(values)
    longest = max(map(len, values))
    return torch.stack([torch.cat([row, row[-1:].expand(longest - len(row))]) for row in values])
