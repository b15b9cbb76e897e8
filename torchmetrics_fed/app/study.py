"""Study: the file that all sites and the aggregator agree on: task, columns, grid, privacy, round, ledger."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import FederatedMetric, FederatedROC
from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP, PrivacyLedger

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PRIVACY = {kind.__name__: kind for kind in (DistributedDP, LocalDP, CentralDP)}
_METRIC = "task", "num_classes", "num_labels", "secure"
_TABLES = {
    "": (*_METRIC, "round", "clients", "columns", "grid", "privacy", "ledger"),
    "columns": (
        "score",
        "label",
        "labels",
        "group",
        "groups",
        "person",
        "delimiter",
        "ignore_index",
    ),
    "grid": ("quantiles", "kind", "range", "edges", "normalization"),
    "privacy": ("kind", "plan", *(each.name for each in fields(DistributedDP))),
    "ledger": ("path", "budget", "delta"),
}
_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("round", "path", "delimiter", "group", "person"), (str, "a text")),
    **dict.fromkeys(("labels", "groups", "range", "edges"), (list, "a list")),
    "clients": (int | list, "the number of sites, or a list of their names"),
}


@dataclass(frozen=True)
class Study:
    """What is in a study file. ``torchmetrics-fed init`` writes one with comments.

    Example:
        >>> print(Study.of({"privacy": {"kind": "LocalDP", "epsilon": 1.0}}).metric().spec.privacy)
        LocalDP(epsilon=1 for one example, added or removed; holds against everyone)
        >>> Study.of({"privacy": {"kind": "LocalDP", "epsilom": 1.0}})
        Traceback (most recent call last):
        torchmetrics_fed.errors.InputError: Expected known keys in [privacy] but got 'epsilom'. Did you mean 'epsilon'?
    """

    options: Mapping[str, Any]
    """The arguments of the metric, except for its ledger and the name of its data."""
    columns: Mapping[str, Any]
    """Which columns of a table hold what, as :func:`~torchmetrics_fed.app.tables.count_table` takes it."""
    round: str = "1"
    clients: int | list[str] | None = None
    """How many sites there are, or their names."""
    ledger: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    """Where the ledger's path begins."""

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Study:
        """Return the study in a TOML file. Keys that are not known are errors."""
        try:
            return cls.of(tomllib.loads(Path(path).read_text(encoding="utf-8")), Path(path).parent)
        except (
            ValueError,
            TypeError,
        ) as error:  # no UTF-8, no TOML, or keys and values that mean nothing
            raise InputError(f"{path}: {error}") from error

    @classmethod
    def of(cls, content: Mapping[str, Any], folder: Path = Path()) -> Study:
        """Return the study with the content of a TOML file, its ledger in ``folder``; raises if it means nothing."""
        _check(content)
        columns, grid, privacy = (
            dict(content.get(name, {})) for name in ("columns", "grid", "privacy")
        )
        options = {key: content[key] for key in _METRIC if key in content}
        options |= {name: columns.pop(name, None) for name in ("ignore_index", "groups")}
        options["labels"] = [str(label) for label in columns.pop("labels", ())]
        options["normalization"] = grid.pop("normalization", None)
        options |= {"quantiles": grid.get("quantiles", 1024), "grid": _grid(**grid)}
        named = "person" in columns
        if privacy:
            kind = _PRIVACY.get(privacy.pop("kind", ""))
            if kind is None:
                raise InputError(f"Expected `kind` in [privacy] to be one of {list(_PRIVACY)}.")
            known = [each.name for each in fields(kind)]
            needed = {"epsilon", "min_clients"}.intersection(known)
            if not needed <= privacy.keys() - {"plan"} <= {*known}:
                raise InputError(
                    f"Expected [privacy] with {kind.__name__} to have {sorted(needed)}, and else only some of {known} "
                    f"and `plan`, but got {sorted(privacy)}."
                )
            options |= {
                "plan": privacy.pop("plan", None),
                "privacy": kind(**{"enforced": named, **privacy}),
            }
        if named != (bool(privacy) and options["privacy"].enforced):
            raise InputError(
                "Expected `person` in [columns] if and only if the bound of [privacy] on examples per person is "
                "`enforced` by it. Name the column of ids, or leave out both."
            )
        about = content.get("round", "1"), content.get("clients"), content.get("ledger", {})
        study = cls(options, columns, *about, folder)
        study.metric()
        return study

    def metric(self, name: str = "", kind: type[FederatedMetric] = FederatedROC) -> FederatedMetric:
        """Return the metric that all parties agree on: that of a named site, with its ledger, or of the aggregator.

        What is counted does not depend on ``kind``.
        """
        if name and isinstance(self.clients, list) and name not in self.clients:
            raise InputError(
                f"Expected one of the study's `clients` but got {name!r}. They are {self.clients}."
            )
        if not name or "privacy" not in self.options:
            return kind(**self.options, data=name or "data")
        if not {"path", "budget"} <= self.ledger.keys():
            raise InputError(
                "Expected a ledger with a path and a budget in a study with privacy, because others decide how often "
                'you are asked. Add a table [ledger] with `path = "{name}.ledger"` and `budget = 3.0`.'
            )
        path = self.folder / self.ledger["path"].replace("{name}", name)
        return kind(
            **self.options, ledger=PrivacyLedger(**{**self.ledger, "path": path}), data=name
        )


def _check(content: Mapping[str, Any]) -> None:
    """Raise for keys that are not known, and for values that nobody else checks."""
    for table, known in _TABLES.items():
        found, where = (content.get(table, {}), f"[{table}]") if table else (content, "the study")
        if not isinstance(found, Mapping):
            raise InputError(
                f"Expected {where} to be a table but got {found!r}. Write its keys below a line {where}."
            )
        for key, value in found.items():
            if key not in known:
                raise InputError(
                    f"Expected known keys in {where} but got {key!r}. {_meant(key, known)}"
                )
            kind, words = _KINDS.get(key, (object, ""))
            if not isinstance(value, kind) or (isinstance(value, bool) and words):
                raise InputError(f"Expected `{key}` in {where} to be {words} but got {value!r}.")


def _meant(key: str, known: Collection[str]) -> str:
    for near in difflib.get_close_matches(key, known, 1):
        return f"Did you mean {near!r}?"
    homes = [
        f"It belongs into [{table}]." for table, keys in _TABLES.items() if table and key in keys
    ]
    return homes[0] if homes else f"There are {', '.join(known)}."


def _grid(
    quantiles: int = 1024, kind: Any = "two_sided", range: Any = None, edges: Any = None
) -> Any:
    if edges is not None:
        return ScoreGrid.from_edges(edges)
    if range is not None and kind != "even":
        raise InputError(f'Expected kind = "even" with a `range` but got {kind!r}.')
    return kind if range is None else ScoreGrid.even(quantiles, range)
