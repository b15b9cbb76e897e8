"""Four sites train one model with NVFlare, and know its ROC curve on everybody's data in every round.

    python examples/nvflare_job/job.py [--client lightning_client.py] [--privacy secure|distributed|...] [--poc]

Runs in NVFlare's simulator, offline, or with --poc in its POC mode: processes for each party, on this machine. For the
comparison the sites also leave their scores in a scratch folder, which no real site would do; --no-compare leaves that
out.
"""

# %%
from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import PocEnv, SimEnv
from sites import BUDGET, SETTINGS, SITES, Model
from torch import Tensor

from torchmetrics_fed import FederatedAUROC, FederatedROC, PrivacyLedger, Release
from torchmetrics_fed.functional import roc_from_counts
from torchmetrics_fed.integrations.nvflare import FederatedMetricAggregator, FederatedMetricFilter

HERE = Path(__file__).parent


# %% The job: FedAvg as it is, but for the aggregator on the server and the filter at the sites
def job(arguments: argparse.Namespace, ledgers: Path, scores: Path | None) -> FedAvgRecipe:
    settings = SETTINGS[arguments.privacy]
    aggregator = FederatedMetricAggregator(
        **settings, min_clients=3, stage_timeout=arguments.timeout, figures=True
    )
    recipe = FedAvgRecipe(
        name="curves",
        model=Model(),
        min_clients=len(SITES),
        num_rounds=arguments.rounds,
        train_script=str(HERE / arguments.client),
        train_args=f"--privacy {arguments.privacy} --ledgers {ledgers}"
        + (f" --scores {scores}" if scores else ""),
        aggregator=aggregator,
        key_metric="",  # the aggregator chooses the best model, by global_auroc
    )
    recipe.add_client_output_filter(FederatedMetricFilter(), tasks=["train"])
    return recipe


# %% The releases: in the server's folder after a simulation, downloaded as `nvflare job download` does in POC mode
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


# %% What each site sees alone, and what all would see together
def alone_and_pooled(
    scores: Path, number: int
) -> tuple[list[tuple[Tensor, Tensor]], FederatedAUROC]:
    pairs = [torch.load(scores / f"{site}-{number}.pt") for site in SITES]
    pooled = FederatedAUROC(normalization="sigmoid")
    pooled.update(
        torch.cat([logits for logits, _ in pairs]), torch.cat([truth for _, truth in pairs])
    )
    return pairs, pooled


def area(logits: Tensor, truth: Tensor) -> float:
    metric = FederatedAUROC(normalization="sigmoid")
    metric.update(logits, truth)
    return float(metric.compute())


def main(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        workspace = arguments.workspace or Path(folder, "workspace")
        # Ledgers that outlive the job, one for each site. Without --ledgers they are for this run only.
        ledgers, scores = arguments.ledgers or Path(folder, "ledgers"), Path(folder, "scores")
        ledgers.mkdir(exist_ok=True)
        scores.mkdir()
        recipe = job(arguments, ledgers.resolve(), scores if arguments.compare else None)
        releases = releases_of(recipe, arguments, workspace)
        spent = [
            PrivacyLedger(path=path).spent().epsilon for path in sorted(ledgers.glob("*.sqlite"))
        ]
        rounds = {
            n: float(FederatedAUROC.from_release(release).compute())
            for n, release in releases.items()
        }
        last = max(releases, default=-1)
        result: dict[str, Any] = {"rounds": rounds, "spent": spent}
        if releases:
            result |= {
                "federated": rounds[last],
                "shares": releases[last].shares,
                "name": releases[last].round,
            }
        if arguments.compare and releases:
            pairs, pooled = alone_and_pooled(scores, last)
            local = [area(*pair) for pair in pairs]
            result |= {
                "mean_local": sum(local) / len(local),
                "local": local,
                "pooled": float(pooled.compute()),
            }
            draw(releases[last], pooled.release(), pairs, arguments.out / "curves.png")
        elif releases:
            draw(releases[last], None, [], arguments.out / "curves.png")
    (arguments.out / "result.json").write_text(json.dumps(result, indent=2))
    for number, value in rounds.items():
        print(f"round {number}: federated AUROC {value:.6f}")
    if spent:
        print(f"each site has spent epsilon {max(spent):g} of {BUDGET:g}")
    if "pooled" in result:
        print(
            f"mean of local AUROCs  {result['mean_local']:.6f}   from {min(local):.4f} to {max(local):.4f}"
        )
        print(f"federated AUROC       {result['federated']:.6f}")
        print(f"pooled AUROC          {result['pooled']:.6f}")
    print(f"result                {(arguments.out / 'result.json').resolve()}")
    if releases:
        print(f"figure                {(arguments.out / 'curves.png').resolve()}")


# %% The figure: pooled underneath, federated on top, each site alone
def draw(
    federated: Release, pooled: Release | None, pairs: list[tuple[Tensor, Tensor]], path: Path
) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(7.0, 4.6), layout="constrained")
    if pooled is not None:
        exact = roc_from_counts(pooled)
        ax.plot(exact.fpr, exact.tpr, color="0.8", linewidth=6, label="pooled")
    for site, (logits, truth) in zip(SITES, pairs, strict=False):
        alone = FederatedROC(normalization="sigmoid")
        alone.update(logits, truth)
        curve = alone.compute()
        ax.plot(
            curve.fpr,
            curve.tpr,
            linewidth=0.8,
            alpha=0.7,
            label=f"{site} alone ({area(logits, truth):.4f})",
        )
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
        help="folder for all that comes of it",
    )
    main(parser.parse_args())
