"""A Flower client's state between messages (each may run in a new process), and its ledger."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from flwr.app import Context

from torchmetrics_fed.errors import InputError, SecureAggregationError
from torchmetrics_fed.metrics import FederatedMetric
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.privacy.store import Notes, Store
from torchmetrics_fed.release import Spec


class Node:
    """The notes of one node, whatever run or round they are of, in one file that only its user may read.

    A note is taken out before it is used, and the next one is on disk before an answer leaves. So no two processes go
    on from the same note, and a node that crashed in between has dropped out: it never answers twice. Rounds live side
    by side, those of other runs too. A note that nobody has erased is erased by the first message a day later.

    The node's folder, in ``home`` or Flower's, is named by the ``partition-id`` of its own configuration: ids of nodes
    and runs are the SuperLink's to give, and with a new one the node would forget what it has answered.
    """

    def __init__(self, context: Context, home: str | Path | None, spec: Spec) -> None:
        self._id = context.node_id
        self._name = str(context.node_config.get("partition-id", "node"))
        self._spec = spec
        default = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / "torchmetrics-fed"
        self._folder = Path(home or default) / self._name
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)  # it may have been there before
        self._store = Store(str(self._folder / "notes"))

    def charged(self, metric: FederatedMetric, terms: Mapping[str, Any]) -> FederatedMetric:
        """Return the metric with this node's ledger: one that has terms and no path is kept in the node's folder."""
        if terms:
            metric = deepcopy(metric)
            metric.charge_to(PrivacyLedger(path=self._folder / "ledger", **terms))
        return metric

    def claim(self, round: str, ledger: str | None) -> None:
        """Raise if another node uses the notes or the ledger: it would spend and answer for two."""
        stores = [self._store]
        if ledger:
            stores.append(Store(ledger))
        for store in stores:
            with store.transaction() as tables:
                self._claim(tables, round, store.path)

    def _claim(self, tables: Connection, round: str, path: str | None) -> None:
        row = tables.execute("SELECT name, round, node FROM owner").fetchone()
        if row is not None:
            name, last, number = row
            if name != self._name or (last == round and number != str(self._id)):
                raise InputError(
                    f"Expected files of its own for each node but {path!r} is used by node {name!r} (id "
                    f"{number}) and by node {self._name!r} (id {self._id}). Start each SuperNode with its own "
                    "`partition-id`, and leave out the ledger's `path` or name it by that."
                )
        tables.execute("DELETE FROM owner")
        tables.execute("INSERT INTO owner VALUES (?, ?, ?)", (self._name, round, str(self._id)))

    def begin(self, name: str) -> None:
        """Raise if the node has begun an aggregation of this name before: a name that comes again is a replay."""
        with self._notes() as notes:
            if notes.read(name) is not None:
                raise SecureAggregationError(
                    f"Expected a round that this node has not begun but it knows {name!r}. A retry is a new round."
                )
            notes.write(name, b"")

    def forget(self, round: str) -> None:
        """Erase the notes of a round. Their names stay: they end replays."""
        with self._notes() as notes:
            for name in notes.rounds():
                if name.startswith(session_of(round)):
                    notes.erase(name)

    def take(self, name: str) -> bytes:
        with self._notes() as notes:
            content = notes.read(name)
            notes.erase(name)
        if not content:
            raise SecureAggregationError(
                f"Expected notes of {name!r} but this node has none: it did not begin it, was interrupted, or its "
                "folder was not kept between messages. It stays out of this round."
            )
        return content

    def keep(self, name: str, content: bytes) -> None:
        with self._notes() as notes:
            notes.write(name, content)

    @contextmanager
    def _notes(self) -> Iterator[Notes]:
        with self._store.transaction() as tables:
            yield Notes(tables, self._spec.digest)


def session_of(round: str) -> str:
    """Return the name of the note with raw counts for the second query of a round; aggregations are ``round/1``..."""
    return f"{round}/"
