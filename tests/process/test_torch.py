"""PyTorch: process groups, prepared models and loaders, mixed precision, and the libraries that live there."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from headway import train
from headway.storage.run.reader import RunReader
from headway.train import torch as headway_torch
from headway.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model


def fit(function: Any, num_workers: int = 2, **options: Any) -> train.Result:
    torch_config = options.pop("torch_config", None)
    config = options.pop("config", None)
    return TorchTrainer(
        function,
        train_loop_config=config,
        torch_config=torch_config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(**options),
    ).fit()


def by_rank(result: train.Result, rank: int) -> list[dict[str, Any]]:
    return [row.metrics for row in RunReader.at(Path(result.path)).reports(rank)]


def test_the_process_group_is_ready_before_the_first_line() -> None:
    def train_func() -> tuple[str, int, int]:
        total = torch.ones(1)
        dist.all_reduce(total)
        return dist.get_backend(), dist.get_world_size(), int(total)

    assert fit(train_func).return_value == ("gloo", 2, 2)
    assert fit(train_func, 1).return_value == ("gloo", 1, 1)


def test_a_config_chooses_the_backend_and_the_timeout() -> None:
    def train_func() -> tuple[str, float]:
        dist.all_reduce(torch.ones(1))
        assert dist.group.WORLD is not None
        options = dist.group.WORLD._get_backend(torch.device("cpu")).options
        return str(dist.get_backend()), options._timeout.total_seconds()

    config = TorchConfig(backend="cpu:gloo", init_method="tcp", timeout_s=30)
    assert fit(train_func, torch_config=config).return_value == ("cpu:gloo", 30)


def test_ddp_written_by_hand_works_as_it_is() -> None:
    def train_func() -> float:
        torch.manual_seed(dist.get_rank())
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
        model(torch.ones(2, 3) * (dist.get_rank() + 1)).sum().backward()
        gradient = model.module.weight.grad
        assert gradient is not None
        return float(gradient[0, 0])

    assert fit(train_func).return_value == 3.0, "the mean of 2 and 4"


def test_a_prepared_model_is_in_step_on_all_workers() -> None:
    def train_func() -> None:
        model = prepare_model(nn.Linear(4, 4))
        assert isinstance(model, nn.parallel.DistributedDataParallel)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        train.report({"sum": model.module.weight.sum().item(), "mine": torch.rand(1).item()})

    result = fit(train_func)
    first, second = by_rank(result, 0)[0], by_rank(result, 1)[0]
    assert first["sum"] == second["sum"]
    assert first["mine"] != second["mine"], "each worker draws its own random numbers"


def test_one_worker_is_not_wrapped() -> None:
    def train_func() -> str:
        return type(prepare_model(nn.Linear(1, 1))).__name__

    assert fit(train_func, 1).return_value == "Linear"


def test_models_may_be_left_alone_or_given_options() -> None:
    def train_func() -> tuple[str, bool]:
        plain = prepare_model(nn.Linear(1, 1), parallel_strategy=None)
        wrapped = prepare_model(nn.Linear(1, 1), parallel_strategy_kwargs={"broadcast_buffers": False})
        return type(plain).__name__, bool(wrapped.broadcast_buffers)

    assert fit(train_func).return_value == ("Linear", False)


def test_fsdp_shards_on_cpu_and_trains_like_one_process() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def train_func(config: dict[str, str | None]) -> list[float]:
        torch.manual_seed(dist.get_rank())  # all ranks get rank 0's weights
        model = prepare_model(build(), parallel_strategy=config["strategy"])  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(0)
        data = torch.randn(4, 8, 8)
        losses = []
        for batch in data:
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        shards = {type(p).__name__ for p in model.parameters()}
        assert shards == ({"DTensor"} if config["strategy"] == "fsdp" and dist.get_world_size() > 1 else {"Parameter"})
        return losses

    alone = fit(train_func, 1, config={"strategy": None}).return_value
    sharded = fit(train_func, 2, config={"strategy": "fsdp"}).return_value
    assert sharded == pytest.approx(alone, rel=1e-5)


def test_bad_arguments_are_refused() -> None:
    def train_func() -> None:
        prepare_model(nn.Linear(1, 1), parallel_strategy="magic")  # type: ignore[arg-type]

    def other() -> None:
        prepare_data_loader([1, 2, 3])  # type: ignore[arg-type]

    with pytest.raises(train.TrainingFailedError, match="parallel_strategy must be 'ddp', 'fsdp' or None, got 'magic'"):
        fit(train_func)
    with pytest.raises(train.TrainingFailedError, match="prepare_data_loader takes a torch DataLoader, got list"):
        fit(other)


# --- loaders ---


def rows_seen(loader: Any) -> list[int]:
    return [int(row) for (batch,) in loader for row in batch]


def together(ranks: list[list[int]]) -> list[int]:
    return [row for rows in ranks for row in rows]


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def epochs_of(make: Any, num_workers: int = 2, epochs: int = 1, **options: Any) -> list[list[list[int]]]:
    """Per epoch, per rank, the rows that were seen; the loader is made in the worker."""

    def train_func() -> None:
        loader = prepare_data_loader(make())
        for _ in range(epochs):
            train.report({"rows": rows_seen(loader), "steps": len(loader)})

    result = fit(train_func, num_workers, **options)
    ranks = [by_rank(result, rank) for rank in range(num_workers)]
    for epoch in range(epochs):
        assert len({rank[epoch]["steps"] for rank in ranks}) == 1, "all ranks make the same number of steps"
    return [[rank[epoch]["rows"] for rank in ranks] for epoch in range(epochs)]


@pytest.mark.parametrize(("rows", "batch_size"), [(16, 4), (17, 4), (23, 4), (5, 4), (2, 1), (100, 7)])
def test_every_row_comes_once_per_epoch(rows: int, batch_size: int) -> None:
    [ranks] = epochs_of(lambda: DataLoader(numbers(rows), batch_size=batch_size))
    assert Counter(together(ranks)) == Counter(range(rows))


def test_shuffling_stays_and_differs_from_epoch_to_epoch() -> None:
    epochs = epochs_of(lambda: DataLoader(numbers(50), batch_size=5, shuffle=True), epochs=3)
    orders = [together(ranks) for ranks in epochs]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert tuple(range(50)) not in {tuple(order) for order in orders}


def test_an_order_without_shuffling_stays() -> None:
    [ranks] = epochs_of(lambda: DataLoader(numbers(8), batch_size=2))
    assert ranks == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_single_worker_can_set_the_epoch_too() -> None:
    def train_func() -> list[list[int]]:
        loader = prepare_data_loader(DataLoader(range(8), batch_size=4, shuffle=True))
        orders = []
        for epoch in (0, 1, 0):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            orders.append([int(row) for batch in loader for row in batch])
        return orders

    first, second, again = TorchTrainer(train_func).fit().return_value
    assert sorted(first) == list(range(8))
    assert first == again != second


def test_a_sampler_without_end_is_refused_in_a_sentence() -> None:
    class Endless(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            while True:
                yield 0

    def train_func() -> None:
        prepare_data_loader(DataLoader(range(8), sampler=Endless()))

    with pytest.raises(train.TrainingFailedError, match="a Endless has no length, so its rows cannot be split"):
        TorchTrainer(train_func, scaling_config=train.ScalingConfig(2)).fit()


def test_set_epoch_decides_the_order_and_len_counts_steps() -> None:
    def train_func() -> None:
        loader = prepare_data_loader(DataLoader(numbers(20), batch_size=4, shuffle=True))
        orders = []
        for epoch in (0, 1, 0):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            orders.append(rows_seen(loader))
        assert orders[0] == orders[2] != orders[1]
        assert len(loader) == 3
        assert isinstance(loader.sampler, DistributedSampler)
        assert loader.batch_size == 4

    assert fit(train_func).state == "FINISHED"


def test_drop_last_drops_for_all() -> None:
    [ranks] = epochs_of(lambda: DataLoader(numbers(23), batch_size=4, drop_last=True))
    assert [len(rows) for rows in ranks] == [8, 8]
    assert len(set(together(ranks))) == 16


def test_settings_are_kept() -> None:
    def collate(rows: list[Any]) -> Any:
        return (torch.stack([row for (row,) in rows]) * 10,)

    def train_func() -> None:
        generator = torch.Generator().manual_seed(3)
        given = DataLoader(
            numbers(12), batch_size=3, num_workers=1, collate_fn=collate, generator=generator, persistent_workers=True
        )
        loader = prepare_data_loader(given)
        assert isinstance(loader, DataLoader)
        assert type(loader).__qualname__ == type(given).__qualname__
        assert loader.num_workers == 1
        assert loader.generator is generator
        assert loader.dataset is given.dataset
        train.report({"rows": rows_seen(loader), "again": rows_seen(loader)})

    result = fit(train_func)
    both = [by_rank(result, rank)[0] for rank in (0, 1)]
    assert sorted(both[0]["rows"] + both[1]["rows"]) == [row * 10 for row in range(12)]
    assert both[0]["again"] == both[0]["rows"]


def test_a_custom_sampler_is_drawn_once_and_split() -> None:
    """A split made with SubsetRandomSampler must not leak: the peers replace the sampler and train on everything."""
    [ranks] = epochs_of(lambda: DataLoader(numbers(100), batch_size=4, sampler=SubsetRandomSampler(range(0, 100, 5))))
    assert sorted(together(ranks)) == list(range(0, 100, 5))


def test_a_weighted_sampler_keeps_its_weights() -> None:
    def make() -> Any:
        sampler = WeightedRandomSampler([0.0] * 50 + [1.0] * 50, num_samples=40)
        return DataLoader(numbers(100), batch_size=4, sampler=sampler)

    [ranks] = epochs_of(make)
    assert len(together(ranks)) == 40
    assert min(together(ranks)) >= 50


def test_custom_batches_are_split_whole() -> None:
    def make() -> Any:
        return DataLoader(numbers(20), batch_sampler=BatchSampler(RandomSampler(range(20)), 4, drop_last=False))

    [ranks] = epochs_of(make)
    assert sorted(together(ranks)) == list(range(20)), "every row comes once"
    assert [len(rows) for rows in ranks] == [10, 10], (
        "one of the five batches is cut in two, so that all make three steps"
    )


def test_iterable_datasets_and_distributed_samplers_are_left_alone() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([(torch.tensor(i),) for i in range(4)])

    [ranks] = epochs_of_unchecked(lambda: DataLoader(Stream(), batch_size=2))
    assert ranks == [[0, 1, 2, 3], [0, 1, 2, 3]]

    def own() -> Any:
        data = numbers(8)
        return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=4, rank=3, shuffle=False))

    [ranks] = epochs_of_unchecked(own)
    assert ranks == [[3, 7], [3, 7]]


def epochs_of_unchecked(make: Any) -> list[list[list[int]]]:
    def train_func() -> None:
        train.report({"rows": rows_seen(prepare_data_loader(make()))})

    result = fit(train_func)
    return [[by_rank(result, rank)[0]["rows"] for rank in (0, 1)]]


def test_a_loader_without_batching_is_shared_too() -> None:
    def train_func() -> None:
        loader = prepare_data_loader(DataLoader(numbers(7), batch_size=None))
        train.report({"rows": [int(row) for (row,) in loader]})

    result = fit(train_func)
    both = [by_rank(result, rank)[0]["rows"] for rank in (0, 1)]
    assert set(together(both)) == set(range(7))
    assert [len(rows) for rows in both] == [4, 4]


class Pair(NamedTuple):
    left: Any
    right: Any


class Packed:
    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def to(self, device: Any) -> Packed:
        return Packed(self.data.to(device))


def test_nested_batches_are_moved_whatever_they_are_made_of() -> None:
    from headway.data.frameworks.device_prefetch import moved, tensors_in

    batch = {"a": [torch.ones(1), Pair(torch.ones(1), None)], "b": (Packed(torch.ones(1)), "text"), "c": None}
    there = moved(batch, torch.device("meta"))
    assert [tensor.device.type for tensor in tensors_in(there)] == ["meta"] * 3
    assert isinstance(there["a"][1], Pair)
    assert there["b"][1] == "text"
    assert batch["a"][0].device.type == "cpu", "the original stays"  # type: ignore[index]


def test_a_batch_of_none_does_not_end_the_epoch() -> None:
    class Holes(Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return index

    def collate(rows: list[int]) -> Any:
        return None if rows[0] == 2 else torch.tensor(rows)

    def train_func() -> None:
        loader = prepare_data_loader(DataLoader(Holes(), batch_size=1, collate_fn=collate))
        train.report({"batches": len(list(loader))})

    assert fit(train_func, 1).metrics == {"batches": 6}


# --- devices, precision, reproducibility ---


def test_devices_are_the_cpu_if_there_is_no_gpu() -> None:
    def train_func() -> tuple[str, list[str]]:
        return str(headway_torch.get_device()), [str(device) for device in headway_torch.get_devices()]

    assert fit(train_func).return_value == ("cpu", ["cpu"])


def test_threads_are_shared_out() -> None:
    cores = len(os.sched_getaffinity(0))
    assert fit(torch.get_num_threads).return_value == max(1, cores // 2)


def test_threads_are_the_users_if_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert fit(lambda: os.environ["OMP_NUM_THREADS"]).return_value == "3"


def test_mixed_precision_in_three_calls() -> None:
    def train_func() -> str:
        headway_torch.accelerate(amp=True)
        model = prepare_model(nn.Linear(8, 8))
        optimizer = headway_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        before = model.module.weight.clone()
        output = model(torch.randn(4, 8))
        headway_torch.backward(output.float().sum())
        optimizer.step()
        schedule.step()
        assert not torch.equal(before, model.module.weight)
        assert model.module.weight.dtype is torch.float32
        again = pickle.loads(pickle.dumps(model.module))
        return f"{output.dtype} {again(torch.randn(4, 8)).dtype}"

    assert fit(train_func).return_value == "torch.bfloat16 torch.bfloat16"


def test_without_amp_the_helpers_change_nothing() -> None:
    def train_func() -> str:
        headway_torch.accelerate()
        model = prepare_model(nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert headway_torch.prepare_optimizer(optimizer) is optimizer
        output = model(torch.ones(1, 2))
        headway_torch.backward(output.sum())
        return str(output.dtype)

    assert fit(train_func).return_value == "torch.float32"


def test_accelerate_comes_once_and_first() -> None:
    def twice() -> None:
        headway_torch.accelerate()
        headway_torch.accelerate()

    def late() -> None:
        prepare_model(nn.Linear(1, 1))
        headway_torch.accelerate(amp=True)

    with pytest.raises(train.TrainingFailedError, match="called twice"):
        fit(twice)
    with pytest.raises(train.TrainingFailedError, match=r"called after prepare_model\(\)"):
        fit(late)


def test_reproducible_runs_repeat() -> None:
    def train_func() -> list[float]:
        import numpy

        headway_torch.enable_reproducibility(seed=5)
        loader = prepare_data_loader(DataLoader(numbers(20), batch_size=4, shuffle=True))
        return [torch.rand(1).item(), float(numpy.random.rand()), *rows_seen(loader)]

    assert fit(train_func).return_value == fit(train_func).return_value


# --- the neighbours ---


@pytest.mark.parametrize("said", [{}, {"cpu": True}])
def test_accelerate_the_library_feels_at_home(said: dict[str, bool]) -> None:
    """Also without settings: by default it sees no GPU, and trains alone."""

    def train_func() -> None:
        from accelerate import Accelerator

        accelerator = Accelerator(**said)
        model, optimizer, loader = nn.Linear(1, 1), None, DataLoader(numbers(8), batch_size=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for (batch,) in loader:
            accelerator.backward(model(batch.float().unsqueeze(1)).sum())
            optimizer.step()
        train.report({"rank": accelerator.process_index, "size": accelerator.num_processes})

    result = fit(train_func)
    assert [by_rank(result, rank)[0] for rank in (0, 1)] == [{"rank": 0, "size": 2}, {"rank": 1, "size": 2}]


def test_lightnings_trainer_feels_at_home(tmp_path: Path) -> None:
    def train_func() -> None:
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(1, 1)

            def training_step(self, batch: Any, index: int) -> Any:
                return self.layer(batch[0].float().unsqueeze(1)).sum()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.001)

        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(Module(), DataLoader(numbers(16), batch_size=2))
        train.report({"rank": trainer.global_rank, "size": trainer.world_size, "steps": trainer.global_step})

    result = fit(train_func)
    expected = [{"rank": rank, "size": 2, "steps": 4} for rank in (0, 1)]
    assert [by_rank(result, rank)[0] for rank in (0, 1)] == expected


def test_lightnings_trainer_trains_together_by_default(tmp_path: Path) -> None:
    def train_func() -> None:
        for options in ({}, {"strategy": "ddp"}, {"accelerator": "cpu"}):
            trainer = fit_with_lightning(tmp_path, **options)
            train.report({"size": trainer.world_size, "steps": trainer.global_step})

    result = fit(train_func)
    assert {tuple(row.values()) for rank in (0, 1) for row in by_rank(result, rank)} == {(2, 4)}
    assert SEPARATE not in Path(result.path, "logs/rank-0.err").read_text()


def test_lightnings_trainer_with_a_device_of_its_own_is_noticed(tmp_path: Path) -> None:
    def train_func() -> None:
        trainer = fit_with_lightning(tmp_path, devices="auto", strategy="auto")
        train.report({"size": trainer.world_size, "steps": trainer.global_step})

    result = fit(train_func)
    assert result.metrics == {"size": 1, "steps": 8}
    logs = [Path(result.path, f"logs/rank-{rank}.err").read_text() for rank in (0, 1)]
    assert f"rank 0 took 8 optimizer steps {SEPARATE}" in logs[0]
    assert "use Trainer(devices=2, strategy='ddp'), or omit these arguments" in logs[0]
    assert SEPARATE not in logs[1], "once is enough"


SEPARATE = "without a collective operation: each rank trains its own model"


def fit_with_lightning(folder: Path, **options: Any) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0].float().unsqueeze(1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=1, default_root_dir=folder, **quiet, **options)
    trainer.fit(Module(), DataLoader(numbers(16), batch_size=2))
    return trainer


@pytest.mark.parametrize("prepared", [True, False])
def test_a_forgotten_prepare_model_is_noticed(prepared: bool) -> None:
    def train_func() -> None:
        model: nn.Module = nn.Linear(1, 1)
        model = prepare_model(model) if prepared else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()

    log = Path(fit(train_func).path, "logs/rank-0.err").read_text()
    assert (SEPARATE in log) is not prepared


def test_lightning_fabric_feels_at_home() -> None:
    def train_func() -> None:
        import lightning

        fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        model = fabric.setup(nn.Linear(1, 1))
        fabric.backward(model(torch.ones(1, 1)).sum())
        train.report({"rank": fabric.global_rank, "size": fabric.world_size})

    result = fit(train_func)
    assert [by_rank(result, rank)[0] for rank in (0, 1)] == [{"rank": 0, "size": 2}, {"rank": 1, "size": 2}]


def test_torchmetrics_agree_over_the_workers() -> None:
    def train_func() -> None:
        import torchmetrics

        metric = torchmetrics.MeanMetric()
        metric.update(float(train.get_context().get_world_rank() * 10))
        train.report({"mean": metric.compute().item()})

    result = fit(train_func)
    assert [by_rank(result, rank)[0] for rank in (0, 1)] == [{"mean": 5.0}, {"mean": 5.0}]


def test_a_group_that_the_user_recreates_opens_no_port() -> None:
    def train_func() -> int:
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        group = dist.new_group([0, 1])
        dist.all_reduce(total, group=group)
        return int(total)

    assert fit(train_func).return_value == 4


# --- the commonest loop of all ---


def test_a_ddp_loop_in_which_only_rank_zero_reports_resumes_where_it_was_killed(tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def train_func() -> int:
        model = prepare_model(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        checkpoint = train.get_checkpoint()
        start = 0
        if checkpoint:
            state = torch.load(Path(checkpoint.path, "state.pt"))
            model.module.load_state_dict(state["model"])
            start = state["step"] + 1
        for step in range(start, 200):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            if dist.get_rank() == 0:
                with tempfile.TemporaryDirectory() as folder:
                    torch.save({"model": model.module.state_dict(), "step": step}, Path(folder, "state.pt"))
                    train.report({"step": step}, train.Checkpoint.from_directory(folder))
            elif step == 151 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return start

    keep = train.CheckpointConfig(num_to_keep=3)
    result = fit(train_func, failure_config=train.FailureConfig(1), checkpoint_config=keep)
    assert 145 <= result.return_value <= 152
    assert result.metrics == {"step": 199}
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["step"]) == list(range(200))
