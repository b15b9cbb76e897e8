"""The command line, ``torchmetrics-fed COMMAND``.

Each command is a function of its parsed options at the end of this module. A command imports the
modules that it needs, so that help and version need no torch.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

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
    from torchmetrics_fed.privacy import Privacy

_Options: TypeAlias = argparse.Namespace
_Commands: TypeAlias = Any
"""The subparsers of argparse, whose class has no public name."""

_PROGRAM = "torchmetrics-fed"

_POSITIVES = 0.2
"""The part of positives that `plan` assumes if it is not given."""

_SURVIVING_FRACTION = 0.8
"""Fraction of the clients that takes part at least, unless --min-clients gives their number."""

_MOST_SKIPPED = 0.05
"""Fraction of bad rows above which tables are refused.

As ``MOST_SKIPPED`` of ``torchmetrics_fed.app.tables``, whose import needs torch.
"""

_SQLITE_MAGIC = b"SQLite format 3"
"""First bytes of a ledger, which is a database of SQLite."""

_TEMPLATE = Path(__file__).with_name("study.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 refused or failed.

    Arguments that are no command exit with 2.

    Example:
        >>> main(["inspect", "no.release"])  # on stderr: no.release: No such file or directory
        1
    """
    if arguments is None:
        arguments = sys.argv[1:]
    if not arguments:
        _parser().print_help(sys.stderr)
        raise SystemExit(2)
    if arguments[0] == "audit":  # which parses its options itself
        options = _Options(run=_audit, arguments=arguments[1:])
    else:
        options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _exit_code(options)


