"""FederatedMetric: a torchmetrics Metric that has a client. ``update`` counts, one release moves the counts."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor
from typing_extensions import Self

from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.counting.persons import Ids
from torchmetrics_fed.counting.rules import Rules
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange import Plan
from torchmetrics_fed.exchange.queries import check_plan
from torchmetrics_fed.functional.band import Band, check_confidence, warn_if_drowned
from torchmetrics_fed.functional.curve import GridName, Groups, Quantiles, agreed_spec, warn_if_tied
from torchmetrics_fed.functional.source import Source, checked_average, read
from torchmetrics_fed.metrics import guards
from torchmetrics_fed.metrics.persons import PersonsMetric
from torchmetrics_fed.privacy import Privacy, PrivacyLedger
from torchmetrics_fed.reconstruct import Reconstruction
from torchmetrics_fed.release import Release, Spec
from torchmetrics_fed.release.release import no_release
from torchmetrics_fed.typing import Average, MultiClass, Normalization, Task, Validation

_Value = TypeVar("_Value")


class FederatedMetric(PersonsMetric):
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
        *PersonsMetric.__jit_unused_properties__,
        "rules",
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
            agreed_spec(
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
        super().__init__(spec, plan, guards.checked_ledger(ledger), data, meaning, **kwargs)
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
            more = self.rules, self._refusing(), sample_weight, groups
            self._set_counts(self.spec.grid.add(self.counts, preds, target, *more))

    @property
    def rules(self) -> Rules:
        """How a batch is to be read."""
        spec, validate = self.spec, bool(self.validate_args)
        private, groups = spec.privacy.charges, len(spec.groups)
        return Rules(spec.task, spec.normalization, spec.ignore_index, validate, private, groups)

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
