"""The server's part: FederatedMetricAggregator, for curves or for a comparison of two models."""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.aggregators import weighted_aggregation_helper as means
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from torchmetrics_fed.comparison import FederatedModelComparison
from torchmetrics_fed.comparison.metric import comparison_spec
from torchmetrics_fed.comparison.plan import TABLES
from torchmetrics_fed.counting.grid import ScoreGrid
from torchmetrics_fed.errors import (
    DuplicateClientError,
    FederatedMetricError,
    InputError,
    ReleaseError,
    WireError,
)
from torchmetrics_fed.exchange import Coordinator, PlanName, Terms, plan_from
from torchmetrics_fed.exchange.request import Request
from torchmetrics_fed.exchange.stages import (
    BrokenOffError,
    Requests,
    ask_release,
    release_stages,
)
from torchmetrics_fed.integrations.nvflare.client import HELD, META_KEY, TOPIC, round_name
from torchmetrics_fed.metrics import CountsMetric, FederatedPrecisionRecallCurve, FederatedROC
from torchmetrics_fed.privacy import Privacy
from torchmetrics_fed.release import Release, Spec
from torchmetrics_fed.report.scalars import release_scalars
from torchmetrics_fed.typing import GridName, Groups, MultiClass, Normalization, Task

_log = logging.getLogger("torchmetrics_fed")
_SCALARS = "global_auroc", "global_average_precision"