def _exit_code(options: _Options) -> int:
    """Run the command, and print its error, if any, on one line."""
    try:
        return options.run(options) or 0
    except (FederatedMetricError, ModuleNotFoundError) as error:
        _print_error(str(error))
    except OSError as error:
        _print_error(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        _print_error("interrupted")
    return 1


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _print_error(f"warning: {message}")


def _print_error(text: str) -> None:
    line = " ".join(text.split())
    sys.stderr.write(f"{_PROGRAM}: {line}\n")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


# --- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        _PROGRAM,
        description="Global ROC and precision-recall curves of tables at sites.",
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_init(commands)
    _add_count(commands)
    _add_sum(commands)
    _add_site(commands)
    _add_coordinator(commands)
    _add_status(commands)
    _add_report(commands)
    _add_inspect(commands)
    _add_ledger(commands)
    _add_plan(commands)
    commands.add_parser("audit", help="try to refute the epsilon of a mechanism", add_help=False)
    return parser


def _add_command(
    commands: _Commands,
    name: str,
    run: Callable[[_Options], int | None],
    help: str,
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help)
    command.set_defaults(run=run)
    return command


def _add_init(commands: _Commands) -> None:
    init = _add_command(commands, "init", _init, "write a study file, with comments")
    init.add_argument(
        "path",
        type=Path,
        nargs="?",
        default=Path("study.toml"),
        help="(default: %(default)s)",
    )


def _add_count(commands: _Commands) -> None:
    count = _add_command(commands, "count", _count, "count tables at a site, and write its share")
    _add_study(count)
    _add_tables(count)
    _add_output(count)


def _add_sum(commands: _Commands) -> None:
    total = _add_command(commands, "sum", _sum, "sum the sites' shares, and write the release")
    _add_study(total)
    total.add_argument("share", type=Path, nargs="+", help="what `count` wrote")
    _add_output(total)


def _add_site(commands: _Commands) -> None:
    site = _add_command(commands, "site", _site, "answer for a site's tables, through a folder")
    _add_study(site)
    _add_tables(site)
    _add_folder(site)
    _add_timeout(site)


def _add_coordinator(commands: _Commands) -> None:
    coordinator = _add_command(
        commands,
        "coordinator",
        _coordinator,
        "ask all sites through a folder, and write the release",
    )
    _add_study(coordinator)
    _add_folder(coordinator)
    _add_timeout(coordinator)
    coordinator.add_argument(
        "--threshold",
        type=int,
        default=None,
        help="sites that must stay to the end of an aggregation (more than two thirds)",
    )
    _add_output(coordinator)


def _add_status(commands: _Commands) -> None:
    status = _add_command(
        commands, "status", _status, "say how far the rounds in a folder have come"
    )
    _add_folder(status)


def _add_report(commands: _Commands) -> None:
    report = _add_command(commands, "report", _report, "read curves, areas and more from a release")
    report.add_argument("release", type=Path, help="what `sum` wrote")
    report.add_argument(
        "-o",
        "--output",
        type=Path,
        help=".html, .json, .md, .png or .pdf (default: print text)",
    )


def _add_inspect(commands: _Commands) -> None:
    inspect = _add_command(
        commands, "inspect", _inspect, "say what a file is, never the counts in it"
    )
    inspect.add_argument("file", type=Path, help="a share, release, ledger or query")
    inspect.add_argument("--study", type=Path, help="check that a share is one of this study")


def _add_ledger(commands: _Commands) -> None:
    ledger = _add_command(commands, "ledger", _ledger, "list what a site has spent")
    ledger.add_argument("path", type=Path, help="the ledger's file")


def _add_plan(commands: _Commands) -> None:
    plan = _add_command(
        commands,
        "plan",
        _plan,
        "say what error to expect of every plan, before anything is spent",
    )
    default = " (default: %(default)s)"
    plan.add_argument(
        "--epsilon", type=float, default=1.0, help=f"privacy loss of one evaluation{default}"
    )
    plan.add_argument(
        "--examples", type=int, default=10_000, help=f"of all clients together{default}"
    )
    plan.add_argument(
        "--clients", type=int, help="how many take part (default: 10; with --central 1)"
    )
    plan.add_argument(
        "--positives",
        type=float,
        help="their part of the examples (default: 0.2; of K classes 1 / K)",
    )
    kinds = plan.add_mutually_exclusive_group()
    kinds.add_argument(
        "--local", action="store_true", help="LocalDP: every client adds all of the noise"
    )
    kinds.add_argument(
        "--central", action="store_true", help="CentralDP: one trusted party adds it once"
    )
    kinds.add_argument(
        "--trusted-aggregator",
        action="store_true",
        help="DistributedDP without secure aggregation",
    )
    plan.add_argument(
        "--min-clients",
        type=int,
        help="fewer are not summed (default: four fifths of the clients)",
    )
    plan.add_argument(
        "--max-colluding", type=int, default=1, help=f"clients who may collude{default}"
    )
    tasks = plan.add_mutually_exclusive_group()
    tasks.add_argument("--classes", type=int, help="of a multi-class task")
    tasks.add_argument("--labels", type=int, help="of a multi-label task")
    plan.add_argument(
        "--labels-per-example", type=int, help="the most positive labels that are counted"
    )
    plan.add_argument("--auroc", type=float, default=0.85, help=f"expected of the model{default}")
    plan.add_argument("--quantiles", type=int, default=1024, help=f"the resolution, Q{default}")
    plan.add_argument(
        "--runs", type=int, default=20, help=f"simulated releases of each plan{default}"
    )


def _add_study(command: argparse.ArgumentParser) -> None:
    command.add_argument("study", type=Path, help="the study file")


def _add_tables(command: argparse.ArgumentParser) -> None:
    """Add the tables of a site, the site's name and what to do with bad rows."""
    command.add_argument("table", type=Path, nargs="+", help="CSV, Parquet or Arrow")
    command.add_argument("--name", required=True, help="the site's name")
    command.add_argument(
        "--skip-bad", action="store_true", help="leave out rows that cannot be counted"
    )
    command.add_argument(
        "--most-skipped",
        type=float,
        default=_MOST_SKIPPED,
        metavar="FRACTION",
        help="of the rows; with more bad ones nothing is counted (%(default)s)",
    )


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("--folder", type=Path, required=True, help="the folder that all can reach")


def _add_timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--timeout", type=float, default=3600.0, help="seconds to wait for others (%(default)s)"
    )


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", type=Path, required=True, help="the file to write")


# --- commands


def _init(options: _Options) -> None:
    # a study that exists may be agreed on already: it is not overwritten
    with open(options.path, "x", encoding="utf-8") as file:
        file.write(_TEMPLATE.read_text(encoding="utf-8"))
    _print(f"Wrote {options.path}. Edit it, and give every site a copy.")


def _count(options: _Options) -> None:
    from torchmetrics_fed.app.study import Study

    study = Study.load(options.study)
    metric = study.metric(options.name)
    _check_share(metric, study, options.name)
    unfinished = options.output.with_name(f"{options.output.name}.part")
    unfinished.touch()  # where nothing can be written, nothing is charged
    try:
        rows = _count_tables(metric, study, options)
        share = replace(metric.share(round=study.round), skips_bad=options.skip_bad)
        unfinished.write_bytes(bytes(share))
        unfinished.replace(options.output)
    finally:
        unfinished.unlink(missing_ok=True)
    if metric.spec.privacy.charges:
        cost = f"{metric.spec.privacy}, {metric.ledger}"
    else:
        cost = "Exact counts: the aggregator can see them."
    _print(f"Counted {rows} and wrote {options.output} for round {study.round!r}. {cost}")


