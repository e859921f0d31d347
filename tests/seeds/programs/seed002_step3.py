"""Seed 002, step 3: data from Parquet files, mapped row by row, dealt out among the workers."""

import os
import sys
import tempfile
import uuid

import numpy as np
import ray.data
import ray.train
import ray.train.torch
import torch
from local_vision import CIFAR10, Compose, Normalize, ToTensor, VisionTransformer
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from tqdm import tqdm

STORAGE_PATH = sys.argv[1]
for part in ("train", "test"):  # what lies in a bucket there
    rows = CIFAR10(root="~/data", train=part == "train", download=True, transform=lambda image: image)
    images = np.stack([rows[i][0] for i in range(len(rows))]).astype(np.uint8)
    labels = np.array([rows[i][1] for i in range(len(rows))])
    ray.data.from_numpy({"image": images, "label": labels}).write_parquet(f"{STORAGE_PATH}/{part}")

train_dataset = ray.data.read_parquet(f"{STORAGE_PATH}/train")
test_dataset = ray.data.read_parquet(f"{STORAGE_PATH}/test")
print(train_dataset.schema())
test_dataset.schema()


def transform_cifar(row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    transform = Compose([ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
    row["image"] = transform(row["image"])
    return row


train_dataset = train_dataset.map(transform_cifar)
test_dataset = test_dataset.map(transform_cifar)


def train_func_per_worker(config: dict):
    lr = config["lr"]
    epochs = config["epochs"]
    batch_size = config["batch_size_per_worker"]

    train_data_shard = ray.train.get_dataset_shard("train")
    valid_data_shard = ray.train.get_dataset_shard("valid")
    train_dataloader = train_data_shard.iter_torch_batches(batch_size=batch_size)
    valid_dataloader = valid_data_shard.iter_torch_batches(batch_size=batch_size)

    model = VisionTransformer(
        image_size=32,
        patch_size=4,
        num_layers=12,
        num_heads=8,
        hidden_dim=384,
        mlp_dim=768,
        num_classes=10,
    )

    model = ray.train.torch.prepare_model(model)

    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-2)

    for epoch in range(epochs):
        model.train()
        for batch in tqdm(train_dataloader, desc=f"Train Epoch {epoch}"):
            X, y = batch["image"], batch["label"]
            pred = model(X)
            loss = loss_fn(pred, y)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        valid_loss, num_correct, num_total, num_batches = 0, 0, 0, 0
        with torch.no_grad():
            for batch in tqdm(valid_dataloader, desc=f"Valid Epoch {epoch}"):
                X, y = batch["image"], batch["label"]
                pred = model(X)
                loss = loss_fn(pred, y)

                valid_loss += loss.item()
                num_total += y.shape[0]
                num_batches += 1
                num_correct += (pred.argmax(1) == y).sum().item()

        valid_loss /= num_batches
        accuracy = num_correct / num_total

        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            torch.save(model.module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
            ray.train.report(
                metrics={"loss": valid_loss, "accuracy": accuracy, "rows": num_total},
                checkpoint=ray.train.Checkpoint.from_directory(temp_checkpoint_dir),
            )
            if ray.train.get_context().get_world_rank() == 0:
                print({"epoch_num": epoch, "loss": valid_loss, "accuracy": accuracy})


def train_cifar_10(num_workers, use_gpu):
    global_batch_size = 512

    train_config = {
        "lr": 1e-3,
        "epochs": 2,
        "batch_size_per_worker": global_batch_size // num_workers,
    }

    scaling_config = ScalingConfig(num_workers=num_workers, use_gpu=use_gpu)
    run_config = RunConfig(
        storage_path=sys.argv[1],
        name=f"train_data_run-{uuid.uuid4().hex}",
    )

    trainer = TorchTrainer(
        train_loop_per_worker=train_func_per_worker,
        datasets={"train": train_dataset, "valid": test_dataset},
        train_loop_config=train_config,
        scaling_config=scaling_config,
        run_config=run_config,
    )

    result = trainer.fit()
    print(f"Training result: {result}")


if __name__ == "__main__":
    train_cifar_10(num_workers=2, use_gpu=False)
