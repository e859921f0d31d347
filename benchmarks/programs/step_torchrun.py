"""The loop under torchrun, written the usual way."""

import step_loop
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
data = step_loop.dataset()
loader = DataLoader(data, batch_size=step_loop.BATCH, sampler=DistributedSampler(data))
step_loop.loop(DistributedDataParallel(step_loop.network()), loader, lambda metrics: None)
dist.destroy_process_group()
