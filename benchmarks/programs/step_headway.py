"""The loop under TorchTrainer, with a report in every step."""
# ruff: noqa: I001 - we come before torch

import sys

from headway import train
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model

import step_loop
from clock import mark
from torch.utils.data import DataLoader, DistributedSampler


def train_func():
    data = step_loop.dataset()
    loader = prepare_data_loader(DataLoader(data, batch_size=step_loop.BATCH, shuffle=True))
    step_loop.loop(prepare_model(step_loop.network()), loader, train.report)
    plain = DataLoader(data, batch_size=step_loop.BATCH, sampler=DistributedSampler(data))
    mark("prepared_loading_us", step_loop.loading_us(loader))
    mark("plain_loading_us", step_loop.loading_us(plain))


TorchTrainer(
    train_func,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=sys.argv[1]),
).fit()
