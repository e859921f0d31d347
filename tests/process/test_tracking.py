"""``train.track``: a loop without code for saving or loading resumes bit for bit where it was."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, TensorDataset

import headway.data
from headway import train
from headway.storage.checkpoint.signatures import trusted
from headway.storage.run.reader import RunReader
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from headway.train.torch.fsdp_state import ShardedReader, ShardedState
from support import journal

EPOCHS = 3


class Noisy(Dataset[Any]):
    """Rows with augmentation from all three sources of randomness."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = random.random() + numpy.random.rand() + torch.rand(1).item()
        return torch.full((4,), index / 40) + 0.1 * noise, torch.tensor([float(index % 3)])


def train_func(config: dict[str, Any]) -> None:
    rank, run = train.get_context().get_world_rank(), Path(train.get_context().get_trial_dir())
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    model = prepare_model(network, parallel_strategy=config.get("strategy", "ddp"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    loader = prepare_data_loader(
        DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=config["loader_processes"])
    )
    state = train.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
    for epoch in state.epochs(EPOCHS):
        for inputs, labels in loader:
            loss = nn.functional.mse_loss(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(config.get("pause_s", 0.0) * (1 + rank))
            train.report({"epoch": epoch, "loss": loss.item(), "rows": inputs.sum().item()})
            die_as_planned(run, rank, config)


def die_as_planned(run: Path, rank: int, config: dict[str, Any]) -> None:
    """Each planned death once: after so many reports of rank 0, counted over all attempts."""
    if rank != 0:
        return
    counter = run / "reports"
    with counter.open("a") as file:
        file.write(".")
    count = counter.stat().st_size
    if count in config["deaths"]:
        os.kill(os.getpid(), signal.SIGKILL)


def losses(path: Path, num_workers: int) -> list[list[tuple[float, float]]]:
    record = RunReader.at(path)
    return [[(r.metrics["loss"], r.metrics["rows"]) for r in record.reports(rank)] for rank in range(num_workers)]


def run(
    folder: Path, num_workers: int, deaths: list[int], loader_processes: int, **config: Any
) -> list[list[tuple[float, float]]]:
    path = folder / "runs" / "run"
    seed_run(path)
    trainer(path, num_workers, deaths=deaths, loader_processes=loader_processes, **config).fit()
    return losses(path, num_workers)


def trainer(path: Path, num_workers: int, **config: Any) -> TorchTrainer:
    saves = config.pop("saves", {"every_reports": 3})
    return TorchTrainer(
        train_func,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(
            name="run",
            storage_path=path.parent,
            failure_config=train.FailureConfig(-1),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2, **saves),
        ),
    )


def seed_run(path: Path) -> None:
    """The same seed for every run, so that they can be compared."""
    from headway.storage.run.opening import open_run

    open_run(path, "never").close()
    description = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**description, "seed": 12345}))


@pytest.mark.parametrize("loader_processes", [0, 1])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_killed_at_random_reports_it_gives_the_same_losses_bit_for_bit(
    tmp_path: Path, num_workers: int, loader_processes: int
) -> None:
    expected = run(tmp_path / "whole", num_workers, [], loader_processes)
    steps = EPOCHS * (10 if num_workers == 1 else 5)
    assert [len(rank) for rank in expected] == [steps] * num_workers
    chance = random.Random(num_workers * 10 + loader_processes)
    for number in range(5):
        deaths = sorted(chance.sample(range(1, steps + 6), 3))
        folder = tmp_path / f"killed-{number}"
        assert run(folder, num_workers, deaths, loader_processes) == expected, deaths
        launches = [e for e in journal(folder / "runs/run") if e["event"] == "launched"]
        assert len(launches) >= 2, "it was killed at least once"


