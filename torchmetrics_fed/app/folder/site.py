"""run_site: a site's side of a round in a shared folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep

from torchmetrics import MetricCollection

from torchmetrics_fed.app.folder.files import (
    REFUSED,
    REPLIED,
    Files,
    PendingRequest,
    RoundEnd,
)
from torchmetrics_fed.errors import FederatedMetricError, InputError, ReleaseError, WireError
from torchmetrics_fed.exchange.node import Node
from torchmetrics_fed.exchange.terms import Terms
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

    A site that was killed is called again with the same arguments and goes on: every reply is noted
    on the site's own disk before it leaves, with the counts if a second query may come. Notes are
    erased when the round is over, when this site refuses, and by the first call after a day. Other
    rounds, of this study or another, may use the same file at the same time. A site that was killed
    between the charge of its ledger and the note has dropped out of the query.

    Args:
        folder: the shared folder. It must exist.
        name: the name of this site, which no other site has.
        metric: updated with this site's data. A private metric needs a ledger with a budget and a
            path because the coordinator decides how often it asks.
        round: the round to take part in, and no other.
        timeout: seconds to wait for the coordinator's next file; as long as it takes if None.
        poll: seconds between two looks into the folder.
        notes: the file for notes, outside the shared folder; beside the ledger if not given. One of
            them is needed where shares are hidden.
        signing_key: this site's long-term Ed25519 private key, for aggregations that are signed.
        verification_keys: by site, the public keys of all sites, from another source than the
            coordinator.

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
    counts_metric = representative(metric)
    terms = terms_of(counts_metric)
    files = Files(folder, round)
    terms.check_ledger()
    _check_ledger_outside(terms, files)
    node = Node(
        name,
        terms,
        Store(_notes_path(notes, terms, files)),
        signing_key=signing_key,
        verification_keys=verification_keys,
    )
    _SiteRun(files, name, node, metric=counts_metric, timeout=timeout, poll=poll).run()


def _check_ledger_outside(terms: Terms, files: Files) -> None:
    """Raise if the ledger is in the shared folder, where others could change or restore it."""
    path = terms.ledger.path
    if path is not None and Path(path).resolve().is_relative_to(files.folder.resolve()):
        raise InputError(
            "Expected the ledger on this site's own disk but got "
            f"{path!r}, inside the shared folder, where others can read or replace it. Move it out."
        )


def _notes_path(notes: str | os.PathLike[str] | None, terms: Terms, files: Files) -> str | None:
    """Return the file for notes; None to keep them in memory, where shares may be seen."""
    path = None
    if notes is not None:
        path = os.fspath(notes)
    elif terms.ledger.path is not None:
        path = f"{terms.ledger.path}.notes"
    if path is None:
        is_refused = terms.spec.hides_shares
    else:
        is_refused = Path(path).resolve().is_relative_to(files.folder.resolve())
    if is_refused:
        raise InputError(
            "Expected a place for this site's notes, which are secret and without which it could "
            f"answer twice after a crash, but got {path!r}. Pass `notes=`, or a ledger with a "
            "path, on this site's own disk."
        )
    return path


class _SiteRun:
    """One run of a site: it looks into the folder, replies to requests, and stops at the end.

    Args:
        files: the files of the round.
        name: the name of the site.
        node: replies for the site, and keeps its notes.
        metric: holds the site's data.
        timeout: seconds to wait for the coordinator, or None.
        poll: seconds between two looks.
    """

    def __init__(
        self,
        files: Files,
        name: str,
        node: Node,
        *,
        metric: CountsMetric,
        timeout: float | None,
        poll: float,
    ) -> None:
        self._files = files
        self._name = name
        self._node = node
        self._metric = metric
        self._timeout = timeout
        self._poll = poll
        self._last_reply_time = monotonic()
        self._problem: WireError | None = None
        """Why the last file of the coordinator could not be read."""

    def run(self) -> None:
        """Take part in the round until it is over."""
        self._files.make_folder(self._files.site_folder(self._name))
        end = self._reply_until_end()
        self._node.forget(self._files.round)
        self._check_end(end)

    def _reply_until_end(self) -> RoundEnd:
        while True:
            end, pending = self._look()
            if end is not None:
                return end
            if pending is not None:
                self._reply(pending)
            else:
                self._check_timeout()
            sleep(self._poll)

    def _look(self) -> tuple[RoundEnd | None, PendingRequest | None]:
        """Return how the round has ended, and the request to reply to, where there are any."""
        try:
            return self._files.end(), self._files.pending_request(self._name)
        except WireError as error:
            # the file is not whole yet, or not the coordinator's: the right one may still come
            if str(error) != str(self._problem):
                _log.warning(
                    "torchmetrics-fed: round %s, %s waits. %s", self._files.round, self._name, error
                )
            self._problem = error
            return None, None

    def _reply(self, pending: PendingRequest) -> None:
        """Write the reply to a request, or the refusal."""
        path = self._files.reply_path(pending.label, self._name)
        try:
            reply = self._node.reply(pending.request, evaluation_of(self._metric))
        except FederatedMetricError as error:
            self._node.forget(self._files.round)
            reason = str(error).encode()  # the node has taken out whatever depends on data
            self._files.write(path, pending.digest, REFUSED + reason)
            raise
        self._files.write(path, pending.digest, REPLIED + reply)
        self._last_reply_time = monotonic()
        self._problem = None

    def _check_timeout(self) -> None:
        """Raise if the coordinator was silent for too long."""
        if self._timeout is None or monotonic() - self._last_reply_time <= self._timeout:
            return
        if self._problem is not None:
            raise self._problem
        raise ReleaseError(
            f"Expected the coordinator to go on with round {self._files.round!r} within "
            f"{self._timeout:g} s but it did not. Nothing is lost: call again to wait on."
        )

    def _check_end(self, end: RoundEnd) -> None:
        """Raise if the round has no release, or was over before this site came."""
        round = self._files.round
        failure = end.failure
        if not failure and not self._files.requested_stages(self._name):
            failure = "This site was not asked in it."
        if failure:
            raise ReleaseError(f"Round {round!r} is over. {failure} A retry is a new round.")
        if self._name not in end.sites:
            _log.warning(
                "torchmetrics-fed: round %s is over, and %s had dropped out of it.",
                round,
                self._name,
            )
