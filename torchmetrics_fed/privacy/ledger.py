"""PrivacyLedger: what was spent so far, and of which budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from torchmetrics_fed.errors import InputError, LedgerConflictError, LedgerError, LedgerFileError
from torchmetrics_fed.privacy.budget import Budget, Composition, Spent, checked_composition
from torchmetrics_fed.privacy.composition import pld_library
from torchmetrics_fed.privacy.entry import LedgerEntry, checked_delta, checked_epsilon
from torchmetrics_fed.privacy.journal import Journal

__all__ = ["LedgerEntry", "PrivacyLedger", "Spent"]


class PrivacyLedger:
    """The record of every private release of the same people's data, shared by all metrics that make one.

    A ledger is one thing however often it is copied: ``copy`` and ``deepcopy`` return the ledger itself. Without
    ``path`` it lives in one process: pickling it, or spending from it after a fork, raises. With ``path`` it is a file
    that processes share and that is continued when it is opened again.

    Args:
        budget: all entries together must be (``budget``, ``delta``)-differentially private, or `spend` raises; None
            only keeps the record. It belongs to this object: the same file may be opened with another budget.
        path: the file; `torchmetrics_fed.privacy.journal` says what it holds and why no crash makes it forget.
        delta: the delta of the budget.
        composition: "addition", exact and always valid, or "pld", which needs ``torchmetrics-fed[privacy]`` and
            amounts that were not chosen after seeing earlier results.

    Example:
        >>> ledger = PrivacyLedger(budget=1.0)
        >>> entry = ledger.spend("validation", round=1, epsilon=0.8)
        >>> ledger.spend("validation", round="1", epsilon=0.8) == entry  # the same release: not spent again
        True
        >>> ledger
        PrivacyLedger(epsilon 0.8 of 1.0 spent, 1 release)
        >>> ledger.spend("validation", round=2, epsilon=0.5)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        torchmetrics_fed.errors.BudgetExceededError: ... this release needs epsilon 0.5, 0.2 of 1.0 is left...
    """

    def __init__(
        self,
        budget: float | None = None,
        path: str | os.PathLike[str] | None = None,
        delta: float = 1e-6,
        *,
        composition: Composition = "addition",
    ) -> None:
        self.budget = None if budget is None else checked_epsilon("budget", budget)
        self.path = None if path is None else os.path.abspath(os.fsdecode(path))
        self.delta = checked_delta(delta)
        self.composition = checked_composition("composition", composition)
        if composition == "pld":
            pld_library()
        with _turn:
            self._store = _Memory() if self.path is None else Journal(self.path, _decode)

    def spend(
        self,
        data: str,
        round: str | int,
        epsilon: float,
        delta: float = 0.0,
        mechanism: str = "",
        *,
        exist_ok: bool = True,
    ) -> LedgerEntry:
        """Enter a release before its noise is drawn. Once this has returned, the entry outlives any crash.

        The ranks of one release all spend for one (``data``, ``round``) and get one entry. Two draws of noise need two
        rounds: where a draw might not be the first of its round, as in a resumed run, say ``exist_ok=False``.

        Args:
            data: the name of the data.
            round: which release of that data; an integer counts as its digits.
            epsilon: price of the release.
            delta: price of the release.
            mechanism: a remark for readers of the ledger; the first one stays.
            exist_ok: whether the same data, round and price once more return the entry or raise.
        """
        entry = LedgerEntry(data, round, epsilon, delta, mechanism, _now())  # type: ignore[arg-type]
        with self._held(exclusive=True) as entries:
            known = next((one for one in entries if one.key == entry.key), None)
            if known is None:
                self._reckoning().check([one.amounts for one in entries], entry.amounts)
                self._store.commit(asdict(entry))
                return entry
            if known.amounts != entry.amounts or not exist_ok:
                raise LedgerConflictError(
                    f"Expected a new round but data {known.data!r}, round {known.round!r} was spent on {known.time} "
                    f"(epsilon {known.epsilon}, delta {known.delta}), now got epsilon {entry.epsilon}, delta "
                    f"{entry.delta}. Give each draw of noise a round of its own."
                )
            self._store.commit(None)
            return known

    def spent(self, delta: float | None = None, method: Composition | None = None) -> Spent:
        """What all entries cost together, by the ledger's composition unless ``method`` names another.

        By addition, the epsilons and the deltas are summed. By PLD it is the epsilon at ``delta`` (the ledger's, if
        None), whatever mechanisms were used: 100 times epsilon 0.1 is 10 by addition, and 4.77 at delta 1e-6.
        """
        method = self.composition if method is None else checked_composition("method", method)
        if method == "addition" and delta is not None:
            raise InputError(f"Expected argument `delta` only with method 'pld' but got {delta!r} with 'addition'.")
        delta = self.delta if delta is None else checked_delta(delta)
        return Budget(None, delta, method).spent([entry.amounts for entry in self])

    @property
    def remaining(self) -> float:
        """Epsilon left of the budget, infinite without one. By PLD a release may take less of it than its epsilon."""
        return self._reckoning().left([entry.amounts for entry in self])

    @property
    def torn(self) -> int:
        """Number of lines in the file that a crash cut short. Their releases were not made, and do not count."""
        with self._held():
            return self._store.torn

    def __iter__(self) -> Iterator[LedgerEntry]:
        with self._held() as entries:
            return iter(entries)

    def __len__(self) -> int:
        with self._held() as entries:
            return len(entries)

    def __bool__(self) -> bool:
        return True  # an empty ledger is a ledger

    def __repr__(self) -> str:
        try:
            with self._held() as entries:
                count, torn = len(entries), self._store.torn
            epsilon, delta = self._reckoning().spent([entry.amounts for entry in entries])
        except LedgerError as error:
            return f"{type(self).__name__}(unreadable: {error})"
        told = f"epsilon {epsilon:.12g}" + (f", delta {delta:g}" if delta else "")
        told += " spent" if self.budget is None else f" of {self.budget} spent"
        told += f", {count} release{'' if count == 1 else 's'}" + (f", {torn} torn" if torn else "")
        return f"{type(self).__name__}({told}{'' if self.path is None else f', path={self.path!r}'})"

    def __copy__(self) -> PrivacyLedger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyLedger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None and self.budget is None and not len(self):
            return type(self), ()  # nothing is lost: the copy begins as this one did
        if self.path is None:
            raise LedgerError(
                "Expected a ledger with `path` to pickle but got one in memory: its copy would not know what is spent "
                "here. Build it with PrivacyLedger(path=...)."
            )
        return _reopen, (type(self), self.budget, self.path, self.delta, self.composition)

    def _reckoning(self) -> Budget:
        return Budget(self.budget, self.delta, self.composition)

    @contextmanager
    def _held(self, exclusive: bool = False) -> Iterator[tuple[LedgerEntry, ...]]:
        with _turn, self._store.locked(exclusive):
            yield self._store.records


class _Memory:
    """The records of a ledger without a file. They stay in the process that made it."""

    def __init__(self) -> None:
        self.records: tuple[LedgerEntry, ...] = ()
        self.torn = 0
        self._process = os.getpid()

    @contextmanager
    def locked(self, exclusive: bool) -> Iterator[None]:
        if exclusive and os.getpid() != self._process:
            raise LedgerError(
                "Expected to spend in the process that made the ledger but this is a fork of it, which the others "
                "would not hear of. Build it with PrivacyLedger(path=...)."
            )
        yield

    def commit(self, record: dict[str, Any] | None) -> None:
        if record is not None:
            self.records = (*self.records, _decode(record))


# One for the whole process, not per ledger: where flock is emulated (NFS), it does not tell two ledgers of one process
# apart. A fork may copy it while another thread holds it, hence the new one in the child.
_turn = threading.RLock()


def _new_turn() -> None:
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_turn)


def _decode(record: dict[str, Any]) -> LedgerEntry:
    return LedgerEntry(**record)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _reopen(
    kind: type[PrivacyLedger], budget: float | None, path: str, delta: float, composition: Composition
) -> PrivacyLedger:
    if not os.path.exists(path):
        raise LedgerFileError(
            f"Expected the ledger file {path!r} to exist but it does not: what was spent would be forgotten. "
            "Copy it here, or put it back."
        )
    return kind(budget, path, delta, composition=composition)
