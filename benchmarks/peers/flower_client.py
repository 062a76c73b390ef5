"""The client of the Flower peer, a module of its own so that Ray's workers import it by name."""

import functools
import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional
from torch_models import build, put, tensors
from workload import WORKLOADS, Workload, clients

app = ClientApp()


@functools.cache
def resident() -> tuple[Workload, nn.Module, list[tuple[Tensor, Tensor]]]:
    """What a worker process keeps from message to message: the model and everybody's data."""
    torch.set_num_threads(1)
    work = WORKLOADS[os.environ["CHRONOFED_PEERS_WORKLOAD"]]
    return work, build(work), tensors(clients(work))


@app.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch from the parameters in the message."""
    work, model, data = resident()
    client = int(context.node_config["partition-id"])
    images, labels = data[client]
    put(model, message.content["arrays"].to_numpy_ndarrays())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    shuffled = bool(message.content["config"]["shuffled"])
    order = torch.randperm(len(labels)) if shuffled else torch.arange(len(labels))
    steps = 0
    for batch in order.split(work.batch):
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        steps += 1
    arrays = ArrayRecord([param.detach().numpy() for param in model.parameters()])
    metrics = MetricRecord({"num-examples": len(labels), "steps": steps})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content=content, reply_to=message)