@pytest.mark.parametrize("num_workers", [1, 2])
def test_saved_by_the_clock_in_reports_that_all_agree_on(tmp_path: Path, num_workers: int) -> None:
    expected = run(tmp_path / "whole", num_workers, [], 0)
    clock = {"saves": {"every_s": 0.1}, "pause_s": 0.02}
    assert run(tmp_path / "killed", num_workers, [6, 14], 0, **clock) == expected
    events = journal(tmp_path / "killed/runs/run")
    assert len([event for event in events if event["event"] == "checkpoint"]) >= 3
    firsts = [event["first_seq"] for event in events if event["event"] == "launched"]
    assert len(firsts) == 3
    assert firsts[-1] > 0, "it went on from what the clock had saved"


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_stop_saves_first_and_nothing_is_done_twice(
    tmp_path: Path, num_workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = run(tmp_path / "whole", num_workers, [], 0)
    path = tmp_path / "stopped/runs/run"
    seed_run(path)
    options = {"deaths": [], "loader_processes": 0, "saves": {}, "pause_s": 0.02}
    going = trainer(path, num_workers, **options).start()
    for report in going.reports():
        if report.metrics["epoch"] == 1:
            break
    going.stop()
    result = going.result()
    assert "stopping after report" in capfd.readouterr().err
    assert result.state == "STOPPED"
    (saved,) = RunReader.at(path).checkpoints()
    seqs = [row.seq for row in RunReader.at(path).reports()]
    assert saved.manifest.seq == seqs[-1], "the last report has the state in it"
    assert saved.manifest.ranks == list(range(num_workers))
    assert len(seqs) < len(expected[0])
    trainer(path, num_workers, **{**options, "pause_s": 0.0}).fit()
    assert losses(path, num_workers) == expected
    epoch, steps = divmod(len(seqs), len(expected[0]) // EPOCHS)
    where = f"(report {seqs[-1]}, epoch {epoch}, {steps} batch"
    assert steps == 0 or where in capfd.readouterr().err, "where in the data it resumes"


def test_a_sharded_model_resumes_bit_for_bit_too(tmp_path: Path) -> None:
    expected = run(tmp_path / "whole", 2, [], 0, strategy="fsdp")
    assert [len(rank) for rank in expected] == [15, 15]
    assert run(tmp_path / "killed", 2, [4, 9, 14], 0, strategy="fsdp") == expected


@pytest.mark.parametrize("pickled_between", [False, True])
def test_a_sharded_model_whose_values_older_versions_pickled_between_its_tensors(
    tmp_path: Path, pickled_between: bool
) -> None:
    """Now only the metadata of torch is a pickle."""

    def train_func() -> tuple[list[str], bool, float]:
        model = fully_shard(nn.Linear(4, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5, betas=(0.5, 0.75))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state, before = ShardedState(model, {"optimizer": optimizer}), model.weight.full_tensor().clone()
        if pickled_between:
            dcp.save(state._state(optimizers=True), storage_writer=dcp.FileSystemWriter(tmp_path / "shards"))
        else:
            state.save(tmp_path / "shards")
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.1
        reader = ShardedReader(tmp_path / "shards", trusted(tmp_path))
        state.load(reader)
        kinds = {type(each).__name__ for each in reader.read_metadata().state_dict_metadata.values()}
        same = torch.equal(model.weight.full_tensor(), before) and optimizer.param_groups[0]["betas"] == (0.5, 0.75)
        return sorted(kinds), same, optimizer.param_groups[0]["lr"]

    result = TorchTrainer(
        train_func,
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(name="run", storage_path=tmp_path / "runs"),
    ).fit()
    kinds = ["BytesStorageMetadata", "TensorStorageMetadata"] if pickled_between else ["TensorStorageMetadata"]
    assert result.return_values == [(kinds, True, 0.5)]


def test_a_sharded_model_is_loaded_by_another_number_of_workers(tmp_path: Path) -> None:
    def train_func() -> list[float]:
        model = prepare_model(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1)), parallel_strategy="fsdp")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        train.track(model=model, optimizer=optimizer)
        if train.get_checkpoint() is None:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            train.report({})
        with torch.no_grad():
            return model(torch.ones(1, 4)).flatten().tolist()  # type: ignore[no-any-return]

    def fit(num_workers: int) -> list[float]:
        config = train.RunConfig(
            name="run", storage_path=tmp_path, checkpoint_config=train.CheckpointConfig(every_reports=1)
        )
        scaling = train.ScalingConfig(num_workers=num_workers)
        value: list[float] = TorchTrainer(train_func, scaling_config=scaling, run_config=config).fit().return_value
        return value

    first = fit(2)
    assert fit(3) == pytest.approx(first, rel=1e-6)


def test_several_reports_an_epoch_without_a_loader_are_warned_about(capfd: pytest.CaptureFixture[str]) -> None:
    def without_a_loader() -> None:
        state = train.track(model=prepare_model(nn.Linear(4, 1)))
        for _ in state.epochs(2):
            for step in range(3):
                train.report({"step": step})

    TorchTrainer(without_a_loader, scaling_config=train.ScalingConfig(0)).fit()
    said = capfd.readouterr().err
    assert "epoch 0 has several reports, but train.track() follows no loader" in said


def test_an_epoch_that_was_finished_is_not_begun_again(tmp_path: Path) -> None:
    """Reports at the end of an epoch, as most loops do."""

    def once_an_epoch(config: dict[str, Any]) -> list[int]:
        model = prepare_model(nn.Linear(4, 1))
        loader = prepare_data_loader(DataLoader(Noisy(), batch_size=4, shuffle=True))
        state = train.track(model=model, loader=loader)
        begun = []
        for epoch in state.epochs(4):
            begun.append(epoch)
            total = sum(inputs.sum().item() for inputs, _ in loader)
            train.report({"epoch": epoch, "total": total, "random": torch.rand(1).item()})
            if epoch == 1 and not (tmp_path / "once").exists():
                (tmp_path / "once").touch()
                train.get_checkpoint()
                os.kill(os.getpid(), signal.SIGKILL)
        return begun

    config = train.RunConfig(
        storage_path=tmp_path / "runs",
        failure_config=train.FailureConfig(1),
        checkpoint_config=train.CheckpointConfig(every_reports=1),
    )
    result = TorchTrainer(once_an_epoch, run_config=config).fit()
    assert result.return_value == [2, 3]
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["epoch"]) == [0, 1, 2, 3]


