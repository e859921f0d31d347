"""Seed 003, callbacks: the base class, and those that write files."""

from typing import Dict, List

from ray.util.sgd import v2 as sgd
from ray.util.sgd.v2 import JsonLoggerCallback, SGDCallback, TBXLoggerCallback, Trainer


class PrintingCallback(SGDCallback):
    def handle_result(self, results: List[Dict], **info):
        print(results)


def train_func():
    for i in range(3):
        sgd.report(epoch=i)


trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
result = trainer.run(train_func, callbacks=[PrintingCallback()])
trainer.run(train_func, callbacks=[JsonLoggerCallback(), TBXLoggerCallback()])
trainer.shutdown()
print(sorted(path.name.split(".")[0] for path in trainer.latest_run_dir.iterdir() if path.is_file()))
