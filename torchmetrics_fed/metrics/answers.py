"""AnsweringMetric: what a client's metric answers to an aggregator, and what it keeps between two queries."""

from torchmetrics_fed.aggregation import Alone
from torchmetrics_fed.aggregation.secure import SecureAggregationClient
from torchmetrics_fed.errors import ReleaseError
from torchmetrics_fed.exchange.queries import first_query
from torchmetrics_fed.exchange.session import Session
from torchmetrics_fed.metrics.host import CountsMetric
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.release import Query, Share


class AnsweringMetric(CountsMetric):
    """A Metric whose session answers queries: in the open, or masked for secure aggregation."""

    def share(self, *, round: str = "", query: Query | None = None) -> Share:
        """Return this client's answer to a query. Ranks of one client (its ``process_group``) are summed first.

        Under privacy the answer is drawn once, and its release charged once: asked again, in the same round, it is the
        very same one. Where shares may only travel through secure aggregation this raises; use :meth:`mask`.

        Args:
            round: the round that the aggregator has opened, if it has; only shares of one round add up.
            query: what the aggregator asks; the first query of this metric's own plan if not given.
        """
        session = self._answering()
        return session.share(self.counts, query or first_query(self.plan, self.spec), round, self._ranks())

    def mask(
        self, client: SecureAggregationClient, boxes: bytes, *, round: str = "", query: Query | None = None
    ) -> bytes:
        """Return this client's answer, masked for one secure aggregation: the message that the server waits for.

        Noise is drawn and the ledger charged only when the protocol has checked everything else. An answer enters one
        aggregation; a retry after masking is a new round, drawn and charged again.

        Args:
            client: this client's side of the aggregation, after ``share_keys``.
            boxes: the server's ciphertexts for this client.
            round: as in :meth:`share`, and likewise ``query``.
        """
        session, ranks = self._answering(), self._ranks()
        if not isinstance(ranks, Alone):
            raise ReleaseError(
                "Expected one process for secure aggregation but this client has ranks. Add their counts up in one "
                "metric with `merge_state`, outside of the process group."
            )
        return session.mask(self.counts, client, boxes, query or first_query(self.plan, self.spec), round, ranks)

    def suspend(self) -> bytes:
        """Return this session with its raw counts, for a node that is asked the second query in a new process.

        Keep it where this user alone may read it, erase it when the round is over, and send it nowhere.
        """
        return self._answering().to_bytes(self.counts)

    def resume(self, note: bytes) -> None:
        """Continue the session that :meth:`suspend` returned. What was answered before is refused."""
        session, counts = Session.from_bytes(note, self.spec, self.ledger, self.data)
        self.reset()
        self._session, self.counts = session, counts.to(self.counts.device)
        self._update_count = 1

    def charge_to(self, ledger: PrivacyLedger) -> None:
        """Charge releases to another ledger from now on; raises once something of this data was drawn."""
        session = self._current_session()
        if session is not None:
            session.check("update")
            session.ledger = ledger
        self.ledger = ledger

    def check_ledger(self) -> None:
        """Raise unless a server may decide how often this metric is asked: a private one needs a limit that lasts."""
        if self.spec.privacy is not None:
            self.ledger.check_lasting()

    def _answering(self) -> Session:
        """The session that answers queries."""
        if self._given is not None:
            raise ReleaseError("Expected a client's metric but this one was made from a release, which has no share.")
        self._check_local()
        return self._joined()