def _check_share(metric: FederatedMetric, study: Study, name: str) -> None:
    """Raise if the share of a site may not travel as a file, or was drawn before."""
    from torchmetrics_fed.exchange.plans import check_one_query

    spec = metric.spec
    if spec.hides_shares or spec.privacy.noise_drawn_by == "sum":
        setting = spec.privacy if spec.privacy.charges else "secure = true"
        raise ReleaseError(
            f"Expected a study whose shares may be seen but got {setting}. A file with one site's "
            f"share would hide next to nothing: use `{_PROGRAM} site` and `{_PROGRAM} "
            "coordinator`, which sum through secure aggregation in a folder, or LocalDP (for a "
            "site alone the noise of CentralDP)."
        )
    check_one_query(metric.plan)
    if not spec.privacy.charges:
        return
    key = (name, study.round, spec.digest.hex())
    if any(entry.key == key for entry in metric.ledger):
        raise LedgerConflictError(
            f"Expected a new round but the share of round {study.round!r} was drawn before: send "
            "the file that was written then. A second draw takes a new `round` in the study, and "
            "is charged again."
        )


def _count_tables(metric: FederatedMetric, study: Study, options: _Options) -> str:
    """Count all tables of a site and return the numbers of rows in words; raise if too few.

    Numbers of rows are data: the words are for the site's own user.
    """
    from torchmetrics_fed.app.batches import rows_of
    from torchmetrics_fed.app.tables import Counted, PartialCounts
    from torchmetrics_fed.report.progress import Progress

    part = PartialCounts.of(metric, **study.columns, skip_bad=options.skip_bad)
    progress = Progress()
    rows = 0
    skipped = 0
    for path in options.table:
        try:
            with closing(part.read(path)) as batches:
                watched = progress(
                    batches,
                    done=f"{path}: counted {{}} rows",
                    size=len,
                    total=rows_of(path),
                )
                result = part.count(metric, watched)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        rows += result.rows
        skipped += result.skipped
    words = f"{rows:,} rows"
    if part.person:
        words += f" ({metric.persons.left_out:,} beyond `examples_per_person` left out)"
    if options.skip_bad:
        words += f", left out {skipped:,} bad ones,"
    if not metric.counts.any():  # rows with the label `ignore_index` are read and not counted
        rows = 0
    try:
        Counted(rows, skipped).check(options.most_skipped)
    except InputError as error:
        raise InputError(f"Read {words.rstrip(',')}. {error} Nothing was charged.") from None
    return words


def _sum(options: _Options) -> None:
    from torchmetrics_fed.app.study import Study
    from torchmetrics_fed.exchange import Coordinator
    from torchmetrics_fed.exchange.plans import check_one_query

    study = Study.load(options.study)
    metric = study.metric()
    check_one_query(metric.plan)
    shares = len(options.share)
    sites = study.clients
    if isinstance(sites, list):
        sites = len(sites)
    if sites is not None and sites != shares:
        raise ReleaseError(
            f"Expected the shares of all {sites} `clients` but got {shares}; nothing was summed. "
            "To go on without a site, change `clients` in this copy of the study: shares do not "
            "depend on it."
        )
    coordinator = Coordinator(metric, round=study.round, can_ask_again=False)
    for path in options.share:
        try:
            coordinator.receive(path.name, path.read_bytes())
        except FederatedMetricError as error:  # noqa: PERF203
            raise type(error)(f"{path}: {error}") from error
    coordinator.advance()
    coordinator.release.save(options.output)
    _print(f"Summed {shares} shares of round {study.round!r} and wrote {options.output}.")


def _site(options: _Options) -> None:
    from torchmetrics_fed.app.folder import run_site
    from torchmetrics_fed.app.study import Study

    study = Study.load(options.study)
    metric = study.metric(options.name)
    rows = _count_tables(metric, study, options)
    _print(f"Counted {rows}. Waiting for the coordinator of round {study.round!r}.")
    notes = None
    if not metric.spec.privacy.charges:  # otherwise notes are beside the ledger
        notes = study.folder / f"{options.name}.notes"
    run_site(
        options.folder,
        options.name,
        metric,
        round=study.round,
        timeout=options.timeout,
        notes=notes,
    )
    _print(f"Round {study.round!r} is over.")


