"""A run in the background: look at its reports as they come, and stop it when they are good enough.

python examples/watch_and_stop.py
"""

import time

from headway import train


def train_func(config):
    loss = 1.0
    while True:
        loss *= config["decay"]
        train.report({"loss": loss})
        time.sleep(0.01)


trainer = train.DataParallelTrainer(
    train_func, train_loop_config={"decay": 0.97}, scaling_config=train.ScalingConfig(num_workers=2)
)
run = trainer.start()
for report in run.reports():
    if report.metrics["loss"] < 0.2:
        print(f"good enough after {report.seq} reports")
        run.stop()
        break
print(run.result())
