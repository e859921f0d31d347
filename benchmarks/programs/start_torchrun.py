"""One DDP step under torchrun."""

import torch
import torch.distributed as dist
from clock import mark


def main():
    mark("first")
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    mark("step")
    dist.destroy_process_group()


main()
