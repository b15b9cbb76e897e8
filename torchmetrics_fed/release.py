"""Share and Release: what one client sends, and the sum of it that every curve is made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from torchmetrics_fed.errors import InputError, ReleaseError
from torchmetrics_fed.spec import Spec

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
    """What one client sends for one release: the tree's levels of its counts, plus its share of the noise."""


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

    @classmethod
    def sum(cls, shares: Iterable[Share | Release]) -> Release:
        """Add shares, or releases of part of the clients, one by one; every spec must be the first one's."""
        first, total, count = None, None, 0
        for share in shares:
            if not isinstance(share, Share | Release):
                raise InputError(f"Expected argument `shares` to hold Share or Release but got {type(share).__name__}.")
            if first is None or total is None:
                first, total = share, share.cells.clone()
            else:
                first.spec.check(share.spec)
                if share.round != first.round:
                    raise ReleaseError(
                        f"Expected shares of one round, {first.round!r}, but got one of round {share.round!r}. Ask "
                        "that client for the share of this round."
                    )
                total += share.cells.to(total.device)
            count += share.shares if isinstance(share, Release) else 1
        if first is None or total is None:
            raise ReleaseError("Expected at least one share to sum but got none. Did every client drop out?")
        return cls(first.spec, total, first.round, count)

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
    def leaf(self) -> Tensor:
        """Counts on the leaves: ``(classes, 2, leaves)``, row 0 negatives, row 1 positives."""
        return self.levels[-1]
