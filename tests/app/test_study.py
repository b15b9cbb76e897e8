"""A study file: its keys, the metric that it describes, and the errors of a study that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchmetrics_fed
from torchmetrics_fed import DistributedDP, FederatedAUROC, FederatedROC, InputError, ScoreGrid
from torchmetrics_fed.app.study import Study
from torchmetrics_fed.metrics import terms_of

TEMPLATE = Path(torchmetrics_fed.__file__).parent / "app" / "study.toml"


def load(tmp_path: Path, text: str) -> Study:
    path = tmp_path / "study.toml"
    path.write_text(text)
    return Study.load(path)


def test_the_template_is_a_study_of_the_default_metric() -> None:
    study = Study.load(TEMPLATE)
    assert study.metric().spec == FederatedROC().spec
    assert study.round == "1"
    assert study.clients == 3
    assert study.columns == {"score": "score", "label": "label"}


ALTERNATIVES = ("edges", "range", "num_classes", "num_labels", "plan", "group")
"""Keys of the template that exclude another key of it."""


def uncommented_template() -> str:
    """The template with every key that a comment names, except for the alternatives."""
    lines = []
    for line in TEMPLATE.read_text().splitlines():
        is_comment = line.startswith("# ")
        holds_key = " = " in line or line.startswith("# [")
        if is_comment and not holds_key:
            continue
        key = line.removeprefix("# ")
        if not key.startswith(ALTERNATIVES):
            lines.append(key)
    return "\n".join(lines).replace('"LocalDP"', '"DistributedDP"')


def test_every_key_that_the_template_names_is_known(tmp_path: Path) -> None:
    study = load(tmp_path, uncommented_template())
    assert study.options["privacy"] == DistributedDP(epsilon=1.0, min_clients=3, enforced=True)
    assert study.options["normalization"] == "sigmoid"
    assert study.options["labels"] == ["no", "yes"]
    assert study.metric().spec.labels == ("no", "yes")
    assert study.metric("A").ledger.path == str(tmp_path / "A.ledger")
    for key in ALTERNATIVES:
        assert f"# {key} = " in TEMPLATE.read_text()


def test_grid_and_task_are_those_of_the_metric(tmp_path: Path) -> None:
    text = 'task = "multiclass"\nnum_classes = 3\n[columns]\nscore = ["a", "b", "c"]\n'
    study = load(tmp_path, f'{text}[grid]\nkind = "even"\nrange = [-5, 5]')
    metric = study.metric(kind=FederatedAUROC)
    grid = ScoreGrid.even(1024, (-5.0, 5.0))
    assert metric.spec == FederatedAUROC("multiclass", num_classes=3, grid=grid).spec
    two_bins = load(tmp_path, "[grid]\nedges = [0.0, 0.5, 1.0]")
    assert two_bins.metric().spec.grid.bins == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("taks = 1", "known keys in the study but got 'taks'. Did you mean 'task'?"),
        ("epsilon = 1", "got 'epsilon'. It belongs into [privacy]."),
        ("[columns]\nzzz = 1", "There are score, label, labels"),
        ("columns = 3", "Expected [columns] to be a table but got 3"),
        ("clients = true", "`clients` in the study to be the number of sites, or a list"),
        ("clients = 'three'", "`clients` in the study to be the number of sites, or a list"),
        ("round = 1", "`round` in the study to be a text"),
        ("task = 'regression'", "`task` to be one of"),
        ("[grid]\nquantiles = 1", "`quantiles` to be an int from 2"),
        ("[grid]\nrange = [0, 1]", 'kind = "even"'),
        ("[grid]\nedges = ['a', 'b', 'c']", "study.toml: "),
        ("[grid]\nkind = 'even'\nrange = [0]", "(low, high)"),
        ("[privacy]\nepsilon = 1", "`kind` in [privacy]"),
        ("[privacy]\nkind = 'LocalDP'", "LocalDP to have ['epsilon']"),
        (
            "[privacy]\nkind = 'LocalDP'\nepsilon = 1\nmin_clients = 3",
            "but got ['epsilon', 'min_clients']",
        ),
        ("[privacy]\nkind = 'DistributedDP'\nepsilon = 1", "to have ['epsilon', 'min_clients']"),
        ("[columns]\nperson = 'who'", "`person` in [columns] if and only if"),
        (
            "[privacy]\nkind = 'LocalDP'\nepsilon = 1\nenforced = true",
            "`person` in [columns] if and only if",
        ),
        ("[privacy]\nkind = 'LocalDP'\nepsilon = -1", "`epsilon` to be a positive"),
        (
            "[privacy]\nkind = 'LocalDP'\nepsilon = 1\nplan = 'twice'",
            "`plan` to be a Query or one of",
        ),
        ("task =", "study.toml: "),
        ("\x00", "study.toml: "),
    ],
)
def test_a_wrong_study_is_refused_with_the_file_and_a_remedy(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError) as raised:
        load(tmp_path, text)
    assert "study.toml: " in str(raised.value)
    assert message in str(raised.value)


def test_a_site_that_is_not_named_is_refused(tmp_path: Path) -> None:
    study = load(tmp_path, "clients = ['A', 'B']")
    assert terms_of(study.metric("A")).data == "A"
    with pytest.raises(InputError, match="one of the study's `clients` but got 'C'"):
        study.metric("C")


def test_a_private_site_needs_a_ledger_with_a_limit_that_lasts(tmp_path: Path) -> None:
    privacy = "[privacy]\nkind = 'LocalDP'\nepsilon = 1\n"
    for ledger in ("", "[ledger]\nbudget = 1\n", "[ledger]\npath = 'x'\n"):
        study = load(tmp_path, privacy + ledger)
        assert study.metric().spec.epsilon == 1  # the aggregator needs none
        with pytest.raises(InputError, match="Expected a ledger with a path and a budget"):
            study.metric("A")
    site = load(tmp_path, privacy + "[ledger]\npath = '{name}.ledger'\nbudget = 1").metric("A")
    assert terms_of(site).data == "A"
    assert site.ledger.budget == 1.0
