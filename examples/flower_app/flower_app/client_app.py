"""A hospital: trains, and answers an evaluation with its share of the curve."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from flower_app import task
from flower_app.task import loaded, metric, patients
from torchmetrics_fed import FederatedAUROC, FederatedROC, PrivacyLedger
from torchmetrics_fed.integrations.flower import RECORD, evaluation_mod, state_record

app = ClientApp()

BUDGET = 3.0
"""The epsilon that a hospital spends at most, whatever the server asks for. So it is no run configuration."""
LEDGERS = "HOSPITAL_LEDGERS"
"""The environment variable with the folder of this machine's ledgers; likewise the hospital's own to choose."""


def own_metric(context: Context) -> FederatedROC:
    """Return this hospital's metric, for the mod and for the evaluation alike."""
    folder, hospital = Path(os.environ.get(LEDGERS, ".")), context.node_config["partition-id"]
    return metric(context.run_config, PrivacyLedger(BUDGET, folder / f"ledger-{hospital}.sqlite"))


def tools(context: Context) -> ModuleType:
    """What this hospital trains and evaluates with."""
    if context.run_config["trainer"] == "torch":
        return task
    from flower_app import lightning_task

    return lightning_task


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The mod, made for this run's configuration. The local AUROC leaves only to show how wrong its mean is."""
    return evaluation_mod(own_metric(context), publish=["auroc"])(message, context, call_next)


@app.train()
def training(message: Message, context: Context) -> Message:
    """Train the global model for one epoch on this hospital's patients."""
    hospital = int(context.node_config["partition-id"])
    model = loaded(message.content.array_records["arrays"])
    tools(context).train(model, hospital)
    examples = MetricRecord({"num-examples": len(patients(hospital, "train")[1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": examples}), reply_to=message)


@app.evaluate(mods=[guard])
def evaluation(message: Message, context: Context) -> Message:
    """Count the scores of this hospital's patients, and send what the federation's metric lets go."""
    hospital = int(context.node_config["partition-id"])
    if hospital == context.run_config["failing"]:
        raise RuntimeError("This hospital's scanner is broken today.")
    roc = own_metric(context)
    model = loaded(message.content.array_records["arrays"])
    tools(context).evaluate(model, hospital, roc)
    x, sick = patients(hospital)
    local = FederatedAUROC()
    local.update(model(x), sick)
    metrics = MetricRecord({"num-examples": len(sick), "auroc": float(local.compute())})
    return Message(RecordDict({"metrics": metrics, RECORD: state_record(roc)}), reply_to=message)
