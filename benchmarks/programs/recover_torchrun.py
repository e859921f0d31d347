"""The loop under torchrun, with a checkpoint written the usual way."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from clock import stepping
from recover_loop import STEPS, network, optimizer_of, step
from torch.nn.parallel import DistributedDataParallel


def main(path, every):
    rank = int(os.environ["RANK"])
    note = stepping(rank)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    optimizer = optimizer_of(model)
    first = 0
    if path.exists():
        state = torch.load(path)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    for number in range(first, STEPS):
        step(model, optimizer)
        note(number)
        if (number + 1) % every == 0 and rank == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": number}
            torch.save(state, f"{path}.new")
            os.replace(f"{path}.new", path)


main(Path(sys.argv[1], "state.pt"), int(sys.argv[2]))
