"""run_coordinator: the coordinator's side of a round in a shared folder; status: its progress.

Every step of the coordinator is on disk, so that its next run goes on:

- The names of the sites and the state of the exchange are written before a query is asked.
- A stage is closed when its replies are in the coordinator's files, one for each, and a list of
  them is written. A stage that was closed stays closed: its replies are read from these files, and
  no site is asked again.
- A round that is over stays over: with the same release, or without one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic, sleep
from typing import Any

from torchmetrics import MetricCollection

from torchmetrics_fed.app.folder.files import (
    BEFORE_QUERIES,
    REFUSED,
    REPLIED,
    Files,
    RoundEnd,
    decoded,
    label,
    packed,
    printable,
    query_number,
    stage_name,
    unpacked,
)
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError, WireError
from torchmetrics_fed.exchange import Coordinator
from torchmetrics_fed.exchange.stages import (
    BrokenOffError,
    Replies,
    Requests,
    ask_release,
    release_stages,
)
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.metrics import CountsMetric, representative, terms_of
from torchmetrics_fed.release import Release
from torchmetrics_fed.release.wire import pack_block

_SECURE_MIN_SITES = 3
"""Sites that one secure aggregation takes at least."""

_log = logging.getLogger("torchmetrics_fed")


def run_coordinator(
    folder: str | os.PathLike[str],
    metric: CountsMetric | MetricCollection,
    *,
    round: str = "1",
    clients: Iterable[str] | int | None = None,
    timeout: float = 3600.0,
    poll: float = 0.5,
    keys: Mapping[str, bytes] | None = None,
    **options: Any,
) -> Release:
    """Return the release of the sites' data, once they have answered every query of the plan.

    A coordinator that was killed is called again with the same arguments and goes on: the queries
    are on disk and are not computed again; a stage that was closed stays closed. A round that is
    over gives the same release again. Sites that are silent or refuse are named in the log and have
    dropped out. If too few sites are left, the round is over without a release, and a retry is a
    new round. After the first query the error is a
    :class:`~torchmetrics_fed.exchange.stages.BrokenOffError`, which has the partial release.

    Args:
        folder: the shared folder. It must exist.
        metric: made as at the sites; it is not updated.
        round: the name of the round, which no other release has.
        clients: the names of the sites; or the number of sites to wait for; or None for the sites
            that are there when the time is up.
        timeout: seconds to wait in each stage for sites that have not answered, and before the
            first stage for sites.
        poll: seconds between two looks into the folder.
        keys: by site, public keys; aggregations are signed if given.
        options: ``previous``, ``min_clients``, ``max_examples`` and ``threshold``, as in
            :class:`~torchmetrics_fed.Coordinator`.

    Example:
        >>> import tempfile
        >>> from torchmetrics_fed import FederatedROC
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run_coordinator(folder, FederatedROC(), timeout=0.0)
        Traceback (most recent call last):
        torchmetrics_fed.errors.ReleaseError: Cannot begin round '1': it needs 1 or more sites...
    """
    terms = terms_of(representative(metric))
    files = Files(folder, round)
    number: int | None = None
    names: list[str] | None = None
    if isinstance(clients, int):
        number = clients
    elif clients is not None:
        names = sorted(set(clients))
    resumed = _resumed(files, terms, options)
    if resumed is None:
        coordinator = Coordinator(terms, round=round, **options)
        if names is None:
            names = _wait_for_sites(files, number, timeout=timeout, poll=poll)
        _check_enough_sites(files, terms, names, options.get("min_clients", 1))
    else:
        coordinator, first_names = resumed
        if names is not None and names != first_names:
            raise ReleaseError(
                f"Cannot go on: round {round!r} was begun with the sites {first_names} but got "
                f"{names}. No site is asked again without the others. Name a new round."
            )
        names = first_names
    _check_open(files, coordinator.partial)
    run = _CoordinatorRun(files, coordinator, names, timeout=timeout, poll=poll)
    return run.release(keys)


def status(folder: str | os.PathLike[str]) -> str:
    """Return the progress of every round in a shared folder, one line for each round.

    A line names the sites that have answered, or that the coordinator waits for.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     status(folder)
        'no rounds'
    """
    paths = Files(folder, "1").folder.glob("*/round-*")
    rounds = decoded("round-", {path.name for path in paths})
    if not rounds:
        return "no rounds"
    lines = [f"round {round}: {_progress(Files(folder, round))}" for round in rounds]
    return "\n".join(map(printable, lines))


def _progress(files: Files) -> str:
    """Return the progress of one round."""
    end = files.end()
    if end is not None:
        return _outcome(end)
    stages = files.requested_stages()
    if stages:
        return _stage_progress(files, stages[-1])
    names = ", ".join(files.joined_sites()) or "nobody"
    return f"not begun; here: {names}"


def _outcome(end: RoundEnd) -> str:
    if end.failure:
        return f"over without a release. {end.failure}"
    return f"released, with {', '.join(end.sites)}"


def _stage_progress(files: Files, stage_label: str) -> str:
    sites = files.requested_sites(stage_label)
    silent = [site for site in sites if not files.reply_path(stage_label, site).exists()]
    query = query_number(stage_label)
    place = stage_name(stage_label)
    if query != str(BEFORE_QUERIES):
        place = f"query {query}, {place}"
    progress = f"{place}: {len(sites) - len(silent)} of {len(sites)} answered"
    if silent:
        progress += f"; waits for {', '.join(silent)}"
    return progress


def _resumed(
    files: Files, terms: Terms, options: Mapping[str, Any]
) -> tuple[Coordinator, list[str]] | None:
    """Return the coordinator and the sites of a round that was begun; None for a new round."""
    file = files.read(files.state_path)
    if file is None:
        return None
    names = list(unpacked(file.content))
    return Coordinator.from_bytes(file.content.block(), terms, **options), names


def _wait_for_sites(files: Files, number: int | None, *, timeout: float, poll: float) -> list[str]:
    """Return the sites that have joined, once there are enough of them or the time is up."""
    names: list[str] = []
    for _ in _looks(timeout, poll):
        names = files.joined_sites()
        if number is not None and len(names) >= number:
            break
    return names


def _check_enough_sites(files: Files, terms: Terms, names: list[str], min_clients: int) -> None:
    """Raise if a release of these sites could not be opened."""
    needed = max(terms.spec.clients_needed, min_clients)
    if terms.spec.hides_shares:
        needed = max(needed, _SECURE_MIN_SITES)
    if len(names) < needed:
        raise ReleaseError(
            f"Cannot begin round {files.round!r}: it needs {needed} or more sites but there are "
            f"{len(names)}. Nothing was asked: start the sites, and call again."
        )


def _check_open(files: Files, partial: Release | None) -> None:
    """Raise if the round has ended without a release, or with a partial one."""
    end = files.end()
    if end is None or not end.failure:
        return
    reason = f"Round {files.round!r} is over. {end.failure} A retry is a new round."
    if partial is not None:
        raise BrokenOffError(reason, partial)
    raise ReleaseError(reason)


def _looks(timeout: float, poll: float) -> Iterator[None]:
    """Yield every ``poll`` seconds until the time is up, and once after that.

    The last look follows the deadline, so that a file that came in time is read.
    """
    deadline = monotonic() + timeout
    is_late = False
    while not is_late:
        is_late = monotonic() >= deadline
        yield
        if not is_late:
            sleep(poll)


class _CoordinatorRun:
    """One run of the coordinator: from the files of a round to its release.

    Args:
        files: the files of the round.
        coordinator: the exchange, new or resumed.
        names: the sites that the round is begun with.
        timeout: seconds to wait in each stage.
        poll: seconds between two looks.
    """

    def __init__(
        self,
        files: Files,
        coordinator: Coordinator,
        names: list[str],
        *,
        timeout: float,
        poll: float,
    ) -> None:
        self._files = files
        self._coordinator = coordinator
        self._names = names
        self._timeout = timeout
        self._poll = poll

    def release(self, keys: Mapping[str, bytes] | None) -> Release:
        """Return the release, and end the round with it or with the reason why there is none."""
        coordinator = self._coordinator
        files = self._files
        sites = self._names
        if coordinator.senders is not None:
            sites = sorted(coordinator.senders)
        stages = release_stages(
            coordinator, sites, place=f"round {files.round}", log=_log, keys=keys
        )
        try:
            release = ask_release(stages, self._carry)
        except WireError:
            # a file of the coordinator is damaged: put it back, and the round goes on
            raise
        except FederatedMetricError as error:
            files.write(files.end_path, pack_block(str(error).encode()), packed({}))
            raise
        self._save_state()
        names = packed(dict.fromkeys(coordinator.senders or (), b""))
        files.write(files.end_path, pack_block(b""), names)
        return release

    def _carry(self, requests: Requests) -> Replies:
        """Return the replies of a stage: from its closed file, or those that come in time."""
        stage = next(iter(requests.values())).stage
        stage_label = label(len(self._coordinator.sums) + 1, stage)
        path = self._files.closed_path(stage_label)
        closed = self._files.read(path)
        while closed is None:
            if stage.begins_query:
                self._save_state()
            self._close(stage_label, self._ask(stage_label, requests))
            closed = self._files.read(path)
        digests = unpacked(closed.content)
        return {
            name: _reply(self._taken(stage_label, name, digest)) for name, digest in digests.items()
        }

    def _close(self, stage_label: str, replies: Mapping[str, bytes]) -> None:
        """Write the replies of a stage, one file for each, and the list that closes it."""
        files = self._files
        digests = {
            name: files.write(files.taken_path(stage_label, name), pack_block(reply))
            for name, reply in replies.items()
        }
        files.write(files.closed_path(stage_label), packed(digests))

    def _taken(self, stage_label: str, name: str, digest: bytes) -> bytes:
        """Return a reply as it was taken when the stage was closed."""
        file = self._files.read(self._files.taken_path(stage_label, name))
        if file is None or file.digest != digest:
            raise WireError(
                f"Expected the reply of {name!r} in {stage_label} as it was taken but it is gone "
                "or another. Put the coordinator's file back, and call again."
            )
        return file.content.block()

    def _save_state(self) -> None:
        self._files.write(
            self._files.state_path,
            packed(dict.fromkeys(self._names, b"")),
            pack_block(self._coordinator.to_bytes()),
        )

    def _ask(self, stage_label: str, requests: Requests) -> dict[str, bytes]:
        """Write the requests, and return the sites' replies and refusals that came in time.

        A file that cannot be read until then counts as a refusal, with the error as its reason.
        """
        files = self._files
        digests = {}
        for name, request in requests.items():
            path = files.request_path(stage_label, name)
            digests[name] = files.write(path, pack_block(request.to_bytes()))
        replies: dict[str, bytes] = {}
        problems: dict[str, bytes] = {}
        for _ in _looks(self._timeout, self._poll):
            for name in digests.keys() - replies.keys():
                problems.pop(name, None)
                try:
                    reply = files.reply(name, stage_label, digests[name])
                except WireError as error:
                    # the file is not whole yet, or not the site's: the right one may still come
                    problems[name] = REFUSED + str(error).encode()
                    continue
                if reply is not None:
                    replies[name] = reply
            if len(replies) == len(digests):
                break
        return problems | replies


def _reply(data: bytes) -> bytes | FederatedMetricError:
    """Return the reply of a site, or the error with the reason of its refusal."""
    content = data[1:]
    if data[:1] == REPLIED:
        return content
    return ReleaseError(content.decode(errors="replace"))
