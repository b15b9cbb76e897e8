"""NodeHome: a Flower node's own folder, with its notes and its ledger."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection

from flwr.app import Context

from torchmetrics_fed.errors import InputError
from torchmetrics_fed.exchange import Terms
from torchmetrics_fed.privacy import PrivacyLedger
from torchmetrics_fed.privacy.budget import Budget
from torchmetrics_fed.privacy.store import Store


class NodeHome:
    """A node's own folder, which only its user may read.

    It is named by the ``partition-id`` in the node's own configuration: the SuperLink gives out the
    ids of nodes and runs, and with a new id the node would forget what it has answered.

    Args:
        context: Flower's context of a message.
        parent: the folder of all nodes' folders; below Flower's home if None.
    """

    def __init__(self, context: Context, parent: str | Path | None) -> None:
        self._node_id = str(context.node_id)
        self._name = str(context.node_config.get("partition-id", "node"))
        if parent is None:
            flower = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
            parent = flower / "torchmetrics-fed"
        self._folder = Path(parent) / self._name
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)  # it may have been there before
        self.notes = Store(str(self._folder / "notes"))

    def terms(self, terms: Terms, budget: Budget | None) -> Terms:
        """Return the terms with a ledger in this folder, if they have a budget and no file."""
        if budget is None:
            return terms
        ledger = PrivacyLedger(
            path=self._folder / "ledger",
            budget=budget.epsilon,
            delta=budget.delta,
            composition=budget.composition,
        )
        return replace(terms, ledger=ledger)

    def claim(self, round: str, ledger: PrivacyLedger) -> None:
        """Raise if another node uses the notes or the ledger: it would spend and answer for two."""
        stores = [self.notes]
        if ledger.path is not None:
            stores.append(Store(ledger.path))
        for store in stores:
            with store.transaction() as tables:
                self._claim(tables, round, store.path)

    def _claim(self, tables: Connection, round: str, path: str | None) -> None:
        row = tables.execute("SELECT name, round, node FROM owner").fetchone()
        if row is not None:
            name, last_round, node_id = row
            is_other = name != self._name or (last_round == round and node_id != self._node_id)
            if is_other:
                raise InputError(
                    f"Expected files of its own for each node but {path!r} is used by node "
                    f"{name!r} (id {node_id}) and by node {self._name!r} (id {self._node_id}). "
                    "Start each SuperNode with its own `partition-id`, and leave out the ledger's "
                    "`path` or name it by that."
                )
        tables.execute("DELETE FROM owner")
        tables.execute("INSERT INTO owner VALUES (?, ?, ?)", (self._name, round, self._node_id))
