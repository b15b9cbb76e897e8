"""run_site: a site's side of a round in a shared folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep

from torchmetrics import MetricCollection

from torchmetrics_fed.app.folder.files import Files
from torchmetrics_fed.errors import FederatedMetricError, InputError, ReleaseError, WireError
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.metrics import CountsMetric, evaluation_of, representative, terms_of
from torchmetrics_fed.privacy.store import Store

_log = logging.getLogger("torchmetrics_fed")


def run_site(
    folder: str | os.PathLike[str],
    name: str,
    metric: CountsMetric | MetricCollection,
    *,
    round: str = "1",
    timeout: float | None = None,
    poll: float = 0.5,
    notes: str | os.PathLike[str] | None = None,
    signing_key: bytes | None = None,
    verification_keys: Mapping[str, bytes] | None = None,
) -> None:
    """Answer the coordinator's queries about this site's data, and return when the round is over.

    Killed at any point, it is called again with the same arguments and goes on: every answer is noted on this site's
    own disk before it leaves, with the counts if a second query may come. Notes are erased when the round is over, when
    this site refuses, and by the first call after a day. Other rounds, of this study or another, may use the same file
    at the same time. A site that was killed between the charge of its
    ledger and the note has dropped out of the query.

    Args:
        folder: the shared folder. It must exist.
        name: this site's, which no other has.
        metric: updated with this site's data. A private one needs a ledger with a budget and a path because the
            coordinator decides how often it asks.
        round: the round to take part in, and no other.
        timeout: seconds to wait for the coordinator's next file; as long as it takes if None. It looks every ``poll``.
        notes: the file for notes, outside the shared folder; beside the ledger if not given. One of them is needed
            where shares are hidden.
        signing_key: this site's long-term Ed25519 private key, for aggregations that are signed.
        verification_keys: by site, the public keys of all sites, from elsewhere than the coordinator.

    Example:
        >>> import tempfile, threading, torch
        >>> from torchmetrics_fed import FederatedROC
        >>> from torchmetrics_fed.app.folder import run_coordinator, run_site
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     site = threading.Thread(target=run_site, args=(folder, "ann", metric))
        ...     site.start()
        ...     release = run_coordinator(folder, FederatedROC(), clients=["ann"], timeout=60.0)
        ...     site.join()
        >>> release.shares
        1
    """
    counting = representative(metric)
    terms = terms_of(counting)
    files = Files(folder, round)
    terms.check_ledger()
    path = None
    if notes is not None:
        path = os.fspath(notes)
    elif terms.ledger.path is not None:
        path = f"{terms.ledger.path}.notes"
    inside = path is not None and Path(path).resolve().is_relative_to(files.folder.resolve())
    if inside or (path is None and terms.spec.hides_shares):
        raise InputError(
            "Expected a place for this site's notes, which are secret and without which it could answer twice after a "
            f"crash, but got {path!r}. Pass `notes=`, or a ledger with a path, on this site's own disk."
        )
    node = Node(
        name,
        terms,
        Store(path),
        signing_key=signing_key,
        verification_keys=verification_keys,
    )
    own, heard, problem = files.of(name), monotonic(), None
    own.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            end, request = files.end(), files.request(name)
        except (
            WireError
        ) as error:  # not whole yet, or not the coordinator's: the right one may still come
            if str(error) != str(problem):
                _log.warning("torchmetrics-fed: round %s, %s waits. %s", round, name, error)
            end, request, problem = None, None, error
        if end is not None:
            break
        if request is not None:
            stage, mark, asked = request
            try:
                answer = node.reply(asked, evaluation_of(counting))
            except FederatedMetricError as error:
                node.forget(round)
                files.write(
                    own / stage, mark, b"-" + str(error).encode()
                )  # which holds nothing of the data
                raise
            files.write(own / stage, mark, b"+" + answer)
            heard, problem = monotonic(), None
        elif timeout is not None and monotonic() - heard > timeout:
            raise problem or ReleaseError(
                f"Expected the coordinator to go on with round {round!r} within {timeout:g} s but it did not. Nothing "
                "is lost: call again to wait on."
            )
        sleep(poll)
    node.forget(round)
    failure, names = end
    if failure or not files.stages(name):
        why = failure or "This site was not asked in it."
        raise ReleaseError(
            f"Expected a round that is open but {round!r} is over. {why} A retry is a new round."
        )
    if name not in names:
        _log.warning(
            "torchmetrics-fed: round %s is over, and %s had dropped out of it.", round, name
        )