def test_a_save_that_was_cut_short_leaves_nothing_behind(tmp_path: Path) -> None:
    class Deadly:
        def state_dict(self) -> dict[str, int]:
            if not (tmp_path / "once").exists():
                (tmp_path / "once").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return {"a": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    def train_func() -> None:
        train.track(deadly=Deadly())
        train.report({})

    config = train.RunConfig(
        storage_path=tmp_path / "runs",
        failure_config=train.FailureConfig(1),
        checkpoint_config=train.CheckpointConfig(every_reports=1),
    )
    result = TorchTrainer(train_func, run_config=config).fit()
    assert (tmp_path / "once").exists()
    assert result.checkpoint is not None
    known = {"run.json", "events.jsonl", "metrics.jsonl", "checkpoints", "logs", "failures", ".lock"}
    assert {path.name for path in Path(result.path).iterdir()} <= known
    assert not any(Path(result.path, "checkpoints", ".staging").glob("*"))


def test_what_cannot_be_tracked_is_refused() -> None:
    def attempt(**things: Any) -> str:
        def train_func() -> None:
            train.track(**things)

        with pytest.raises(train.TrainingFailedError) as caught:
            TorchTrainer(train_func).fit()
        return str(caught.value)

    assert "must have state_dict() and load_state_dict(), got 5" in attempt(step=5)
    assert "needs a loader from prepare_data_loader()" in attempt(loader=DataLoader(range(4)))


def test_a_checkpoint_of_another_hand_is_not_taken_for_ours(tmp_path: Path) -> None:
    def by_hand() -> None:
        train.report({}, checkpoint=train.Checkpoint.from_dict({"mine": 1}))

    def tracked() -> None:
        train.track(model=nn.Linear(1, 1))

    config = train.RunConfig(name="run", storage_path=tmp_path)
    TorchTrainer(by_hand, run_config=config).fit()
    with pytest.raises(train.TrainingFailedError, match=r"was not saved by train.track\(\)"):
        TorchTrainer(tracked, run_config=config).fit()


@pytest.mark.parametrize("where", ["before the first batch", "after a break", "before the first epoch"])
def test_a_save_between_epochs_resumes_with_the_right_epoch(where: str, tmp_path: Path) -> None:
    """No epoch is skipped whose first batch was not taken yet; none that was left by break is continued."""

    def train_func() -> None:
        loader = prepare_data_loader(DataLoader(TensorDataset(torch.arange(40)), batch_size=4, shuffle=True))
        other = prepare_data_loader(DataLoader(TensorDataset(torch.arange(8)), batch_size=4, shuffle=True))
        state = train.track(loader=loader, other=other)
        train.report({"told": "before the first epoch"})
        die("before the first epoch")
        for epoch in state.epochs(3):
            train.report({"told": "before the first batch"})
            die("before the first batch" if epoch == 1 else "")
            rows = []
            for number, (batch,) in enumerate(loader):
                rows.append(batch.tolist())
                if number == 5:
                    break
            others = [batch.tolist() for (batch,) in other]
            train.report({"epoch": epoch, "rows": rows, "others": others})
            die("after a break" if epoch == 1 else "")

    def die(here: str) -> None:
        if here == where and not marker.exists():
            train.get_all_reported_checkpoints(train.CheckpointConsistencyMode.COMMITTED)
            marker.touch()
            os._exit(1)

    def told(name: str) -> list[dict[str, Any]]:
        result = TorchTrainer(
            train_func,
            run_config=train.RunConfig(
                name=name,
                storage_path=tmp_path,
                failure_config=train.FailureConfig(1),
                checkpoint_config=train.CheckpointConfig(every_reports=1),
            ),
        ).fit()
        reports = [row.metrics for row in RunReader.at(result.path).reports()]
        return [report for report in reports if "told" not in report]

    marker = tmp_path / "quiet"
    marker.touch()
    quiet = told("a quiet run")
    marker = tmp_path / "died"
    assert told("one that died") == quiet
    assert marker.exists()


def test_a_run_that_resumes_between_two_epochs_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        loader = prepare_data_loader(DataLoader(TensorDataset(torch.arange(4)), batch_size=2))
        for epoch in train.track(loader=loader).epochs(2):
            assert len(list(loader)) == 2
            train.report({"epoch": epoch})

    config = train.RunConfig(
        name="run", storage_path=tmp_path, checkpoint_config=train.CheckpointConfig(every_reports=1)
    )
    for _ in range(2):
        TorchTrainer(train_func, run_config=config).fit()
    assert "resumes with 1 worker from checkpoint_000001 (report 1, after epoch 1);" in capfd.readouterr().err


@pytest.mark.parametrize("every_reports", [None, 2])
def test_a_warning_if_state_is_saved_only_at_a_stop(
    every_reports: int | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_func() -> None:
        train.track(network=torch.nn.Linear(1, 1))
        train.report({"loss": 1.0})

    saved = train.CheckpointConfig(every_reports=every_reports)
    config = train.RunConfig(name="run", storage_path=tmp_path, checkpoint_config=saved)
    TorchTrainer(train_func, scaling_config=train.ScalingConfig(2), run_config=config).fit()
    told = capfd.readouterr().err
    assert told.count("tracked state is saved before a stop only") == (every_reports is None)
    assert "saves nothing" not in told


def test_state_that_does_not_fit_is_named_with_its_checkpoint(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        network = torch.nn.Linear(1, config["out"])
        optimizer = (torch.optim.Adam if config["adam"] else torch.optim.SGD)(network.parameters(), lr=0.1)
        train.track(network=network, optimizer=optimizer)
        train.report({"loss": 1.0})

    def run(out: int, *, adam: bool) -> None:
        saved = train.CheckpointConfig(every_reports=1)
        config = train.RunConfig(name="run", storage_path=tmp_path, checkpoint_config=saved)
        TorchTrainer(train_func, train_loop_config={"out": out, "adam": adam}, run_config=config).fit()

    run(1, adam=False)
    for out, adam, complaint in (
        (2, False, "network .*size mismatch for weight"),
        (1, True, "optimizer .*saved without betas"),
    ):
        with pytest.raises(train.TrainingFailedError, match=complaint) as caught:
            run(out, adam=adam)
        assert "cannot load its state from" in str(caught.value)
        assert "checkpoint_000000" in str(caught.value)
        assert "give the run a new name" in str(caught.value)


class MasterWeights(torch.optim.Optimizer):
    """Float32 copies of bfloat16 parameters; without the option "differentiable", as many classes of optimizer are."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state.update(weights=[parameter.float()], extra={"sum": torch.zeros((), dtype=torch.float64)})
            state["weights"][0] -= 1e-4 * parameter.grad
            state["extra"]["sum"] += 1e-12
            parameter.copy_(state["weights"][0])


def test_state_of_an_optimizer_keeps_its_dtype(tmp_path: Path) -> None:
    def train_func() -> list[Any]:
        network = torch.nn.Linear(2, 1).bfloat16()
        optimizer = MasterWeights(network.parameters())
        state = train.track(network=network, optimizer=optimizer)
        for _ in state.epochs(1):
            network(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
            train.report({"loss": 1.0})
        return [
            (each["weights"][0].tolist(), each["weights"][0].dtype, each["extra"]["sum"].item())
            for each in optimizer.state.values()
        ]

    saved, loaded = (run_tracked(train_func, tmp_path).return_value for _ in range(2))
    assert [dtype for _, dtype, _ in saved] == [torch.float32] * 2
    assert loaded == saved


def test_an_optimizer_without_the_options_of_torchs_newer_ones_is_restored(tmp_path: Path) -> None:
    def train_func() -> tuple[float, int]:
        network = torch.nn.Linear(1, 1)
        optimizer = torch.optim.LBFGS(network.parameters())
        state = train.track(network=network, optimizer=optimizer)
        for _ in state.epochs(1):
            optimizer.step(lambda: network(torch.ones(1, 1)).pow(2).sum())
            train.report({"loss": 1.0})
        return network.weight.item(), optimizer.state[network.weight]["n_iter"]

    saved, loaded = (run_tracked(train_func, tmp_path).return_value for _ in range(2))
    assert loaded == saved


def run_tracked(function: Any, folder: Path) -> train.Result:
    """Runs or resumes one run that saves in every report."""
    saves = train.CheckpointConfig(every_reports=1)
    config = train.RunConfig(name="run", storage_path=folder, checkpoint_config=saves)
    return TorchTrainer(function, run_config=config).fit()


@pytest.mark.parametrize("every", [{"every_reports": 2}, {"every_s": 60}])
def test_a_save_interval_without_tracked_state_is_reported_once(
    every: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train_func() -> None:
        for _ in range(4):
            train.report({"loss": 1.0})

    config = train.RunConfig(name="run", storage_path=tmp_path, checkpoint_config=train.CheckpointConfig(**every))
    TorchTrainer(train_func, scaling_config=train.ScalingConfig(2), run_config=config).fit()
    [(name, value)] = every.items()
    said = f"CheckpointConfig({name}={value}) saves nothing, because the function has not called train.track()"
    assert capfd.readouterr().err.count(said) == 1


def told_with_death(train_func: Any, folder: Path, num_workers: int = 1, every_reports: int = 1) -> list[list[Any]]:
    """What each rank reports, with a kill if ``train_func`` requests one."""
    config = train.RunConfig(
        storage_path=folder,
        failure_config=train.FailureConfig(1),
        checkpoint_config=train.CheckpointConfig(every_reports=every_reports),
    )
    scaling = train.ScalingConfig(num_workers=num_workers)
    result = TorchTrainer(train_func, scaling_config=scaling, run_config=config).fit()
    return [[row.metrics for row in RunReader.at(result.path).reports(rank)] for rank in range(num_workers)]


def die_once(marker: Path) -> None:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def rows_loader(number: int = 16, **options: Any) -> Any:
    return prepare_data_loader(DataLoader(TensorDataset(torch.arange(number)), batch_size=2, **options))


def test_a_sampler_with_its_own_random_state_resumes_where_it_was(tmp_path: Path) -> None:
    class Own:
        def __init__(self) -> None:
            self.random = random.Random(1)

        def __len__(self) -> int:
            return 16

        def __iter__(self) -> Any:
            return iter(self.random.sample(range(16), 16))

    def train_func() -> None:
        loader = rows_loader(sampler=Own())
        state = train.track(loader=loader)
        for epoch in state.epochs(3):
            for (rows,) in loader:
                train.report({"epoch": epoch, "rows": rows.tolist()})
                if epoch == 1 and state.num_batches == 5:
                    die_once(marker)

    marker = tmp_path / "marker"
    killed = told_with_death(train_func, tmp_path / "killed")
    assert marker.exists()
    assert killed == told_with_death(train_func, tmp_path / "quiet")


def test_an_epoch_is_not_resumed_with_other_rows(tmp_path: Path) -> None:
    def split_without_a_seed() -> None:
        torch.seed()
        part, _ = torch.utils.data.random_split(TensorDataset(torch.arange(40)), [30, 10])
        loader = prepare_data_loader(DataLoader(part, batch_size=2, shuffle=True))
        state = train.track(loader=loader)
        for _ in state.epochs(1):
            for _ in loader:
                train.report({})
                if state.num_batches == 5:
                    os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(
        train.TrainingFailedError, match="loader does not have the same rows as when the checkpoint was saved"
    ):
        told_with_death(split_without_a_seed, tmp_path)

    def train_func(config: dict[str, int]) -> None:
        loader = rows_loader(config["number"], shuffle=True)
        state = train.track(loader=loader)
        for _ in state.epochs(1):
            for _ in loader:
                train.report({})
                if config["number"] == 16 and state.num_batches == 5:
                    raise KeyError

    checkpoints = train.CheckpointConfig(every_reports=1)
    config = train.RunConfig(name="grown", storage_path=tmp_path, checkpoint_config=checkpoints)
    with pytest.raises(train.TrainingFailedError, match="KeyError"):
        TorchTrainer(train_func, train_loop_config={"number": 16}, run_config=config).fit()
    with pytest.raises(train.TrainingFailedError, match="their number or the order of the sampler has chang"):
        TorchTrainer(train_func, train_loop_config={"number": 20}, run_config=config).fit()


def test_an_epoch_takes_its_own_pass_where_code_holds_the_iterator_of_the_last(tmp_path: Path) -> None:
    def train_func() -> None:
        loader = rows_loader(shuffle=True)
        state = train.track(loader=loader)
        for epoch in state.epochs(4):
            batches = iter(loader)
            rows = [next(batches)[0].tolist() for _ in range(4)]  # the rest of them is left
            train.report({"epoch": epoch, "rows": rows})
            if epoch == 2:
                die_once(marker)

    marker = tmp_path / "marker"
    ((*killed,),) = told_with_death(train_func, tmp_path / "killed")
    assert marker.exists()
    assert [killed] == told_with_death(train_func, tmp_path / "quiet")


def test_a_report_after_the_last_epoch_costs_none_of_the_epochs_that_come_later(tmp_path: Path) -> None:
    def train_func(config: dict[str, int]) -> list[int]:
        loader = rows_loader()
        state = train.track(loader=loader)
        begun = []
        for epoch in state.epochs(config["number"]):
            begun.append(epoch)
            train.report({"rows": sum(len(rows) for (rows,) in loader)})
        train.report({"done": True})
        return begun

    checkpoints = train.CheckpointConfig(every_reports=1)
    config = train.RunConfig(name="run", storage_path=tmp_path, checkpoint_config=checkpoints)
    assert TorchTrainer(train_func, train_loop_config={"number": 2}, run_config=config).fit().return_value == [0, 1]
    assert TorchTrainer(train_func, train_loop_config={"number": 4}, run_config=config).fit().return_value == [2, 3]


def test_two_loops_over_epochs_are_one_after_the_other(tmp_path: Path) -> None:
    def train_func() -> None:
        loader = rows_loader(shuffle=True)
        state = train.track(loader=loader)
        for number in (2, 5):
            for epoch in state.epochs(number):
                chance = torch.rand(1).item()
                for (rows,) in loader:
                    train.report({"epoch": epoch, "rows": rows.tolist(), "chance": [chance, torch.rand(1).item()]})
                    if epoch == 3 and state.num_batches == 5:
                        die_once(marker)

    marker = tmp_path / "marker"
    killed = told_with_death(train_func, tmp_path / "killed")
    assert marker.exists()
    assert [report["epoch"] for report in killed[0]] == [epoch for epoch in range(5) for _ in range(8)]
    quiet = told_with_death(train_func, tmp_path / "quiet")
    assert [report["rows"] for report in killed[0]] == [report["rows"] for report in quiet[0]]


def test_what_each_rank_counts_for_itself_stays_its_own(tmp_path: Path) -> None:
    class Meter:
        total = 0

        def state_dict(self) -> dict[str, int]:
            return {"total": self.total}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.total = state["total"]

    def train_func() -> None:
        loader, meter = rows_loader(), Meter()
        state = train.track(loader=loader, meter=meter)
        for _ in state.epochs(1):
            for (rows,) in loader:
                meter.total += rows.sum().item()
                train.report({"total": meter.total})
                if state.num_batches == 3 and train.get_context().get_world_rank() == 0:
                    die_once(marker)

    marker = tmp_path / "marker"
    killed = told_with_death(train_func, tmp_path / "killed", 2)
    assert marker.exists()
    assert killed == told_with_death(train_func, tmp_path / "quiet", 2)
    assert killed[0] != killed[1]


def test_a_warning_names_what_a_restart_cannot_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        loader = rows_loader(shuffle=True)
        state = train.track(model=nn.Linear(1, 1))
        for epoch in state.epochs(3):
            rows = [row for (batch,) in loader for row in batch.tolist()]
            train.report({"rows": rows}, checkpoint=train.Checkpoint.from_dict({"epoch": epoch}))
            train.report({})

    told_with_death(train_func, tmp_path)
    said = capfd.readouterr().err
    assert said.count("a restart from this checkpoint fails, because it does not contain the tracked state") == 1
    assert said.count("a shuffled loader is not passed to train.track(...)") == 1


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_ranks_that_report_in_other_steps_never_mix_their_states(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 reports in each step, rank 1 in every second: their reports of one number belong to other steps."""

    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        loader: Any
        if kind == "loader":
            loader = rows_loader()
            state = train.track(loader=loader)
        else:
            loader = train.get_dataset_shard("rows").iter_batches(batch_size=4)
            state = train.track()
        for _ in state.epochs(1):
            for step, _batch in enumerate(loader, 1):
                torch.distributed.barrier()
                if rank == 0 or step % 2 == 0:
                    train.report({"step": step})

    config = train.RunConfig(
        name="run", storage_path=tmp_path, checkpoint_config=train.CheckpointConfig(every_reports=2)
    )
    workers = train.ScalingConfig(num_workers=2)
    datasets = {"rows": headway.data.range(32)}
    TorchTrainer(train_func, scaling_config=workers, run_config=config, datasets=datasets).fit()
    assert not list(tmp_path.glob("run/checkpoints/checkpoint_*")), "nor is rank 0's state kept alone after rank 1"
    told = " ".join(capfd.readouterr().err.split())
    assert "the checkpoint of report 1 would combine rank 0's state at epoch 0, " in told
    assert "make all ranks report at the same steps and equally often" in told


def test_a_checkpoint_that_mixes_steps_is_refused(tmp_path: Path) -> None:
    """However it came to be: it may have been put together from what a killed driver had left."""

    def train_func() -> None:
        loader = rows_loader()
        state = train.track(loader=loader)
        for _ in state.epochs(1):
            for _batch in loader:
                train.report({})

    def fit(name: str, **options: Any) -> train.Result:
        checkpoints = train.CheckpointConfig(every_reports=1, num_to_keep=3)
        config = train.RunConfig(name=name, storage_path=tmp_path, checkpoint_config=checkpoints)
        workers = train.ScalingConfig(num_workers=2)
        return TorchTrainer(train_func, scaling_config=workers, run_config=config, **options).fit()

    fit("run")
    *_, older, newer = sorted(tmp_path.glob("run/checkpoints/checkpoint_*"))
    mixed = tmp_path / "mixed"
    shutil.copytree(newer, mixed)
    for part in ("places/rank-1", "rank-1"):
        shutil.rmtree(mixed / "tracked" / part)
        shutil.copytree(older / "tracked" / part, mixed / "tracked" / part)
    with pytest.raises(train.TrainingFailedError, match="mixes the states of different steps"):
        fit("other", resume_from_checkpoint=train.Checkpoint.from_directory(mixed))


def test_a_rank_that_raises_before_it_has_saved_leaves_no_checkpoint_without_its_state(tmp_path: Path) -> None:
    """The others have saved in that report. Without the random states of the one that raised, losses would differ."""

    def train_func(config: dict[str, Any]) -> None:
        resumed = train.get_checkpoint() is not None
        torch.manual_seed(7)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        model = prepare_model(net)
        optimizer = torch.optim.Adam(model.parameters())
        rows = torch.linspace(-1, 1, 96).reshape(24, 4)
        loader = prepare_data_loader(DataLoader(TensorDataset(rows), batch_size=2))
        state = train.track(model=model, optimizer=optimizer, loader=loader)
        for _ in state.epochs(2):
            for (batch,) in loader:
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                train.report({"loss": loss.item()})
                if state.num_batches == 3 and config["raises"] and not resumed:
                    train.collective.barrier()
                    if train.get_context().get_world_rank() == 1:
                        raise ValueError("between a report and the next batch")

    losses = []
    for raises in (False, True):
        result = TorchTrainer(
            train_func,
            train_loop_config={"raises": raises},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(
                name=f"raises-{raises}",
                storage_path=tmp_path,
                failure_config=train.FailureConfig(max_failures=1),
                checkpoint_config=train.CheckpointConfig(every_reports=1),
            ),
        ).fit()
        losses.append(list(result.metrics_dataframe["loss"]))
    quiet, disturbed = losses
    assert disturbed == quiet


class Progress:
    """A user's object with a step counter."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def test_a_run_resumes_although_a_rank_had_returned_before_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint without the state of rank 0 could not be resumed."""

    def train_func(config: dict[str, Any]) -> None:
        rank, raised = train.get_context().get_world_rank(), Path(config["raised"])
        progress = Progress()
        train.track(progress=progress)
        while progress.step < (2 if rank == 0 else 4):
            progress.step += 1
            while rank == 1 and progress.step == 3 and not Path(config["returned"]).exists():
                time.sleep(0.01)
            train.report({"step": progress.step})
        if rank == 0:
            Path(config["returned"]).touch()
        elif not raised.exists():
            raised.touch()
            raise ValueError("once")

    result = TorchTrainer(
        train_func,
        train_loop_config={"raised": str(tmp_path / "raised"), "returned": str(tmp_path / "returned")},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            name="run",
            storage_path=tmp_path,
            failure_config=train.FailureConfig(max_failures=1),
            checkpoint_config=train.CheckpointConfig(every_reports=1),
        ),
    ).fit()
    manifests = [saved.manifest for saved in RunReader.at(Path(result.path)).checkpoints()]
    assert [manifest.ranks for manifest in manifests] == [[0, 1]] * len(manifests)
    told = " ".join(capfd.readouterr().err.split())
    assert "the checkpoint of report 3 lacks the files of rank 0 and is dropped: rank 0 returned earlier" in told
