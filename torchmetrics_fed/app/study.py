"""Study: the file that all sites and the aggregator agree on.

It names task, columns, grid, privacy, round and ledger. The tables of the file and their keys are
in ``_TABLE_KEYS``; ``study.toml`` beside this module shows each key with a comment.
"""

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
from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP, Privacy, PrivacyLedger
from torchmetrics_fed.typing import GridName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PRIVACY_KINDS: dict[str, Any] = {
    "DistributedDP": DistributedDP,
    "LocalDP": LocalDP,
    "CentralDP": CentralDP,
}

_NEEDED_PRIVACY_KEYS = {"epsilon", "min_clients"}
"""Keys of [privacy] that have no default, for settings that have them at all."""

_METRIC_KEYS = (
    "task",
    "num_classes",
    "num_labels",
    "labels_per_example",
    "sums_to_one",
    "secure",
)
"""Keys above all tables that are arguments of the metric."""

_DEFAULT_QUANTILES = 1024

_TABLE_KEYS: dict[str, tuple[str, ...]] = {
    "": (*_METRIC_KEYS, "round", "clients", "columns", "grid", "privacy", "ledger"),
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
    "privacy": ("kind", "plan", *(setting.name for setting in fields(DistributedDP))),
    "ledger": ("path", "budget", "delta"),
}
"""By table, its keys. The table without a name holds the keys above all tables."""

_TEXT = (str, "a text")
_LIST = (list, "a list")
_VALUE_TYPES: dict[str, tuple[Any, str]] = {
    "round": _TEXT,
    "path": _TEXT,
    "delimiter": _TEXT,
    "group": _TEXT,
    "person": _TEXT,
    "labels": _LIST,
    "groups": _LIST,
    "range": _LIST,
    "edges": _LIST,
    "clients": (int | list, "the number of sites, or a list of their names"),
}
"""By key, the type of its value, and its name in errors. Other values are checked where used."""


