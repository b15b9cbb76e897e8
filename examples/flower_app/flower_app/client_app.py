"""A client: trains, and answers an evaluation with its share of the curves."""

from __future__ import annotations

from types import ModuleType

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from flower_app import task
from flower_app.task import Net, build, load_data
from torchmetrics_fed import FederatedAUROC
from torchmetrics_fed.integrations.flower import RECORD, evaluation_mod, state_record

app = ClientApp()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def guard(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The mod, made for this run's configuration. The local AUROC leaves only to show how wrong its mean is."""
    return evaluation_mod(build(context.run_config), publish=["auroc"])(message, context, call_next)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model = loaded(msg)
    trainloader, _ = data(context)
    epochs, lr = context.run_config["local-epochs"], msg.content.config_records["config"]["lr"]
    train_loss = tools(context).train(model, trainloader, epochs, lr, device)
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(trainloader.dataset)})  # type: ignore[arg-type]
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg
    )


@app.evaluate(mods=[guard])
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    if context.node_config["partition-id"] == context.run_config["failing"]:
        raise RuntimeError("This client's disk is broken today.")
    model = loaded(msg)
    _, valloader = data(context)
    metric, local = (
        build(context.run_config),
        FederatedAUROC("multiclass", num_classes=10, normalization="softmax"),
    )
    eval_loss, eval_acc = tools(context).test(model, valloader, device, metric, local)
    metrics = {"eval_loss": eval_loss, "eval_acc": eval_acc, "auroc": float(local.compute())}
    examples = {"num-examples": len(valloader.dataset)}  # type: ignore[arg-type]
    content = RecordDict({"metrics": MetricRecord(metrics | examples)})
    content[RECORD] = state_record(metric)
    return Message(content, reply_to=msg)


def loaded(msg: Message) -> Net:
    """Return the model with the weights that were received."""
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    return model.to(device)


def data(
    context: Context,
) -> tuple[torch.utils.data.DataLoader[task.Batch], torch.utils.data.DataLoader[task.Batch]]:
    """Return this client's data."""
    config = context.node_config
    return load_data(
        int(config["partition-id"]),
        int(config["num-partitions"]),
        int(context.run_config["batch-size"]),
    )


def tools(context: Context) -> ModuleType:
    """What this client trains and tests with."""
    if context.run_config["trainer"] == "torch":
        return task
    from flower_app import lightning_task

    return lightning_task
