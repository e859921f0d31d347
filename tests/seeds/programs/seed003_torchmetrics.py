"""Seed 003, distributed metrics."""

from typing import Dict, List

import torch
import torchmetrics
from ray.util.sgd import v2 as sgd
from ray.util.sgd.v2 import SGDCallback, Trainer


class PrintingCallback(SGDCallback):
    def handle_result(self, results: List[Dict], **info):
        print(results)


def train_func(config):
    preds = torch.randn(10, 5).softmax(dim=-1)
    target = torch.randint(5, (10,))
    accuracy = torchmetrics.functional.accuracy(preds, target, task="multiclass", num_classes=5).item()
    sgd.report(accuracy=accuracy)


trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
result = trainer.run(train_func, callbacks=[PrintingCallback()])
trainer.shutdown()
