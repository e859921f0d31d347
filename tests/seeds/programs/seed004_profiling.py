"""Seed 004, in a comment: profiling, with the trainer of Ray Train 1.x."""

import torch
from ray import train
from ray.train import Trainer
from ray.train.callbacks import TorchTensorboardProfilerCallback
from ray.train.torch import TorchWorkerProfiler
from torch.profiler import ProfilerActivity, profile, schedule


def train_func():
    twp = TorchWorkerProfiler()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=twp.trace_handler,
    ) as p:
        for epoch in range(4):
            torch.ones(8, 8) @ torch.ones(8, 8)
            p.step()
            profile_results = twp.get_and_clear_profile_traces()
            train.report(epoch=epoch, **profile_results)


trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
trainer.run(train_func, callbacks=[TorchTensorboardProfilerCallback()])
trainer.shutdown()
print(trainer.latest_run_dir)
print(len(list((trainer.latest_run_dir / "pytorch_profiler").iterdir())))
