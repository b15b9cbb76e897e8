"""Node: what a client's node remembers between two messages, which may find another process, and its own ledger."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from flwr.app import Context

from torchmetrics_fed.errors import InputError, SecureAggregationError
from torchmetrics_fed.metrics import FederatedMetric
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.privacy.store import Store


class Node:
    """The notes of one node, whatever run or round they are of, in one file that only its user may read.

    A note is taken out before it is used, and the next one is on disk before an answer leaves. So no two processes go
    on from the same note, and a node that crashed in between has dropped out: it never answers twice.

    The node's folder, in ``home`` or Flower's, is named by the ``partition-id`` of its own configuration: ids of nodes
    and runs are the SuperLink's to give, and with a new one the node would forget what it has answered.
    """

    def __init__(self, context: Context, home: str | Path | None) -> None:
        self._id, self._name = context.node_id, str(context.node_config.get("partition-id", "node"))
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
        for store in (self._store, *([Store(ledger)] if ledger else [])):
            with store.transaction() as tables:
                found = tables.execute("SELECT content FROM notes WHERE name = 'owner'").fetchone()
                name, last, number = (
                    json.loads(found[0]) if found else (self._name, round, self._id)
                )
                if name != self._name or (last == round and number != self._id):
                    raise InputError(
                        f"Expected files of its own for each node but {store.path!r} is used by node {name!r} (id "
                        f"{number}) and by node {self._name!r} (id {self._id}). Start each SuperNode with its own "
                        "`partition-id`, and leave out the ledger's `path` or name it by that."
                    )
                owner = json.dumps([self._name, round, self._id]).encode()
                tables.execute("INSERT OR REPLACE INTO notes VALUES ('owner', ?)", (owner,))

    def begin(self, round: str, name: str) -> None:
        """Raise if the node has begun an aggregation of this name before: a name that comes again is a replay.

        What was kept for other rounds is erased: it is of no more use, and what broke off holds secrets.
        """
        with self._store.transaction() as tables:
            if tables.execute("SELECT 1 FROM notes WHERE name = ?", (name,)).fetchone():
                raise SecureAggregationError(
                    f"Expected a round that this node has not begun but it knows {name!r}. A retry is a new round."
                )
            tables.execute(
                "UPDATE notes SET content = x'' WHERE name NOT IN ('owner', ?)",
                (session_of(round),),
            )
            tables.execute("INSERT INTO notes VALUES (?, x'')", (name,))

    def forget(self, start: str = "") -> None:
        """Erase the notes whose names begin like this. The names stay: they end replays."""
        with self._store.transaction() as tables:
            tables.execute(
                "UPDATE notes SET content = x'' WHERE instr(name, ?) = 1 AND name != 'owner'",
                (start,),
            )

    def take(self, name: str) -> bytes:
        with self._store.transaction() as tables:
            found = tables.execute("SELECT content FROM notes WHERE name = ?", (name,)).fetchone()
            tables.execute("UPDATE notes SET content = x'' WHERE name = ?", (name,))
        if not found or not found[0]:
            raise SecureAggregationError(
                f"Expected notes of {name!r} but this node has none: it did not begin it, was interrupted, or its "
                "folder was not kept between messages. It stays out of this round."
            )
        return bytes(found[0])

    def keep(self, name: str, content: bytes) -> None:
        with self._store.transaction() as tables:
            tables.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, content))


def session_of(round: str) -> str:
    """Return the name of the note with raw counts for the second query of a round; aggregations are ``round/1``..."""
    return f"{round}/"