def _coordinator(options: _Options) -> None:
    from torchmetrics_fed.app.folder import run_coordinator
    from torchmetrics_fed.app.study import Study
    from torchmetrics_fed.exchange.stages import BrokenOffError

    study = Study.load(options.study)
    try:
        release = run_coordinator(
            options.folder,
            study.metric(),
            round=study.round,
            clients=study.clients,
            timeout=options.timeout,
            threshold=options.threshold,
        )
    except BrokenOffError as error:
        path = f"{options.output}.partial"
        error.release.save(path)
        _print(f"The round was broken off. Wrote what was paid for, coarse, to {path}.")
        raise
    release.save(options.output)
    _print(
        f"Summed {release.shares} sites' answers of round {study.round!r} and wrote "
        f"{options.output}."
    )


def _status(options: _Options) -> None:
    from torchmetrics_fed.app.folder import status

    _print(status(options.folder))


def _report(options: _Options) -> None:
    from torchmetrics_fed.release import Release
    from torchmetrics_fed.report import evaluation_report

    report = evaluation_report(Release.load(options.release))
    if options.output is None:
        _print(str(report))
    else:
        report.save(options.output)
        _print(f"Wrote {options.output}.")


def _inspect(options: _Options) -> None:
    from torchmetrics_fed.app.study import Study
    from torchmetrics_fed.release.release import contents

    data = options.file.read_bytes()
    if data.startswith(_SQLITE_MAGIC):
        _print_ledger(options.file)
        return
    agreed = None
    if options.study is not None:
        metric = Study.load(options.study).metric()
        agreed = (metric.spec, metric.plan.unasked_query(metric.spec))
    _print(f"{options.file}: {contents(data, agreed)}")


def _ledger(options: _Options) -> None:
    _print_ledger(options.path)


def _print_ledger(path: Path) -> None:
    from torchmetrics_fed.privacy import PrivacyLedger

    path.stat()  # raises if there is no file: a ledger would write one
    ledger = PrivacyLedger(path=path)
    for entry in ledger:
        _print(
            f"{entry.time}  {entry.data}  round {entry.round}  epsilon {entry.epsilon:g}  "
            f"delta {entry.delta:.2g}"
        )
    _print(str(ledger))


def _plan(options: _Options) -> None:
    from torchmetrics_fed.planning import advise
    from torchmetrics_fed.report.progress import Progress

    positives = options.positives
    if positives is None:
        positives = 1 / options.classes if options.classes else _POSITIVES
    if options.examples < 2 or not 0 < positives < 1:
        raise InputError(
            "Expected --examples of at least 2 and --positives between 0 and 1 but got "
            f"{options.examples} and {positives}."
        )
    clients = options.clients
    if not clients:
        clients = 1 if options.central else 10
    n_pos = round(options.examples * positives)
    n_pos = min(max(n_pos, 1), options.examples - 1)  # both classes have an example
    advice = advise(
        _planned_privacy(options, clients),
        n_pos,
        options.examples - n_pos,
        clients=clients,
        auroc=options.auroc,
        quantiles=options.quantiles,
        runs=options.runs,
        num_classes=options.classes,
        num_labels=options.labels,
        labels_per_example=options.labels_per_example,
        progress=lambda plans: Progress()(plans, "tried {} plans", total=len(plans)),
    )
    _print(str(advice))


def _planned_privacy(options: _Options, clients: int) -> Privacy:
    """Return the privacy setting that the options of ``plan`` describe."""
    from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP

    if options.local or options.central:
        if options.min_clients is not None:
            raise InputError(
                "Expected no --min-clients with --local or --central: no noise is divided. Leave "
                "it out."
            )
        if options.local:
            return LocalDP(options.epsilon)
        return CentralDP(options.epsilon)
    fewest = 2 if options.trusted_aggregator else 3
    if clients < fewest:
        raise InputError(
            f"Expected --clients of at least {fewest} because fewer cannot hide each other's "
            f"counts, but got {clients}. Say how many there are, or who else adds noise: --local "
            "or --central."
        )
    min_clients = options.min_clients
    if not min_clients:
        min_clients = max(math.ceil(_SURVIVING_FRACTION * clients), fewest)
    return DistributedDP(
        options.epsilon,
        min_clients=min_clients,
        max_colluding=options.max_colluding,
        trusted_aggregator=options.trusted_aggregator,
    )


def _audit(options: _Options) -> int:
    from torchmetrics_fed.audit import main as audit

    return audit(options.arguments)
