"""What a Flower client does in its actor; a module of its own, so that the actor imports it and keeps what it made."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import nn

from by_hand import Count, train
from workloads import WORKLOADS


@lru_cache(maxsize=1)
def network(name: str) -> nn.Module:
    """The workload's network, built once an actor."""
    torch.set_num_threads(1)
    return WORKLOADS[name].model()


def trained(message: Message, client: int) -> Message:
    """Load what the server sent, train, and reply."""
    work = WORKLOADS[str(message.content["config"]["workload"])]
    model = network(work.name)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = work.data()
    count = Count()
    train(model.train(), x[client], y[client], work, count)
    told = MetricRecord({"steps": count.steps, "samples": count.samples or 0})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told})
    return Message(content=content, reply_to=message)
