"""run_coordinator and status: the aggregator's side of a round in a shared folder, and how far it has come."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic, sleep
from typing import Any

from torchmetrics import MetricCollection

from torchmetrics_fed.app.folder.files import Files, decoded, encoded, label, packed, unpacked
from torchmetrics_fed.errors import FederatedMetricError, ReleaseError, WireError
from torchmetrics_fed.exchange import Coordinator
from torchmetrics_fed.exchange.stages import Replies, Requests, ask_release, release_stages
from torchmetrics_fed.metrics import CountsMetric, representative, terms_of
from torchmetrics_fed.release import Release
from torchmetrics_fed.release.wire import pack_block

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
    """Return the release of the sites' data, once they have answered as many queries as the plan takes.

    Killed at any point, it is called again with the same arguments and goes on: what was asked is on disk, and is not
    computed again; a stage that was closed stays closed. A round that is over gives the same release again. Sites that
    are silent or refuse are named in the log and have dropped out. If too few are left, the round is over without a
    release, and a retry is a new round.

    Args:
        folder: the shared folder. It must exist.
        metric: made as at the sites; it is not updated.
        round: its name, which no other release has.
        clients: the sites' names; or how many to wait for; or None for those who are there when the time is up.
        timeout: seconds to wait in each stage for those who have not answered, and before the first for sites.
        poll: seconds between two looks.
        keys: by site, public keys; aggregations are signed if given.
        options: ``previous``, ``min_clients`` and ``max_examples``, as in :class:`~torchmetrics_fed.Coordinator`.

    Example:
        >>> import tempfile
        >>> from torchmetrics_fed import FederatedROC
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run_coordinator(folder, FederatedROC(), timeout=0.0)
        Traceback (most recent call last):
        torchmetrics_fed.errors.ReleaseError: Expected 1 or more sites in round '1' but got 0...
    """
    terms = terms_of(representative(metric))
    files = Files(folder, round)
    given = None if clients is None or isinstance(clients, int) else sorted(set(clients))
    kept = files.read(files.own / "state")
    if kept is None:
        coordinator = Coordinator(terms, round=round, **options)
        names = given or []
        for _ in _looks(timeout, poll) if given is None else ():
            names = files.joined()
            if isinstance(clients, int) and len(names) >= clients:
                break
        needed = max(
            terms.spec.clients_needed,
            options.get("min_clients", 1),
            3 if terms.spec.hides_shares else 1,
        )
        if len(names) < needed:
            raise ReleaseError(
                f"Expected {needed} or more sites in round {round!r} but got {len(names)}. Nothing was asked: start "
                "them, and call again."
            )
    else:
        names, coordinator = (
            list(unpacked(kept[1])),
            Coordinator.from_bytes(kept[1].block(), terms, **options),
        )
        if given not in (None, names):
            raise ReleaseError(
                f"Expected the sites that round {round!r} was begun with, {names}, but got {given}: nobody is asked "
                "again without the others. Name a new round."
            )
    if (end := files.end()) is not None and end[0]:
        raise ReleaseError(
            f"Expected a round that is open but {round!r} is over. {end[0]} A retry is a new round."
        )

    def save() -> None:
        files.write(
            files.own / "state",
            packed(dict.fromkeys(names, b"")),
            pack_block(coordinator.to_bytes()),
        )

    def carry(asked: Requests) -> Replies:
        kind = next(iter(asked.values())).stage
        stage = label(len(coordinator.sums) + 1, kind)
        while (closed := files.read(files.own / f"{stage}.closed")) is None:
            if kind.begins_query:
                save()
            files.write(
                files.own / f"{stage}.closed", packed(_ask(files, stage, asked, timeout, poll))
            )
        return {name: _answer(said) for name, said in unpacked(closed[1]).items()}

    try:
        there = names if coordinator.senders is None else sorted(coordinator.senders)
        release = ask_release(
            release_stages(coordinator, there, place=f"round {round}", log=_log, keys=keys), carry
        )
    except WireError:  # a file of its own is damaged: put it back, and the round goes on
        raise
    except FederatedMetricError as error:
        files.write(files.own / "end", pack_block(str(error).encode()), packed({}))
        raise
    save()
    files.write(
        files.own / "end", pack_block(b""), packed(dict.fromkeys(coordinator.senders or (), b""))
    )
    return release


def status(folder: str | os.PathLike[str]) -> str:
    """Return how far every round in a shared folder has come, a line for each: who has answered, who is waited for.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     status(folder)
        'no rounds'
    """
    found, lines = Files(folder, "1").folder.glob("*/round-*"), []
    for round in decoded("round-", {path.name for path in found}):
        files = Files(folder, round)
        end, stages = files.end(), files.stages()
        if end is not None:
            said = (
                f"over without a release. {end[0]}"
                if end[0]
                else f"released, with {', '.join(end[1])}"
            )
        elif stages:
            asked = files.asked(stages[-1])
            missing = [name for name in asked if not (files.of(name) / stages[-1]).exists()]
            said = f"query {stages[-1][0]}, {stages[-1][4:]}: {len(asked) - len(missing)} of {len(asked)} answered"
            said += f"; waits for {', '.join(missing)}" * bool(missing)
        else:
            said = f"not begun; here: {', '.join(files.joined()) or 'nobody'}"
        lines.append(f"round {round}: {said}")
    return "\n".join(lines) or "no rounds"


def _answer(said: bytes) -> bytes | FederatedMetricError:
    return said[1:] if said[:1] == b"+" else ReleaseError(said[1:].decode(errors="replace"))


def _looks(timeout: float, poll: float) -> Iterator[None]:
    """Look now and then until the time is up; a last look follows the deadline: whoever came in time is seen."""
    deadline, late = monotonic() + timeout, False
    while not late:
        late = monotonic() >= deadline
        yield
        if not late:
            sleep(poll)


def _ask(
    files: Files, stage: str, asked: Requests, timeout: float, poll: float
) -> dict[str, bytes]:
    """Ask sites, and return what they have answered in time, or after a minus why there is no answer."""
    marks = {
        name: files.write(
            files.own / f"{stage}.{encoded('site-', name)}", pack_block(each.to_bytes())
        )
        for name, each in asked.items()
    }
    answers, problems = dict[str, bytes](), dict[str, bytes]()
    for _ in _looks(timeout, poll):
        for name in marks.keys() - answers.keys():
            problems.pop(name, None)
            try:
                answer = files.answer(name, stage, marks[name])
            except (
                WireError
            ) as error:  # not whole yet, or not this site's: the right one may still come
                problems[name] = b"-" + str(error).encode()
            else:
                answers |= {} if answer is None else {name: answer}
        if len(answers) == len(marks):
            break
    return problems | answers
