"""Four sites train one model with NVFlare, with its ROC curve on all sites' data in every round.

    python examples/nvflare_job/job.py [--client lightning_client.py] [--privacy secure] [--poc]

Runs in NVFlare's simulator, offline, or with --poc in its POC mode: processes for each party, on
this machine. For the comparison the sites also write their scores to a scratch folder, which no
real site would do; --no-compare leaves that out.
"""

# %%
from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv
from sites import BUDGET, SETTINGS, SITES, Model
from torch import Tensor

from torchmetrics_fed import FederatedAUROC, PrivacyLedger, Release
from torchmetrics_fed.functional import roc_from_counts
from torchmetrics_fed.integrations.nvflare import FederatedMetricAggregator, FederatedMetricFilter

HERE = Path(__file__).parent


# %% The job: FedAvg, with an aggregator on the server and a filter at the sites
def job(arguments: argparse.Namespace, ledgers: Path, scores: Path | None) -> FedAvgRecipe:
    aggregator = FederatedMetricAggregator(
        **SETTINGS[arguments.privacy],
        min_clients=3,
        stage_timeout=arguments.timeout,
        figures=True,
    )
    train_args = f"--privacy {arguments.privacy} --ledgers {ledgers}"
    if scores is not None:
        train_args += f" --scores {scores}"
    recipe = FedAvgRecipe(
        name="curves",
        model=Model(),
        min_clients=len(SITES),
        num_rounds=arguments.rounds,
        train_script=str(HERE / arguments.client),
        train_args=train_args,
        aggregator=aggregator,
        key_metric="",  # the aggregator chooses the best model, by global_auroc
    )
    recipe.add_client_output_filter(FederatedMetricFilter(), tasks=["train"])
    return recipe


# %% The releases: in the server's folder after a simulation, downloaded in POC mode
def releases_of(
    recipe: FedAvgRecipe, arguments: argparse.Namespace, workspace: Path
) -> dict[int, Release]:
    if arguments.poc:
        run = recipe.execute(PocEnv(clients=list(SITES), num_clients=len(SITES)))
        folder = Path(run.get_result(timeout=300.0, clean_up=False))
    else:
        recipe.execute(SimEnv(clients=list(SITES), workspace_root=str(workspace)))
        folder = workspace / "curves/server"
    paths = sorted(folder.rglob("torchmetrics_fed/round-*.release"))
    return {int(path.stem.removeprefix("round-")): Release.load(path) for path in paths}


# %% For comparison only: the curve of each site, and of all scores in one place
def site_metric(logits: Tensor, target: Tensor) -> FederatedAUROC:
    metric = FederatedAUROC(normalization="sigmoid")
    metric.update(logits, target)
    return metric


class Comparison(NamedTuple):
    """The scores that the sites left in the scratch folder."""

    sites: list[FederatedAUROC]
    pooled: FederatedAUROC

    @classmethod
    def load(cls, folder: Path, number: int) -> Comparison:
        """Load the scores of one round."""
        scored = [torch.load(folder / f"{site}-{number}.pt") for site in SITES]
        logits = torch.cat([logits for logits, _ in scored])
        target = torch.cat([target for _, target in scored])
        sites = [site_metric(site_logits, site_target) for site_logits, site_target in scored]
        return cls(sites, site_metric(logits, target))

    def areas(self) -> dict[str, Any]:
        local = [float(metric.compute()) for metric in self.sites]
        return {
            "mean_local": sum(local) / len(local),
            "local": local,
            "pooled": float(self.pooled.compute()),
        }


def main(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        workspace = arguments.workspace or Path(folder, "workspace")
        # Real sites keep their ledgers, as with --ledgers. Otherwise they are for this run only.
        ledgers = arguments.ledgers or Path(folder, "ledgers")
        ledgers.mkdir(exist_ok=True)
        scores = Path(folder, "scores")
        scores.mkdir()
        recipe = job(arguments, ledgers.resolve(), scores if arguments.compare else None)
        releases = releases_of(recipe, arguments, workspace)
        result = summary(releases, ledgers)
        if releases:
            last = max(releases)
            comparison = None
            if arguments.compare:
                comparison = Comparison.load(scores, last)
                result |= comparison.areas()
            draw(releases[last], comparison, arguments.out / "curves.png")
    (arguments.out / "result.json").write_text(json.dumps(result, indent=2))
    report(result)
    print(f"result                {(arguments.out / 'result.json').resolve()}")
    if releases:
        print(f"figure                {(arguments.out / 'curves.png').resolve()}")


def summary(releases: dict[int, Release], ledgers: Path) -> dict[str, Any]:
    """Return the AUROC of every round, the spent epsilons, and the last release's figures."""
    areas = {}
    for number, release in releases.items():
        areas[number] = float(FederatedAUROC.from_release(release).compute())
    paths = sorted(ledgers.glob("*.sqlite"))
    result: dict[str, Any] = {
        "rounds": areas,
        "spent": [PrivacyLedger(path=path).spent().epsilon for path in paths],
    }
    if releases:
        last = max(releases)
        result["federated"] = areas[last]
        result["shares"] = releases[last].shares
        result["name"] = releases[last].round
    return result


def report(result: dict[str, Any]) -> None:
    for number, area in result["rounds"].items():
        print(f"round {number}: federated AUROC {area:.6f}")
    if result["spent"]:
        print(f"each site has spent epsilon {max(result['spent']):g} of {BUDGET:g}")
    if "pooled" in result:
        lowest = min(result["local"])
        highest = max(result["local"])
        mean = result["mean_local"]
        print(f"mean of local AUROCs  {mean:.6f}   from {lowest:.4f} to {highest:.4f}")
        print(f"federated AUROC       {result['federated']:.6f}")
        print(f"pooled AUROC          {result['pooled']:.6f}")


# %% The figure: pooled underneath, federated on top, each site alone
def draw(federated: Release, comparison: Comparison | None, path: Path) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(7.0, 4.6), layout="constrained")
    if comparison is not None:
        pooled = roc_from_counts(comparison.pooled.release())
        ax.plot(pooled.fpr, pooled.tpr, color="0.8", linewidth=6, label="pooled")
        for site, metric in zip(SITES, comparison.sites, strict=True):
            curve = roc_from_counts(metric.release())
            label = f"{site} alone ({metric.compute():.4f})"
            ax.plot(curve.fpr, curve.tpr, linewidth=0.8, alpha=0.7, label=label)
    roc_from_counts(federated).plot(ax=ax, label="federated")
    fig.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--client",
        default="torch_client.py",
        help="the sites' script: lightning_client.py, or yours",
    )
    parser.add_argument("--privacy", choices=SETTINGS, default="none")
    parser.add_argument("--poc", action="store_true", help="POC mode instead of the simulator")
    parser.add_argument("--ledgers", type=Path, help="folder of the sites' ledgers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for the sites in each stage"
    )
    parser.add_argument("--compare", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--workspace", type=Path, help="keep NVFlare's files, logs and models there"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/nvflare_job"),
        help="folder for result and figure",
    )
    main(parser.parse_args())
