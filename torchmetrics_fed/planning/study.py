"""Study: the file that all sites and whoever sums agree on: task, columns, grid, privacy, round, ledger."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

from torchmetrics_fed.counting import ScoreGrid
from torchmetrics_fed.errors import InputError
from torchmetrics_fed.metrics import FederatedMetric, FederatedROC
from torchmetrics_fed.privacy import CentralDP, DistributedDP, LocalDP, Privacy, PrivacyLedger

_PRIVACY = {kind.__name__: kind for kind in (DistributedDP, LocalDP, CentralDP)}
_GRID = "quantiles", "kind", "range", "edges", "normalization"
_TABLES: dict[str, Collection[str]] = {
    "": ("task", "num_classes", "num_labels", "round", "clients", "columns", "grid", "privacy", "ledger", "secure"),
    "columns": ("score", "label", "labels", "delimiter", "ignore_index"),
    "grid": _GRID,
    "privacy": ("kind", "plan", *(each.name for each in fields(DistributedDP))),
    "ledger": ("path", "budget", "delta"),
}


@dataclass(frozen=True)
class Study:
    """What is in a study file. ``torchmetrics-fed init`` writes one with comments.

    Example:
        >>> from torchmetrics_fed.planning import Study
        >>> study = Study.of({"privacy": {"kind": "LocalDP", "epsilon": 1.0}, "ledger": {"path": "x", "budget": 3}})
        >>> print(study.metric().spec.privacy)
        LocalDP(epsilon=1, holds against everyone)
        >>> Study.of({"privacy": {"epsilom": 1.0}})
        Traceback (most recent call last):
        torchmetrics_fed.errors.InputError: Expected known keys in [privacy] but got 'epsilom'. Did you mean 'epsilon'?
    """

    options: Mapping[str, Any]
    """The arguments of the metric, the ledger not among them."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Which columns of a table hold what, as :func:`~torchmetrics_fed.integrations.tables.count_table` takes it."""
    round: str = "1"
    clients: int | None = None
    ledger: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    """Where the study file is: the ledger's path begins there."""

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Study:
        """Return the study in a TOML file. Keys that are not known are errors."""
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            return cls.of(tomllib.loads(Path(path).read_text(encoding="utf-8")), Path(path).parent)
        except OSError as error:
            raise InputError(
                f"Expected a study file at {str(path)!r} but got: {error.strerror}. `torchmetrics-fed init` makes one."
            ) from error
        except ValueError as error:  # bytes that are no UTF-8, text that is no TOML, keys and values that mean nothing
            raise InputError(f"{path}: {error}") from error

    @classmethod
    def of(cls, content: Mapping[str, Any], folder: Path = Path()) -> Study:
        """Return the study of a TOML file's content; its ledger is in ``folder``."""
        for name, known in _TABLES.items():
            _check_keys(name, content.get(name, {}) if name else content, known)
        columns, grid = dict(content.get("columns", {})), dict(content.get("grid", {}))
        options = {key: content[key] for key in ("task", "num_classes", "num_labels", "secure") if key in content}
        options |= {"ignore_index": columns.pop("ignore_index", None), "normalization": grid.pop("normalization", None)}
        options |= {"quantiles": grid.get("quantiles", 1024), "grid": _grid(**grid)}
        privacy = dict(content.get("privacy", {}))
        if privacy:
            options |= {"plan": privacy.pop("plan", None), "privacy": _privacy(privacy)}
        clients = content.get("clients")
        if clients is not None and (isinstance(clients, bool) or not isinstance(clients, int) or clients < 1):
            raise InputError(f"Expected `clients` to be the number of sites but got {clients!r}.")
        ledger, round_ = content.get("ledger", {}), content.get("round", "1")
        if not isinstance(round_, str) or not _are(str, [ledger.get("path", "")]):
            raise InputError("Expected `round` and the ledger's `path` to be texts. Put them in quotes.")
        study = cls(options, columns, round_, clients, ledger, folder)
        return study

    def metric(self, name: str = "", kind: type[FederatedMetric] = FederatedROC) -> FederatedMetric:
        """Return the metric that all parties agree on: a site's, with its ledger, or the one of whoever sums.

        Args:
            name: the site's; without it there is no ledger, and nothing can be drawn.
            kind: what is computed from it; what is counted does not depend on it.
        """
        if not name or self.options.get("privacy") is None:
            return kind(**self.options, data=name or "data")
        terms = dict(self.ledger)
        if "path" in terms:
            terms["path"] = self.folder / terms["path"].replace("{name}", name)
        if not {"path", "budget"} <= terms.keys():
            raise InputError(
                "Expected a ledger with a path and a budget in a study with privacy because whoever asks decides how "
                'often. Add a table [ledger] with `path = "{name}.ledger"` and `budget = 3.0`.'
            )
        return kind(**self.options, ledger=PrivacyLedger(**terms), data=name)


def _check_keys(table: str, content: Any, known: Collection[str]) -> None:
    where = f"[{table}]" if table else "the study"
    if not isinstance(content, Mapping):
        raise InputError(f"Expected {where} to be a table but got {content!r}. Write its keys below a line {where}.")
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1) or [name for name in _TABLES if key in _TABLES[name]][:1]
            meant = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
            raise InputError(f"Expected known keys in {where} but got {key!r}. {meant}")


def _grid(
    quantiles: int = 1024, kind: str = "two_sided", range: Sequence[float] | None = None, edges: Any = None
) -> Any:
    if edges is not None:
        if not isinstance(edges, list) or not _are(int | float, edges):
            raise InputError(f"Expected `edges` to be a list of numbers but got {edges!r}.")
        return ScoreGrid.from_edges(edges)
    if range is None:
        return kind  # the metric checks it
    if kind != "even" or not isinstance(range, list) or len(range) != 2 or not _are(int | float, range):
        raise InputError(f'Expected `range` to be [low, high], with kind = "even", but got {range!r} and {kind!r}.')
    return ScoreGrid.even(quantiles, (range[0], range[1]))


def _privacy(given: dict[str, Any]) -> Privacy:
    kind = given.pop("kind", None)
    if kind not in _PRIVACY or "epsilon" not in given:
        raise InputError(f"Expected [privacy] to have `epsilon`, and as `kind` one of {list(_PRIVACY)}, got {kind!r}.")
    _check_keys("privacy", given, [each.name for each in fields(_PRIVACY[kind])])
    if kind == "DistributedDP" and "min_clients" not in given:
        raise InputError("Expected `min_clients` with DistributedDP: a sum of fewer sites is never opened.")
    return _PRIVACY[kind](**given)


def _are(kind: Any, values: Sequence[Any]) -> bool:
    return all(isinstance(value, kind) for value in values)
