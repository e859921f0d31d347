"""Stop when the loss has not improved for a while; killed and started again, it stops in the same epoch.

python examples/early_stopping.py
"""

import torch

from headway import train
from headway.train.torch import TorchTrainer, prepare_model


def train_func(config):
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    stopping = train.EarlyStopping("loss", patience=3, min_delta=1e-3)
    state = train.track(model=model, optimizer=optimizer, stopping=stopping)
    x = torch.randn(64, 4)
    y = x.sum(dim=1, keepdim=True)
    for epoch in state.epochs(1000):
        if stopping.stopped:
            break
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = {"epoch": epoch, "loss": loss.item()}
        stopping.update(metrics)
        train.report(metrics)


if __name__ == "__main__":
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"lr": 0.1},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(checkpoint_config=train.CheckpointConfig(every_reports=10, num_to_keep=1)),
    )
    print(trainer.fit())
