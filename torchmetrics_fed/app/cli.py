"""The command line, ``torchmetrics-fed COMMAND``. A command imports what it needs: help and version need no torch."""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmetrics_fed.errors import (
    FederatedMetricError,
    InputError,
    LedgerConflictError,
    ReleaseError,
)
from torchmetrics_fed.version import VERSION

if TYPE_CHECKING:
    from torchmetrics_fed.app.study import Study
    from torchmetrics_fed.metrics import FederatedMetric

_NAME = "torchmetrics-fed"
_SURVIVING = 0.8
"""Fraction of the clients that takes part at least, unless --min-clients says how many."""

_MOST_SKIPPED = 0.05
"""Fraction of bad rows above which tables are refused, as in ``count_table``, which needs torch."""

_TEMPLATE = Path(__file__).with_name("study.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 refused or failed; what is no command exits with 2.

    Example:
        >>> main(["inspect", "no.release"])  # on stderr: torchmetrics-fed: no.release: No such file or directory
        1
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        _parser().print_help(sys.stderr)
        raise SystemExit(2)
    if arguments[0] == "audit":  # which has options of its own
        given = argparse.Namespace(run=_audit, options=arguments[1:])
    else:
        given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # who answered, who is waited for
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _complain(f"warning: {message}")
        try:
            return given.run(given) or 0
        except (FederatedMetricError, ModuleNotFoundError) as error:
            _complain(str(error))
        except OSError as error:
            _complain(f"{error.filename}: {error.strerror}")
        except KeyboardInterrupt:
            _complain("interrupted")
    return 1


def _complain(text: str) -> None:
    sys.stderr.write(f"{_NAME}: {' '.join(text.split())}\n")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        _NAME, description="Global ROC and precision-recall curves of tables at sites."
    )
    parser.add_argument("--version", action="version", version=f"{_NAME} {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Any, help: str, **places: str) -> argparse.ArgumentParser:
        added = commands.add_parser(run.__name__.strip("_"), help=help, description=help)
        added.set_defaults(run=run)
        for place, meaning in places.items():
            added.add_argument(
                place, type=Path, help=meaning, nargs="+" if place in ("table", "share") else None
            )
        return added

    study = "the study file"
    init = command(_init, "write a study file, with comments")
    init.add_argument(
        "path", type=Path, nargs="?", default=Path("study.toml"), help="(default: %(default)s)"
    )
    count = command(
        _count,
        "count tables at a site, and write its share",
        study=study,
        table="CSV, Parquet or Arrow",
    )
    total = command(
        _sum,
        "sum the sites' shares, and write the release",
        study=study,
        share="what `count` wrote",
    )
    site = command(
        _site,
        "answer for a site's tables, through a folder",
        study=study,
        table="CSV, Parquet or Arrow",
    )
    head = command(
        _coordinator, "ask all sites through a folder, and write the release", study=study
    )
    seen = command(_status, "say how far the rounds in a folder have come")
    for counting in (count, site):
        counting.add_argument("--name", required=True, help="the site's name")
        counting.add_argument(
            "--skip-bad", action="store_true", help="leave out rows that cannot be counted"
        )
        counting.add_argument(
            "--most-skipped",
            type=float,
            default=_MOST_SKIPPED,
            metavar="FRACTION",
            help="of the rows; with more bad ones nothing is counted (%(default)s)",
        )
    for meeting in (site, head, seen):
        meeting.add_argument(
            "--folder", type=Path, required=True, help="the folder that all can reach"
        )
    for waiting in (site, head):
        waiting.add_argument(
            "--timeout", type=float, default=3600.0, help="seconds to wait for others (%(default)s)"
        )
    for writing in (count, total, head):
        writing.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    report = command(
        _report, "read curves, areas and more from a release", release="what `sum` wrote"
    )
    report.add_argument(
        "-o", "--output", type=Path, help=".html, .json, .md, .png or .pdf (default: print text)"
    )
    inspect = command(
        _inspect,
        "say what a file is, never the counts in it",
        file="a share, release, ledger or query",
    )
    inspect.add_argument("--study", type=Path, help="check that a share is one of this study")
    command(_ledger, "list what a site has spent", path="the ledger's file")
    _add_plan(command(_plan, "say what error to expect of every plan, before anything is spent"))
    commands.add_parser("audit", help="try to refute the epsilon of a mechanism", add_help=False)
    return parser


def _init(given: argparse.Namespace) -> None:
    with open(
        given.path, "x", encoding="utf-8"
    ) as file:  # one that is there may be agreed on already
        file.write(_TEMPLATE.read_text(encoding="utf-8"))
    _say(f"Wrote {given.path}. Edit it, and give every site a copy.")


def _count(given: argparse.Namespace) -> None:
    from torchmetrics_fed.app.study import Study
    from torchmetrics_fed.exchange.plans import check_one_query

    study = Study.load(given.study)
    metric = study.metric(given.name)
    spec = metric.spec
    if spec.hides_shares or spec.privacy.noise_drawn_by == "sum":
        hidden = spec.privacy if spec.privacy.charges else "secure = true"
        raise ReleaseError(
            f"Expected a study whose shares may be seen but got {hidden}. A file with one "
            f"site's share would hide next to nothing: use `{_NAME} site` and `{_NAME} coordinator`, which sum through "
            "secure aggregation in a folder, or LocalDP (for a site alone the noise of CentralDP)."
        )
    check_one_query(metric.plan)
    if spec.privacy.charges and any(
        entry.key == (given.name, study.round, spec.digest.hex()) for entry in metric.ledger
    ):
        raise LedgerConflictError(
            f"Expected a new round but the share of round {study.round!r} was drawn before: send the file that was "
            "written then. A second draw takes a new `round` in the study, and is charged again."
        )
    part = given.output.with_name(f"{given.output.name}.part")
    part.touch()  # where nothing can be written, nothing is charged
    try:
        counted = _counted(metric, study, given)
        part.write_bytes(bytes(replace(metric.share(round=study.round), skips_bad=given.skip_bad)))
        part.replace(given.output)
    finally:
        part.unlink(missing_ok=True)
    cost = (
        f" {spec.privacy}, {metric.ledger}"
        if spec.privacy.charges
        else " Exact counts: the aggregator can see them."
    )
    _say(f"Counted {counted} and wrote {given.output} for round {study.round!r}.{cost}")


def _counted(metric: FederatedMetric, study: Study, given: argparse.Namespace) -> str:
    """Count all tables of a site and return how many rows that were, or raise if they are too few.

    Only the site's own user reads what is said here: numbers of rows are data.
    """
    from torchmetrics_fed.app.batches import rows_of
    from torchmetrics_fed.app.tables import Counted, PartialCounts
    from torchmetrics_fed.report.progress import Progress

    counts = PartialCounts.of(metric, **study.columns, skip_bad=given.skip_bad)
    progress = Progress()
    rows = 0
    skipped = 0
    for table in given.table:
        done = f"{table}: counted {{}} rows"
        try:
            with closing(counts.read(table)) as batches:
                counted = counts.count(metric, progress(batches, done, len, rows_of(table)))
        except InputError as error:
            raise InputError(f"{table}: {error}") from None
        rows += counted.rows
        skipped += counted.skipped
    words = f"{rows:,} rows"
    if counts.person:
        words += f" ({metric.persons.left_out:,} beyond `examples_per_person` left out)"
    if given.skip_bad:
        words += f", left out {skipped:,} bad ones,"
    try:
        # rows with the label `ignore_index` are read and not counted
        Counted(rows if metric.counts.any() else 0, skipped).check(given.most_skipped)
    except InputError as error:
        raise InputError(f"Read {words.rstrip(',')}. {error} Nothing was charged.") from None
    return words


def _sum(given: argparse.Namespace) -> None:
    from torchmetrics_fed.app.study import Study
    from torchmetrics_fed.exchange import Coordinator
    from torchmetrics_fed.exchange.plans import check_one_query

    study = Study.load(given.study)
    metric = study.metric()
    check_one_query(metric.plan)
    sites = len(study.clients) if isinstance(study.clients, list) else study.clients
    if sites not in (None, len(given.share)):
        raise ReleaseError(
            f"Expected the shares of all {sites} `clients` but got {len(given.share)}; nothing was summed. "
            "To go on without a site, change `clients` in this copy of the study: shares do not depend on it."
        )
    coordinator = Coordinator(metric, round=study.round, can_ask_again=False)
    path = Path()
    try:
        for path in given.share:
            coordinator.receive(path.name, path.read_bytes())
    except FederatedMetricError as error:
        raise type(error)(f"{path}: {error}") from error
    coordinator.advance()
    coordinator.release.save(given.output)
    _say(f"Summed {len(given.share)} shares of round {study.round!r} and wrote {given.output}.")


def _site(given: argparse.Namespace) -> None:
    from torchmetrics_fed.app.folder import run_site
    from torchmetrics_fed.app.study import Study

    study = Study.load(given.study)
    metric = study.metric(given.name)
    _say(
        f"Counted {_counted(metric, study, given)}. Waiting for the coordinator of round {study.round!r}."
    )
    notes = (
        None if metric.spec.privacy.charges else study.folder / f"{given.name}.notes"
    )  # else beside the ledger
    run_site(
        given.folder, given.name, metric, round=study.round, timeout=given.timeout, notes=notes
    )
    _say(f"Round {study.round!r} is over.")


def _coordinator(given: argparse.Namespace) -> None:
    from torchmetrics_fed.app.folder import run_coordinator
    from torchmetrics_fed.app.study import Study

    study = Study.load(given.study)
    release = run_coordinator(
        given.folder,
        study.metric(),
        round=study.round,
        clients=study.clients,
        timeout=given.timeout,
    )
    release.save(given.output)
    _say(
        f"Summed {release.shares} sites' answers of round {study.round!r} and wrote {given.output}."
    )


def _status(given: argparse.Namespace) -> None:
    from torchmetrics_fed.app.folder import status

    _say(status(given.folder))


def _report(given: argparse.Namespace) -> None:
    from torchmetrics_fed.release import Release
    from torchmetrics_fed.report import evaluation_report

    report = evaluation_report(Release.load(given.release))
    if given.output:
        report.save(given.output)
    _say(f"Wrote {given.output}." if given.output else str(report))


def _inspect(given: argparse.Namespace) -> None:
    from torchmetrics_fed.app.study import Study
    from torchmetrics_fed.release.release import contents

    data, given.path = given.file.read_bytes(), given.file
    if data.startswith(b"SQLite format 3"):
        return _ledger(given)
    metric = Study.load(given.study).metric() if given.study else None
    agreed = None
    if metric is not None:
        agreed = (metric.spec, metric.plan.unasked_query(metric.spec))
    return _say(f"{given.file}: {contents(data, agreed)}")


def _ledger(given: argparse.Namespace) -> None:
    from torchmetrics_fed.privacy import PrivacyLedger

    given.path.stat()  # a ledger that is not there would be made
    ledger = PrivacyLedger(path=given.path)
    for entry in ledger:
        _say(
            f"{entry.time}  {entry.data}  round {entry.round}  epsilon {entry.epsilon:g}  delta {entry.delta:.2g}"
        )
    _say(str(ledger))


def _add_plan(plan: argparse.ArgumentParser) -> None:
    shown = " (default: %(default)s)"
    plan.add_argument(
        "--epsilon", type=float, default=1.0, help=f"privacy loss of one evaluation{shown}"
    )
    plan.add_argument(
        "--examples", type=int, default=10_000, help=f"of all clients together{shown}"
    )
    plan.add_argument(
        "--clients", type=int, help="how many take part (default: 10; with --central 1)"
    )
    plan.add_argument(
        "--positives", type=float, default=0.2, help=f"their part of the examples{shown}"
    )
    who = plan.add_mutually_exclusive_group()
    who.add_argument(
        "--local", action="store_true", help="LocalDP: every client adds all of the noise"
    )
    who.add_argument(
        "--central", action="store_true", help="CentralDP: one trusted party adds it once"
    )
    who.add_argument(
        "--trusted-aggregator", action="store_true", help="DistributedDP without secure aggregation"
    )
    plan.add_argument(
        "--min-clients", type=int, help="fewer are not summed (default: four fifths of the clients)"
    )
    plan.add_argument(
        "--max-colluding", type=int, default=1, help=f"clients who may collude{shown}"
    )
    plan.add_argument("--auroc", type=float, default=0.85, help=f"expected of the model{shown}")
    plan.add_argument("--quantiles", type=int, default=1024, help=f"the resolution, Q{shown}")
    plan.add_argument(
        "--runs", type=int, default=20, help=f"simulated releases of each plan{shown}"
    )


def _plan(given: argparse.Namespace) -> None:
    from torchmetrics_fed.planning import advise
    from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP, Privacy
    from torchmetrics_fed.report.progress import Progress

    if given.examples < 2 or not 0 < given.positives < 1:
        raise InputError(
            f"Expected --examples of at least 2 and --positives between 0 and 1 but got {given.examples} and "
            f"{given.positives}."
        )
    clients = given.clients or (1 if given.central else 10)
    least = 2 if given.trusted_aggregator else 3
    if given.local or given.central:
        if given.min_clients is not None:
            raise InputError(
                "Expected no --min-clients with --local or --central: no noise is divided. Leave it out."
            )
        privacy: Privacy = LocalDP(given.epsilon) if given.local else CentralDP(given.epsilon)
    elif clients < least:
        raise InputError(
            f"Expected --clients of at least {least} because fewer cannot hide each other's counts, but got {clients}. "
            "Say how many there are, or who else adds noise: --local or --central."
        )
    else:
        privacy = DistributedDP(
            given.epsilon,
            min_clients=given.min_clients or max(math.ceil(_SURVIVING * clients), least),
            max_colluding=given.max_colluding,
            trusted_aggregator=given.trusted_aggregator,
        )
    n_pos = min(max(round(given.examples * given.positives), 1), given.examples - 1)
    advice = advise(
        privacy,
        n_pos,
        given.examples - n_pos,
        clients=clients,
        auroc=given.auroc,
        quantiles=given.quantiles,
        runs=given.runs,
        progress=lambda plans: Progress()(plans, "tried {} plans", total=len(plans)),
    )
    _say(str(advice))


def _audit(given: argparse.Namespace) -> int:
    from torchmetrics_fed.audit import main as audit

    return audit(given.options)
