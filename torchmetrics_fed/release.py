"""Share and Release: what one client sends, and the sum of it that every curve is made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmetrics_fed.errors import (
    DuplicateClientError,
    ImpossibleCountsError,
    InputError,
    ReleaseError,
    RoundMismatchError,
    SpecMismatchError,
)
from torchmetrics_fed.plausibility import MAX_TOTAL, check_counts
from torchmetrics_fed.roster import Roster
from torchmetrics_fed.spec import Spec
from torchmetrics_fed.wire import Message

__all__ = ["Release", "Share"]


@dataclass(frozen=True, eq=False)
class _Cells:
    """Integer cells ``(classes, 2, spec.tree.cells)`` under a spec."""

    spec: Spec
    cells: Tensor
    round: str = ""
    """The round that this was made for. Only what was made for the same round adds up."""

    def __post_init__(self) -> None:
        shape, dtype = self.spec.shape, self.spec.dtype
        if self.cells.dtype != dtype or tuple(self.cells.shape) != shape:
            raise InputError(
                f"Expected argument `cells` to be {dtype} of shape {shape} but got {self.cells.dtype} of shape "
                f"{tuple(self.cells.shape)}."
            )

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: as much as bytes may."""
        self._check_may_travel()
        return dict(self.__dict__)

    def _check_may_travel(self) -> None:
        """Raise for what only a secure sum may carry: a single share, or a sum that its noise does not cover."""
        self.spec.check_may_travel(getattr(self, "shares", 1))

    @property
    def nbytes(self) -> int:
        """Size of the cells in bytes."""
        return self.cells.numel() * self.cells.element_size()

    def __repr__(self) -> str:
        noise = f", {self.spec.privacy}" if self.spec.privacy else ""
        return (
            f"{type(self).__name__}({self.spec.task}, {self.nbytes} bytes, spec {self.spec.fingerprint.hex()}{noise})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Share(_Cells):
    """What one client sends for one release: the tree's levels of its counts, plus its share of the noise.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, Share
        >>> metric = FederatedROC()
        >>> metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> sent = bytes(metric.release("round-1"))
        >>> len(sent)
        289
        >>> Share.from_bytes(sent, metric.spec).round
        'round-1'
    """

    client: str = ""
    """Who sent it, if told. A client that is told is summed once."""

    def __bytes__(self) -> bytes:
        self._check_may_travel()
        return Message("share", self.cells, self.round, self.client).encode(self.spec)

    @classmethod
    def from_bytes(cls, data: bytes, spec: Spec) -> Share:
        """Return the share that ``data`` spells; any other spec is refused, and what differs is named.

        Raises :class:`SpecMismatchError` and :class:`WireError`. No pickle is read, and no more is allocated than a
        share of this spec takes.
        """
        message = Message.decode(data, spec, "share")
        return cls(spec, message.cells, message.round, message.client)

    @property
    def _sender(self) -> str:
        return f"the share of client {self.client!r}" if self.client else "a share without a client's name"


@dataclass(frozen=True, eq=False, repr=False)
class Release(_Cells):
    """The sum of shares. Any curve is a function of it.

    Example:
        >>> import torch
        >>> from torchmetrics_fed import FederatedROC, Release
        >>> clients = [FederatedROC(score_edges=[0, 0.25, 0.5, 0.75, 1]) for _ in range(2)]
        >>> clients[0].update(torch.tensor([0.1, 0.8]), torch.tensor([0, 1]))
        >>> clients[1].update(torch.tensor([0.4, 0.9]), torch.tensor([1, 0]))
        >>> total = Release.sum(client.release() for client in clients)
        >>> total.shares, total.leaf.sum().item()
        (2, 4)
        >>> FederatedROC.from_release(total).compute().tpr
        tensor([0.0000, 0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
    """

    shares: int = 1
    clients: bytes = b""
    """Digests of the clients that were told, so that sums of sums count nobody twice. They tell whoever guesses a
    client's name whether it took part: publish ``dataclasses.replace(release, clients=b"")``."""
    pilot: Release | None = None
    """The release of the first message, where this one's plan was made from it; it is not part of the bytes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.shares <= MAX_TOTAL:
            raise InputError(f"Expected argument `shares` to be at least 1 but got {self.shares!r}.")
        if not Roster.is_sorted(self.clients) or len(self.clients) > 8 * self.shares:
            raise InputError(
                f"Expected argument `clients` to be sorted digests of up to {self.shares} clients but got others."
            )
        if self.pilot is not None:
            self.spec.check(self.pilot.spec.planned(self.spec.tree, self.spec.portion))
            if self.pilot.spec.portion + self.spec.portion > 1:
                raise InputError(
                    f"Expected messages that share one epsilon but they spend {self.pilot.spec.portion} and "
                    f"{self.spec.portion} of it. Give as `pilot` the release that this one's plan was made from."
                )

    @classmethod
    def from_vector(
        cls, spec: Spec, vector: NDArray[np.int64], shares: int, round: str = "", pilot: Release | None = None
    ) -> Release:
        """Return the release that a secure sum of ``shares`` vectors of this spec has opened.

        Args:
            spec: what was summed.
            vector: the sum, as :meth:`SecureSumServer.sum` gives it.
            shares: how many clients are in it.
            round: the name of the sum.
            pilot: the release of the first message, if this is the second.
        """
        cells = torch.from_numpy(np.array(vector, dtype=np.int64)).reshape(spec.shape)
        return cls(spec, cells, round, shares, pilot=pilot)

    def __bytes__(self) -> bytes:
        self._check_may_travel()
        return Message("release", self.cells, self.round, "", self.shares, self.clients).encode(self.spec)

    @classmethod
    def from_bytes(cls, data: bytes, spec: Spec) -> Release:
        """Return the partial sum that ``data`` spells, with the care of :meth:`Share.from_bytes`.

        How many shares are in it, and whose, is the word of who summed them: read releases of trusted parties only.
        """
        message = Message.decode(data, spec, "release")
        return cls(spec, message.cells, message.round, message.shares, message.clients)

    @property
    def _sender(self) -> str:
        return f"a sum of {self.shares} shares"

    @classmethod
    def sum(
        cls,
        shares: Iterable[Share | Release],
        *,
        max_examples: int | None = None,
        round: str | None = None,
        pilot: Release | None = None,
    ) -> Release:
        """Add shares, or releases of part of the clients, one by one; every spec must be the first one's.

        Memory does not grow with their number, but for eight bytes of each client that is told. An error names the
        sender, and no argument is changed. To go on without that sender, add share by share: after
        ``total = Release.sum([total, share])`` has raised, ``total`` is what it was.

        Args:
            shares: what clients sent, or sums of it, in any order and grouping.
            max_examples: the most examples that one client can have. What is more, beyond noise, is refused; see
                :func:`torchmetrics_fed.plausibility.check_counts`. Sums of n shares may have n times as many,
                so whoever sums a part has to check it, too.
            round: the round that is open; if not given that of the first share.
            pilot: the release of the first message, if these are shares of the second.

        Raises:
            SpecMismatchError: two specs; each differing field is named.
            RoundMismatchError: a share of another round.
            DuplicateClientError: a client that is in the sum already, be it in a partial one.
            ImpossibleCountsError: cells that no data can have.
            ReleaseError: no shares.
        """
        if max_examples is not None and (not isinstance(max_examples, int) or max_examples < 1):
            raise InputError(f"Expected argument `max_examples` to be an int of at least 1 but got {max_examples!r}.")
        total: _Sum | None = None
        for share in shares:
            if not isinstance(share, Share | Release):
                raise InputError(f"Expected argument `shares` to hold Share or Release but got {type(share).__name__}.")
            if total is None:
                total = _Sum(share.spec, share.round if round is None else round, max_examples)
            total.add(share)
        if total is None or total.cells is None:
            raise ReleaseError("Expected at least one share to sum but got none. Did every client drop out?")
        return cls(total.spec, total.cells, total.roster.round, total.shares, bytes(total.roster), pilot)

    @property
    def levels(self) -> list[Tensor]:
        """Counts of each level of the tree, ``(classes, 2, size)``, top level first, as they were summed.

        Raises :class:`ReleaseError` where fewer shares were summed than their noise was cut for.
        """
        needed = self.spec.privacy.shares_needed if self.spec.privacy else 1
        if self.shares < needed:
            raise ReleaseError(
                f"Expected shares of at least min_clients={needed} clients but the sum holds {self.shares}: their "
                "noise does not add up to epsilon, so it is not opened. Wait for more clients."
            )
        return self.spec.tree.split(self.cells)

    @property
    def noise_variance(self) -> float:
        """Variance of the noise that is really in each cell: more than asked for where more clients added some."""
        privacy, noise = self.spec.privacy, self.spec.noise
        return 0.0 if privacy is None or noise is None else noise.variance * max(self.shares / privacy.shares, 1)

    @property
    def leaf(self) -> Tensor:
        """Counts on the leaves: ``(classes, 2, leaves)``, row 0 negatives, row 1 positives."""
        return self.levels[-1]


class _Sum:
    """A sum as it grows. What is refused was not added."""

    def __init__(self, spec: Spec, round: str, max_examples: int | None) -> None:
        self.spec = spec
        self.roster = Roster(round)
        self.cells: Tensor | None = None
        self.shares = 0
        self._max_examples = max_examples
        self._reach = 0

    def add(self, part: Share | Release) -> None:
        """Check and add a share or a sum."""
        self._check_spec(part)
        if part.round != self.roster.round:
            raise RoundMismatchError(
                f"Expected shares of one round, {self.roster.round!r}, but got {part._sender} of round {part.round!r}. "
                "Ask that client for the share of this round."
            )
        shares = part.shares if isinstance(part, Release) else 1
        self._reach += check_counts(self.spec, part.cells, part._sender, shares, self._max_examples)
        if self._reach > MAX_TOTAL:
            raise ImpossibleCountsError(
                f"Expected a sum that fits into 63 bits but with {part._sender} it does not. Drop it."
            )
        self._check_clients(part)
        if self.cells is None:
            self.cells = part.cells.clone()
        else:
            self.cells += part.cells.to(self.cells.device)
        self.shares += shares

    def _check_spec(self, part: Share | Release) -> None:
        if part.spec is self.spec:
            return
        try:
            self.spec.check(part.spec)
        except SpecMismatchError as error:
            raise SpecMismatchError(f"{error} It is {part._sender} that differs from the first.") from None

    def _check_clients(self, part: Share | Release) -> None:
        told = Roster.read(part.clients) if isinstance(part, Release) else []
        if isinstance(part, Share) and part.client:
            told = [self.roster.digest(part.client)]
        twice = sum(not self.roster.add(digest) for digest in told)
        if twice:
            raise DuplicateClientError(
                f"Expected every client once but {part._sender} counts {twice} of them again. Keep one of the two."
            )