@dataclass(frozen=True)
class Study:
    """The content of a study file. ``torchmetrics-fed init`` writes a study file with comments.

    Example:
        >>> print(Study.of({"privacy": {"kind": "LocalDP", "epsilon": 1.0}}).metric().spec.privacy)
        LocalDP(epsilon=1 for one example, added or removed; holds against everyone)
        >>> Study.of({"privacy": {"kind": "LocalDP", "epsilom": 1.0}})
        Traceback (most recent call last):
        torchmetrics_fed.errors.InputError: Expected known keys in ... Did you mean 'epsilon'?
    """

    options: Mapping[str, Any]
    """The arguments of the metric, except for its ledger and the name of its data."""
    columns: Mapping[str, Any]
    """The names of the columns, as arguments of
    :func:`~torchmetrics_fed.app.tables.count_table`."""
    round: str = "1"
    clients: int | list[str] | None = None
    """The number of sites, or their names."""
    ledger: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the ledger of a site."""
    folder: Path = Path()
    """The folder that the path of the ledger is relative to."""

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Study:
        """Return the study in a TOML file. Unknown keys are errors."""
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            return cls.of(content, Path(path).parent)
        except (ValueError, TypeError) as error:
            # the file is not UTF-8, not TOML, or has unknown keys or impossible values
            raise InputError(f"{path}: {error}") from error

    @classmethod
    def of(cls, content: Mapping[str, Any], folder: Path = Path()) -> Study:
        """Return the study with this content, or raise if it is not valid.

        Args:
            content: the content of a TOML file.
            folder: the folder that the path of the ledger is relative to.
        """
        _check_keys(content)
        columns = dict(content.get("columns", {}))
        grid = dict(content.get("grid", {}))
        privacy = dict(content.get("privacy", {}))
        options = {key: content[key] for key in _METRIC_KEYS if key in content}
        options["ignore_index"] = columns.pop("ignore_index", None)
        options["groups"] = columns.pop("groups", None)
        options["labels"] = [str(label) for label in columns.pop("labels", ())]
        options["normalization"] = grid.pop("normalization", None)
        options["quantiles"] = grid.get("quantiles", _DEFAULT_QUANTILES)
        options["grid"] = _grid(**grid)
        names_persons = "person" in columns
        enforces_bound = False
        if privacy:
            options["plan"] = privacy.get("plan")
            options["privacy"] = _privacy(privacy, names_persons)
            enforces_bound = options["privacy"].enforced
        if names_persons != enforces_bound:
            raise InputError(
                "Expected `person` in [columns] if and only if the bound of [privacy] on examples "
                "per person is `enforced` by it. Name the column of ids, or leave out both."
            )
        study = cls(
            options,
            columns,
            round=content.get("round", "1"),
            clients=content.get("clients"),
            ledger=content.get("ledger", {}),
            folder=folder,
        )
        study.metric()  # raises if the arguments of the metric are not valid
        return study

    def metric(self, name: str = "", kind: type[FederatedMetric] = FederatedROC) -> FederatedMetric:
        """Return the metric that all parties agree on.

        Args:
            name: the name of a site, whose metric has its ledger; the aggregator's metric if empty.
            kind: the class of the metric. The counts do not depend on it.
        """
        if name and isinstance(self.clients, list) and name not in self.clients:
            raise InputError(
                f"Expected one of the study's `clients` but got {name!r}. They are {self.clients}."
            )
        if not name:
            return kind(**self.options)
        if "privacy" not in self.options:
            return kind(**self.options, data=name)
        return kind(**self.options, ledger=self._site_ledger(name), data=name)

    def _site_ledger(self, name: str) -> PrivacyLedger:
        """Return the ledger of a site in a private study."""
        if not {"path", "budget"} <= self.ledger.keys():
            raise InputError(
                "Expected a ledger with a path and a budget in a study with privacy, because "
                "others decide how often you are asked. Add a table [ledger] with `path = "
                '"{name}.ledger"` and `budget = 3.0`.'
            )
        arguments = dict(self.ledger)
        arguments["path"] = self.folder / self.ledger["path"].replace("{name}", name)
        return PrivacyLedger(**arguments)


def _check_keys(content: Mapping[str, Any]) -> None:
    """Raise for unknown keys, and for values of a wrong type that are checked nowhere else."""
    for table, keys in _TABLE_KEYS.items():
        values = content
        place = "the study"
        if table:
            values = content.get(table, {})
            place = f"[{table}]"
        if not isinstance(values, Mapping):
            raise InputError(
                f"Expected {place} to be a table but got {values!r}. Write its keys below a line "
                f"{place}."
            )
        for key, value in values.items():
            if key not in keys:
                raise InputError(
                    f"Expected known keys in {place} but got {key!r}. {_suggestion(key, keys)}"
                )
            _check_type(key, value, place)


def _check_type(key: str, value: object, place: str) -> None:
    if key not in _VALUE_TYPES:
        return
    value_type, description = _VALUE_TYPES[key]
    # True is an int in Python, and none in TOML
    if not isinstance(value, value_type) or isinstance(value, bool):
        raise InputError(f"Expected `{key}` in {place} to be {description} but got {value!r}.")


def _suggestion(key: str, keys: Collection[str]) -> str:
    """Return a hint about an unknown key: a similar key, the right table, or all keys."""
    similar = difflib.get_close_matches(key, keys, 1)
    if similar:
        return f"Did you mean {similar[0]!r}?"
    for table, table_keys in _TABLE_KEYS.items():
        if table and key in table_keys:
            return f"It belongs into [{table}]."
    return f"There are {', '.join(keys)}."


def _privacy(table: Mapping[str, Any], names_persons: bool) -> Privacy:
    """Return the setting of [privacy].

    Args:
        table: the keys of [privacy].
        names_persons: whether [columns] names persons. The setting then enforces its bound.
    """
    kind = _PRIVACY_KINDS.get(table.get("kind", ""))
    if kind is None:
        raise InputError(f"Expected `kind` in [privacy] to be one of {list(_PRIVACY_KINDS)}.")
    names = [setting.name for setting in fields(kind)]
    needed = _NEEDED_PRIVACY_KEYS.intersection(names)
    values = {key: value for key, value in table.items() if key not in ("kind", "plan")}
    if not needed <= values.keys() <= set(names):
        raise InputError(
            f"Expected [privacy] with {kind.__name__} to have {sorted(needed)}, and else only some "
            f"of {names} and `plan`, but got {sorted(table.keys() - {'kind'})}."
        )
    values.setdefault("enforced", names_persons)
    privacy: Privacy = kind(**values)
    return privacy


def _grid(
    quantiles: int = _DEFAULT_QUANTILES,
    kind: GridName = "two_sided",
    range: Any = None,
    edges: Any = None,
) -> ScoreGrid | GridName:
    """Return the grid of [grid], as an argument of the metric."""
    if edges is not None:
        return ScoreGrid.from_edges(edges)
    if range is None:
        return kind
    if kind != "even":
        raise InputError(f'Expected kind = "even" with a `range` but got {kind!r}.')
    return ScoreGrid.even(quantiles, range)
