"""Two workers report as fast as they can; each tells how long its calls took, and how its memory grew."""

import resource
import sys
import time

from clock import mark

from headway import train


def train_func(config):
    count = config["count"]
    took = [0.0] * count
    train.report({"step": -1, "loss": 0.0})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    for step in range(count):
        start = time.perf_counter()
        train.report({"step": step, "loss": 0.123456})
        took[step] = time.perf_counter() - start
    mark("rate", count / (time.perf_counter() - began))
    took.sort()
    mark("p50_us", took[count // 2] * 1e6)
    mark("p99_us", took[count * 99 // 100] * 1e6)
    mark("worker_growth_mib", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


count = int(sys.argv[2])
result = train.DataParallelTrainer(
    train_func,
    train_loop_config={"count": 100},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=sys.argv[1]),
).fit()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = train.DataParallelTrainer(
    train_func,
    train_loop_config={"count": count},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=sys.argv[1]),
).fit()
mark("driver_growth_mib", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
mark("rows", len(result.metrics_dataframe))