class FederatedMetricAggregator(ModelAggregator):
    """Averages models as FedAvg does, and makes one release per round of the attached data.

    The model that clients evaluate is the one they received. Its ``global_auroc`` and
    ``global_average_precision`` are in the ``metrics`` of what is aggregated, and when
    ``key_metric`` is the best so far, NVFlare saves that model as the best. Pass ``key_metric=""``
    to the recipe: its own selector averages what clients measured alone, and would overrule this
    one.

    Shares come with the models. Where sites hold their data instead, by a
    :class:`FederatedMetricFilter`, they are asked once all models are in. What cannot be added is
    left out and its sender logged. Too few shares: no curve in this round, and training goes on.

    With ``models`` the sites evaluate two models on the same examples, each with a
    ``FederatedModelComparison``. Its numbers, such as ``global_difference``, are among the metrics
    then, and no best model is chosen.

    Args:
        task: as in the clients' metrics, and likewise all up to ``secure``.
        models: the names of two models to compare; then without ``task``, classes, labels and
            ``groups``.
        thresholds: of each of these models, the score from which on it calls an example positive.
        plan: which queries a release takes; one where sites have no filter, because then nobody can
            ask again.
        min_clients: fewest shares that are opened; under privacy at least its own ``min_clients``.
        max_examples: the most examples that one client can have; whoever claims more is left out.
        stage_timeout: seconds to wait for the sites in each stage.
        threshold: the number of sites that must stay to the end of an aggregation; more than two
            thirds if not given. Fewer survive more dropouts, and leave less of a margin against
            sites that work with the server.
        folder: for the releases: inside the job's run folder, or an absolute path, to which the
            job's id is added.
        figures: whether to draw the curves of every round there, too; needs matplotlib.
        key_metric: what the best model is chosen by, or None.
        aggregation_weights: factors of clients' weights, by name; the recipe ignores its own beside
            an aggregator.
        exclude_vars: regular expression of parameters to leave out, likewise.

    Example:
        >>> FederatedMetricAggregator(quantiles=256).spec.grid.bins
        1024
        >>> FederatedMetricAggregator(models=("old", "new")).spec.models
        ('old', 'new')
    """

    # NVFlare writes a component's arguments to JSON and builds it again on the server: every
    # argument is kept as an attribute of the same name, and none is hidden in keywords.
    def __init__(
        self,
        task: Task = "binary",
        num_classes: int | None = None,
        num_labels: int | None = None,
        multi_class: MultiClass = "ovr",
        quantiles: int = 1024,
        grid: GridName | ScoreGrid = "two_sided",
        normalization: Normalization | None = None,
        ignore_index: int | None = None,
        labels: Sequence[str] = (),
        labels_per_example: int | None = None,
        sums_to_one: bool | None = None,
        groups: Groups = None,
        models: Sequence[str] | None = None,
        thresholds: Sequence[float] = (0.5, 0.5),
        privacy: Privacy | None = None,
        secure: bool = False,
        plan: PlanName | None = None,
        min_clients: int = 1,
        max_examples: int | None = None,
        stage_timeout: float = 60.0,
        threshold: int | None = None,
        folder: str = "torchmetrics_fed",
        figures: bool = False,
        key_metric: str | None = "global_auroc",
        aggregation_weights: Mapping[str, float] | None = None,
        exclude_vars: str | None = None,
    ) -> None:
        super().__init__()
        if key_metric is not None and key_metric not in _SCALARS:
            raise InputError(
                f"Expected `key_metric` to be None or one of {_SCALARS} but got {key_metric!r}."
            )
        self.task = task
        self.num_classes = num_classes
        self.num_labels = num_labels
        self.multi_class = multi_class
        self.quantiles = quantiles
        self.grid = grid
        self.normalization = normalization
        self.ignore_index = ignore_index
        self.labels = labels
        self.labels_per_example = labels_per_example
        self.sums_to_one = sums_to_one
        self.groups = groups
        self.models = models
        self.thresholds = thresholds
        self.privacy = privacy
        self.secure = secure
        self.plan = plan
        self.min_clients = min_clients
        self.max_examples = max_examples
        self.stage_timeout = stage_timeout
        self.threshold = threshold
        self.folder = folder
        self.figures = figures
        self.key_metric = key_metric
        self.aggregation_weights = aggregation_weights
        self.exclude_vars = exclude_vars
        self._terms = self._agreed_terms()
        self.spec = self._terms.spec
        # raises now rather than after the first training
        coordinator = Coordinator(
            self._terms, round="", min_clients=min_clients, threshold=threshold
        )
        if self.spec.hides_shares:
            coordinator.config_for()
        self._lock = Lock()
        self._best = -math.inf
        self._previous: Release | None = None
        self.reset_stats()

    def _agreed_terms(self) -> Terms:
        """Return what the server and the sites agree on."""
        if self.models is None:
            spec = Spec.build(
                self.task,
                num_classes=self.num_classes,
                num_labels=self.num_labels,
                multi_class=self.multi_class,
                quantiles=self.quantiles,
                grid=self.grid,
                normalization=self.normalization,
                ignore_index=self.ignore_index,
                labels=self.labels,
                labels_per_example=self.labels_per_example,
                sums_to_one=self.sums_to_one,
                groups=self.groups,
                privacy=self.privacy,
                secure=self.secure,
            )
            return Terms(spec, plan_from(self.plan, spec))
        classes = (self.num_classes, self.num_labels, self.groups)
        if self.task != "binary" or classes != (None, None, None):
            raise InputError(
                f"Expected argument `models` to be None for a {self.task} task or groups but got "
                f"{self.models!r}. Two models are compared in a binary task: leave out `task`, "
                "`num_classes`, `num_labels` and `groups`."
            )
        spec = comparison_spec(
            self.models,
            self.thresholds,
            grid=self.grid,
            normalization=self.normalization,
            ignore_index=self.ignore_index,
            labels=self.labels,
            privacy=self.privacy,
            secure=self.secure,
        )
        return Terms(spec, plan_from(self.plan, spec, TABLES))

    def reset_stats(self) -> None:
        self._params = means.WeightedAggregationHelper(exclude_vars=self.exclude_vars)
        self._params_type = None
        self._metrics = means.WeightedAggregationHelper()
        self._all_have_metrics = True
        self._coordinator: Coordinator | None = None
        self._holding: set[str] = set()

    def accept_model(self, model: FLModel) -> None:
        """Add a client's model to the mean, and its share to the sum."""
        meta = model.meta or {}
        client = str(meta.get("client_name") or AppConstants.CLIENT_UNKNOWN)
        with self._lock:
            self._average(
                model,
                client,
                _weight(meta) * float((self.aggregation_weights or {}).get(client, 1.0)),
            )
            try:
                self._add(meta.get(META_KEY), client)
            except FederatedMetricError as error:
                self.warning(f"The share of {client} is left out of {self._open_round}: {error}")

    def aggregate_model(self) -> FLModel:
        """Return the mean of the models, with the metrics of the sum of the shares."""
        with self._lock:
            metrics = self._metrics.get_result() if self._all_have_metrics else {}
            metrics |= self._release()
            model = FLModel(
                params=self._params.get_result(),
                params_type=self._params_type,
                metrics=metrics or None,
                current_round=self._number,
            )
            self.reset_stats()
            return model

    def _average(self, model: FLModel, client: str, weight: float) -> None:
        self._params_type = self._params_type or model.params_type
        self._params.add(model.params, weight, client, self._number)
        self._all_have_metrics &= model.metrics is not None
        # a client's number must not stand in for that of the sum in a round without a curve
        metrics = {
            name: value
            for name, value in means.filter_aggregatable_metrics(model.metrics).items()
            if not name.startswith("global_")
        }
        self._metrics.add(metrics, weight, client, self._number)

    def _add(self, data: Any, client: str) -> None:
        if not isinstance(data, bytes):
            raise WireError(
                f"Expected bytes in meta[{META_KEY!r}], by `attach`, but got {type(data).__name__}."
            )
        is_held = data == HELD
        if self._coordinator is None:
            self._coordinator = self._new_coordinator(asks=is_held or self.spec.hides_shares)
        if not is_held:
            self._coordinator.receive(client, data)  # NVFlare has authenticated the sender
        elif client in self._holding:
            raise DuplicateClientError(f"Expected one model of {client} but this is another.")
        else:
            self._holding.add(client)

    def _new_coordinator(self, *, asks: bool) -> Coordinator:
        """Return the coordinator of the round.

        ``asks`` is whether sites hold their data and are asked for it.
        """
        name = self._open_round
        if asks:
            # a name of its own even in the simulator, where all jobs are called the same
            name = f"{name}/{secrets.token_hex(8)}"
        return Coordinator(
            self._terms,
            round=name,
            can_ask_again=asks,
            previous=self._previous,
            min_clients=self.min_clients,
            max_examples=self.max_examples,
            threshold=self.threshold,
        )

    def _ask(self, requests: Requests) -> dict[str, bytes | FederatedMetricError]:
        """Ask each site, and return the replies of those that were not silent."""
        # one message for each site: NVFlare 2.9 loses every request of its multicast
        with ThreadPoolExecutor(max_workers=len(requests)) as pool:
            replies = list(pool.map(self._ask_site, requests, requests.values()))
        return {
            site: reply for site, reply in zip(requests, replies, strict=True) if reply is not None
        }

    def _ask_site(self, site: str, request: Request) -> bytes | FederatedMetricError | None:
        """Return a site's reply, or the error that says why there is none.

        None if the site is silent.
        """
        message = Shareable()
        message.update(request.fields)
        context = self.fl_ctx
        replies = context.get_engine().send_aux_request(
            [site], TOPIC, message, self.stage_timeout, context, optional=True
        )
        reply = (replies or {}).get(site, make_reply(ReturnCode.TIMEOUT))
        code = reply.get_return_code(ReturnCode.OK)
        if code == ReturnCode.TIMEOUT:
            return None
        answer = reply.get("answer")
        if isinstance(answer, bytes):
            return answer
        return ReleaseError(str(reply.get("error", f"NVFlare says {code}.")))

    def _release(self) -> dict[str, float]:
        """Keep the release and return its scalars; none if too few shares have come."""
        try:
            if self._coordinator is None:
                raise ReleaseError("Expected at least one share but got none.")
            if self._holding:
                ask_release(
                    release_stages(
                        self._coordinator, self._holding, place=self._open_round, log=_log
                    ),
                    self._ask,
                )
            else:
                self._coordinator.advance()
            release = self._coordinator.release
        except FederatedMetricError as error:
            self.warning(f"No curve for {self._open_round}: {error}")
            if isinstance(error, BrokenOffError):
                self._write_partial(error.release)
            return {}
        self._previous = release
        scalars = {
            f"global_{name}": value
            for name, value in release_scalars(release).items()
            if math.isfinite(value)
        }
        try:
            self._write(release)
        except (OSError, FederatedMetricError) as error:  # pairs of classes have no curves to draw
            self.error(
                f"The release of {self._open_round} was not written or drawn, training goes on: "
                f"{error}"
            )
        self.info(f"{self._open_round}: {release.shares} shares, {scalars}")
        self._tell_best(scalars)
        return scalars

    def _write_partial(self, release: Release) -> None:
        """Save what was paid for in a round that was broken off after its first query."""
        path = self._folder_path() / f"round-{self._number:04d}.partial.release"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            release.save(path)
        except OSError as error:
            self.error(f"The partial release of {self._open_round} was not written: {error}")

    def _write(self, release: Release) -> None:
        """Save the release in the folder, with a figure if asked for."""
        path = self._folder_path() / f"round-{self._number:04d}.release"
        path.parent.mkdir(parents=True, exist_ok=True)
        release.save(path)
        if self.figures:
            _draw(release, path.with_suffix(".png"))

    def _folder_path(self) -> Path:
        """Return the folder for releases, in the job's run folder or an absolute one."""
        job = str(self.fl_ctx.get_job_id())
        if os.path.isabs(self.folder):
            return Path(self.folder, job)
        engine = self.fl_ctx.get_engine()
        run_folder = os.curdir
        if engine:
            run_folder = engine.get_workspace().get_run_dir(job)
        return Path(run_folder, self.folder)

    def _tell_best(self, scalars: Mapping[str, float]) -> None:
        """Let NVFlare save the model that was evaluated, if none was better so far."""
        if self.key_metric is None or not scalars.get(self.key_metric, -math.inf) > self._best:
            return
        self._best = scalars[self.key_metric]
        context = self.fl_ctx
        source = type(self).__name__
        info = {
            "source": source,
            "metric_source": "sum of clients' shares",
            "best_round": self._number,
            "key_metric": {
                "name": self.key_metric,
                "mode": "max",
                "mode_source": f"{source}.key_metric",
            },
            "best_metrics": {self.key_metric: self._best},
        }
        context.set_prop(AppConstants.VALIDATION_RESULT, self._best, private=True, sticky=False)
        context.set_prop(AppConstants.METRICS_SELECTION_INFO, info, private=True, sticky=False)
        self.info(
            f"{self._open_round}: the model that was sent out is the best so far, with "
            f"{self._best:.6f}"
        )
        self.fire_event(AppEventType.GLOBAL_BEST_MODEL_AVAILABLE, context)

    @property
    def _number(self) -> int:
        return int(self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND))

    @property
    def _open_round(self) -> str:
        return round_name(str(self.fl_ctx.get_job_id()), self._number)


def _draw(release: Release, path: Path) -> None:
    """Draw the curves of a release, or the comparison of two models."""
    # without pyplot, which would keep the figure and ask for a display
    from matplotlib.figure import Figure

    kinds: list[type[CountsMetric]] = [FederatedROC, FederatedPrecisionRecallCurve]
    if release.spec.models:
        kinds = [FederatedModelComparison]
    figure = Figure(figsize=(4.5 * len(kinds), 4.2), layout="constrained")
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    for ax, kind in zip(axes, kinds, strict=True):
        kind.from_release(release).plot(ax=ax)
    figure.savefig(path, dpi=150)


def _weight(meta: Mapping[str, Any]) -> float:
    """Return the steps that a client claims, or 1 if it claims none: FedAvg's weight."""
    steps: Any = meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
    if isinstance(steps, int | float) and 0 < steps < math.inf:
        return float(steps)
    return 1.0
