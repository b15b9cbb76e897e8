"""SharedClient: the client that metrics of the same data have in common."""

from __future__ import annotations

from typing import Any

from torchmetrics_fed.exchange.client import Client
from torchmetrics_fed.exchange.terms import Terms
from torchmetrics_fed.release import Release


class SharedClient:
    """The client that metrics of the same data have in common.

    The first update begins it, and a reset closes it.

    A copy that is made before there is data begins a client of its own. A copy that holds data
    shares the client, and so the one release there will be, but not the clients after its reset.

    Args:
        client: the open client, if there is one.
        previous: the last release, which may place the leaves of the next one.
    """

    def __init__(self, client: Client | None = None, previous: Release | None = None) -> None:
        self.client = client
        self.previous = previous

    def begun(self, terms: Terms) -> Client:
        """Return the client that is open, or a new one."""
        if self.client is None:
            self.client = Client(terms)
        return self.client

    def close(self, client: Client | None) -> None:
        """End ``client`` if it is the open one: the next update counts other data."""
        if client is not None and client.release is not None:
            self.previous = client.release
        if client is None or client is self.client:
            self.client = None

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedClient:
        twin: SharedClient = memo.setdefault(id(self), SharedClient(self.client, self.previous))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # metrics carry their client themselves, and leave their counts behind
        return SharedClient, (None, self.previous)
