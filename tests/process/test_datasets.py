"""Datasets in training: every row once per epoch, and an interrupted run resumes at exactly the next row."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headway.data
from headway import train
from headway.control.machine import shutdown
from headway.storage.run.reader import RunReader
from headway.train.torch import TorchTrainer, prepare_model
from scenarios import elastic
from support import wait_until


def fit(function: Any, folder: Path, datasets: dict[str, Any], num_workers: Any = 2, **options: Any) -> train.Result:
    failures = train.FailureConfig(max_failures=options.pop("max_failures", 0))
    config = {"folder": str(folder), **options.pop("config", {})}
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        datasets=datasets,
        dataset_config=options.pop("dataset_config", None),
        scaling_config=train.ScalingConfig(num_workers),
        run_config=train.RunConfig(name="run", storage_path=folder, failure_config=failures, **options),
    ).fit()


def rows_by_epoch(run: Path) -> dict[int, Counter[int]]:
    return elastic.seen(run)


def exact(run: Path, num_rows: int, num_epochs: int) -> bool:
    return rows_by_epoch(run) == {epoch: Counter(range(num_rows)) for epoch in range(num_epochs)}


def train_on_numbers(config: dict[str, Any]) -> int:
    """Saves by hand after every batch, as a careful user would; exits at the batch that the config names."""
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] if checkpoint is not None else 0
    rank = train.get_context().get_world_rank()
    shuffle = config.get("shuffle")
    batches = train.get_dataset_shard("train").iter_batches(
        batch_size=config.get("batch_size", 4), local_shuffle_buffer_size=shuffle
    )
    step = 0
    for epoch in range(first, config.get("epochs", 2)):
        for batch in batches:
            train.collective.barrier()  # as DDP would: no rank is ahead of another by more than a batch
            saved = train.Checkpoint.from_dict({"epoch": epoch}) if rank == 0 else None
            train.report({"epoch": epoch, "rows": batch["id"].tolist()}, checkpoint=saved)
            step += 1
            if (rank, step) == tuple(config.get("die", ())):
                die_once(config["folder"])
    return step


def die_once(folder: str) -> None:
    if not (mark := Path(folder, "died")).exists():
        mark.touch()
        os._exit(9)


def numbers(num_rows: int = 50) -> headway.data.Dataset:
    return headway.data.range(num_rows).random_shuffle()


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_every_row_comes_once_per_epoch_and_all_ranks_make_as_many_steps(tmp_path: Path, num_workers: int) -> None:
    fit(train_on_numbers, tmp_path, {"train": numbers()}, num_workers)
    assert exact(tmp_path / "run", 50, 2)
    steps = Counter(line["rank"] for line in _lines(tmp_path / "run") if "rank" in line)
    assert len(set(steps.values())) == 1


def _lines(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def test_twenty_runs_that_are_killed_at_some_batch_lose_and_repeat_nothing(tmp_path: Path) -> None:
    chance = random.Random(3)
    for number in range(20):
        folder = tmp_path / str(number)
        rows, batch = chance.randrange(8, 60), chance.randrange(1, 7)
        die = (chance.randrange(2), chance.randrange(1, max(2, rows // batch)))
        config = {"die": die, "batch_size": batch}
        fit(train_on_numbers, folder, {"train": numbers(rows)}, max_failures=1, config=config)
        assert exact(folder / "run", rows, 2), (rows, batch, die)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_another_number_of_workers_resumes_at_the_same_row(tmp_path: Path, before: int, after: int) -> None:
    with pytest.raises(train.WorkerGroupError):
        fit(train_on_numbers, tmp_path, {"train": numbers()}, before, config={"die": (0, 6 // before + 1)})
    fit(train_on_numbers, tmp_path, {"train": numbers()}, after)
    assert exact(tmp_path / "run", 50, 2)
    cursor = RunReader.at(tmp_path / "run").checkpoints()[-1].manifest.cursor.of_datasets()["train"]
    assert cursor.position is not None
    assert cursor.position.lanes == after, "the epoch after it is dealt out anew"


def test_the_order_is_the_same_whether_it_was_interrupted_or_not(tmp_path: Path) -> None:
    orders = []
    for name, die in (("quiet", ()), ("killed", (1, 5))):
        fit(train_on_numbers, tmp_path / name, {"train": headway.data.range(50).random_shuffle(seed=3)}, 2,
            max_failures=1, config={"die": die})  # fmt: skip
        reports = {(line["rank"], line["seq"]): line["metrics"]["rows"] for line in _lines(tmp_path / name / "run")[1:]
                   if "rank" in line}  # fmt: skip
        orders.append(reports)
    assert orders[0] == orders[1]


def train_with_torch(config: dict[str, Any]) -> None:
    import torch

    rank = train.get_context().get_world_rank()
    torch.manual_seed(rank)  # else two runs would begin with different weights and masks
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    batches = train.get_dataset_shard("train").iter_torch_batches(batch_size=4, dtypes=torch.float32)
    state = train.track(model=model, optimizer=optimizer)
    steps = 0
    for epoch in state.epochs(3):
        for batch in batches:
            loss = model(batch["id"].unsqueeze(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train.report({"epoch": epoch, "rows": batch["id"].int().tolist(), "loss": loss.item()})
            steps += 1
            if (rank, steps) == (1, config["die"]):
                die_once(config["folder"])


def saves_every_epoch(config: dict[str, Any]) -> None:
    """Nothing synchronises these ranks: rank 0 has saved three epochs, and fails, before rank 1 has taken a batch."""
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] + 1 if checkpoint is not None else 0
    rank = train.get_context().get_world_rank()
    began = Path(config["folder"], f"began-{rank}")
    again = began.exists()
    began.touch()
    if not again and rank == 1:
        time.sleep(config["late_s"])
    for epoch in range(first, 5):
        batches = train.get_dataset_shard().iter_batches(batch_size=10)
        rows = [row for batch in batches for row in batch["id"].tolist()]
        if not again and epoch == 3:
            time.sleep(config.get("fails_after_s", 0))
            raise RuntimeError("failure at report 3")
        train.report({"epoch": epoch, "rows": rows}, checkpoint=train.Checkpoint.from_dict({"epoch": epoch}))


@pytest.mark.parametrize(
    ("name", "fails_after_s"),
    [("train", 0), ("corpus", 0), ("corpus", 2.5)],  # files wait two seconds for ranks that never gave any
)
def test_rows_of_a_rank_that_is_behind_are_not_skipped(
    tmp_path: Path, name: str, fails_after_s: float, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutdown, "CATCH_UP_S", 0.5)
    config = {"late_s": 60, "fails_after_s": fails_after_s}
    fit(saves_every_epoch, tmp_path, {name: headway.data.range(100)}, max_failures=1, config=config)
    assert exact(tmp_path / "run", 100, 5)
    told = capfd.readouterr().err
    assert "a rank has failed; waiting up to 0.5 s for rank 1 to complete its checkpoint" in told
    assert "the checkpoint of report 2 covers batches that rank 1 had not taken yet and is dropped" in told


def only_rank_0_saves(config: dict[str, Any]) -> None:
    """Rank 0 saves its whole epoch while rank 1, which reports only if the config says so, is in its third batch."""
    checkpoint = train.get_checkpoint()
    rank = train.get_context().get_world_rank()
    done = Path(config["folder"], "rank-0-is-done")
    trained = Path(config["folder"], f"trained-{rank}")
    step = checkpoint.to_dict()["step"] + 1 if checkpoint is not None else 0
    for batch in train.get_dataset_shard().iter_batches(batch_size=5):
        if rank == 1 and step == 2 and not done.exists():
            wait_until(done.exists)
            time.sleep(config["wait_s"])
            raise ValueError("failure in the third batch of rank 1")
        with trained.open("a") as file:
            file.write("".join(f"{row}\n" for row in batch["id"].tolist()))
        if rank == 0:
            train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))
        elif config["reports"]:
            train.report({"step": step})
        step += 1
    if rank == 0:
        done.touch()


@pytest.mark.parametrize("wait_s", [0, 2])
@pytest.mark.parametrize("reports", [False, True])
def test_the_batch_in_which_a_rank_raises_is_not_skipped(tmp_path: Path, reports: bool, wait_s: float) -> None:
    config = {"reports": reports, "wait_s": wait_s}
    fit(only_rank_0_saves, tmp_path, {"corpus": headway.data.range(60)}, max_failures=1, config=config)
    trained = [int(row) for rank in (0, 1) for row in (tmp_path / f"trained-{rank}").read_text().split()]
    assert set(trained) == set(range(60))


def test_a_rank_that_comes_late_completes_what_one_that_raised_has_saved(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fit(saves_every_epoch, tmp_path, {"train": headway.data.range(100)}, max_failures=1, config={"late_s": 1})
    assert exact(tmp_path / "run", 100, 5)
    told = capfd.readouterr().err
    assert "restarting from checkpoint_000002" in told
    assert "dropped" not in told


def test_tracked_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    losses = []
    for name, die in (("quiet", None), ("killed", 9)):
        (tmp_path / name).mkdir()
        TorchTrainer(
            train_with_torch,
            train_loop_config={"die": die, "folder": str(tmp_path / name)},
            datasets={"train": headway.data.range(50).random_shuffle(seed=5)},
            scaling_config=train.ScalingConfig(2),
            run_config=train.RunConfig(
                name="run",
                storage_path=tmp_path / name,
                checkpoint_config=train.CheckpointConfig(num_to_keep=2, every_reports=2),
                failure_config=train.FailureConfig(max_failures=1),
            ),
        ).fit()
        assert exact(tmp_path / name / "run", 50, 3)
        lines = [line for line in _lines(tmp_path / name / "run") if "rank" in line]
        losses.append({(line["rank"], line["seq"]): line["metrics"]["loss"] for line in lines})
    assert (tmp_path / "killed" / "died").exists()
    assert losses[0] == losses[1]


def test_fewer_and_more_workers_again_see_every_row_once(tmp_path: Path) -> None:
    """As with prepared loaders in test_elastic_data.py, with a dataset."""

    def train_func(config: dict[str, Any]) -> None:
        import torch

        model = prepare_model(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        batches = train.get_dataset_shard("train").iter_torch_batches(batch_size=4)
        state = train.track(model=model, optimizer=optimizer)
        for epoch in state.epochs(3):
            for batch in batches:
                optimizer.zero_grad()
                model(batch["id"].float().unsqueeze(1)).mean().backward()
                optimizer.step()
                time.sleep(0.02)
                world = train.get_context().get_world_size()
                train.report({"epoch": epoch, "rows": batch["id"].tolist(), "world": world})

    run = TorchTrainer(
        train_func,
        datasets={"train": headway.data.range(300).random_shuffle()},
        scaling_config=train.ScalingConfig((1, 3)),
        run_config=train.RunConfig(
            name="run", storage_path=tmp_path, checkpoint_config=train.CheckpointConfig(num_to_keep=2)
        ),
    ).start()
    changes = {10: 1, 40: 3}
    for number, _ in enumerate(run.reports()):
        if number in changes:
            run._execution._engine.resources.limit(changes[number])  # type: ignore[attr-defined]
    run.result()
    assert exact(run.path, 300, 3)
    assert {metrics["world"] for metrics in elastic.reports(run.path)} == {1, 3}


# --- rows that are thrown away ---


def train_on_what_is_left(config: dict[str, Any]) -> int:
    batches = train.get_dataset_shard("train").iter_batches(batch_size=4)
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] if checkpoint is not None else 0
    rank, steps = train.get_context().get_world_rank(), 0
    for epoch in range(first, 2):
        for batch in batches:
            train.collective.barrier()  # a rank that makes another number of steps would stand here for ever
            saved = train.Checkpoint.from_dict({"epoch": epoch}) if rank == 0 else None
            train.report({"epoch": epoch, "rows": batch["id"].tolist()}, checkpoint=saved)
            steps += 1
            if (rank, steps) == tuple(config.get("die", ())):
                die_once(config["folder"])
    return steps


def uneven() -> headway.data.Dataset:
    """Nearly all of the first half is dropped, nothing of the second: the ranks have very different numbers of rows."""
    return headway.data.range(100).filter(lambda row: row["id"] > 50 or row["id"] % 10 == 0)


def test_ranks_agree_on_the_last_step_where_none_can_know_it(tmp_path: Path) -> None:
    result = fit(train_on_what_is_left, tmp_path, {"train": uneven()})
    assert result.return_value == 4, "as many steps in two epochs as the poorer rank has rows for"
    seen = rows_by_epoch(tmp_path / "run")
    assert all(count == 1 for rows in seen.values() for count in rows.values())
    assert set(range(0, 50, 10)) <= set(seen[0]), "the poorer rank has used all of its rows"
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("rank-*.err"))
    assert "because another rank has no more rows" in logs


def test_a_filtered_dataset_resumes_with_as_many_workers_and_refuses_others(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError):
        fit(train_on_what_is_left, tmp_path, {"train": headway.data.range(80).filter(_odd)}, config={"die": (1, 3)})
    with pytest.raises(train.TrainingFailedError, match="it cannot resume with 3"):
        fit(train_on_what_is_left, tmp_path, {"train": headway.data.range(80).filter(_odd)}, 3)
    fit(train_on_what_is_left, tmp_path, {"train": headway.data.range(80).filter(_odd)})
    assert rows_by_epoch(tmp_path / "run") == {epoch: Counter(range(1, 80, 2)) for epoch in range(2)}


def test_the_error_of_a_filtered_dataset_with_other_workers_names_a_remedy(tmp_path: Path) -> None:
    """The ranks have reported after the same batch, and are at different positions."""
    thirds = headway.data.range(240).filter(_no_third)
    with pytest.raises(train.WorkerGroupError):
        fit(train_on_what_is_left, tmp_path, {"train": thirds}, config={"die": (1, 3)})
    with pytest.raises(
        train.TrainingFailedError, match="in the middle of an epoch of 2 workers: it cannot resume with"
    ) as caught:
        fit(train_on_what_is_left, tmp_path, {"train": thirds}, 1)
    assert "Finish the epoch with 2 workers" in str(caught.value)
    assert "after the same batch" not in str(caught.value)


def _no_third(row: dict[str, Any]) -> bool:
    return row["id"] % 3 > 0


def _odd(row: dict[str, Any]) -> bool:
    return bool(row["id"] % 2)


def test_evaluation_never_drops_a_row(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        for name in ("valid", "tiny"):
            for batch in train.get_dataset_shard(name).iter_batches(batch_size=4):
                train.report({"epoch": 0 if name == "valid" else 1, "rows": batch["id"].tolist()})

    fit(train_func, tmp_path, {"valid": uneven(), "tiny": headway.data.range(2)}, 3)
    expected = Counter(n for n in range(100) if n > 50 or n % 10 == 0)
    assert rows_by_epoch(tmp_path / "run") == {0: expected, 1: Counter(range(2))}


# --- what is refused, and how ---


def test_a_dataset_with_fewer_rows_than_workers_is_refused_for_training(tmp_path: Path) -> None:
    with pytest.raises(train.ConfigError, match="'train' has 2 rows for 3 workers"):
        fit(train_on_numbers, tmp_path, {"train": headway.data.range(2)}, 3)


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(train.ConfigError, match="'train' is empty"):
        fit(train_on_numbers, tmp_path, {"train": headway.data.range(0)})


def test_an_object_that_is_not_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(train.ConfigError, match=r"datasets\['train'\] must be a headway.data.Dataset"):
        fit(train_on_numbers, tmp_path, {"train": [1, 2, 3]})


def test_files_that_have_changed_are_refused_when_a_run_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    headway.data.range(50).write_parquet(folder)
    with pytest.raises(train.WorkerGroupError):
        fit(train_on_numbers, tmp_path, {"train": headway.data.read_parquet(folder)}, config={"die": (0, 3)})
    pq.write_table(pa.table({"id": np.arange(50, 60)}), folder / "more.parquet")
    with pytest.raises(train.DataError, match="differs from the one that this run has used so far"):
        fit(train_on_numbers, tmp_path, {"train": headway.data.read_parquet(folder)})
    (folder / "more.parquet").unlink()
    fit(train_on_numbers, tmp_path, {"train": headway.data.read_parquet(folder)})
    assert exact(tmp_path / "run", 50, 2)


def test_a_file_whose_rows_were_reordered_is_refused_when_a_run_resumes(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    lines = [f"{number}\n" for number in range(100, 150)]
    file.write_text("id\n" + "".join(lines))
    with pytest.raises(train.WorkerGroupError):
        fit(train_on_numbers, tmp_path, {"train": headway.data.read_csv(file)}, config={"die": (0, 3)})
    file.write_text("id\n" + "".join(reversed(lines)))
    with pytest.raises(train.DataError, match="differs from the one that this run has used so far"):
        fit(train_on_numbers, tmp_path, {"train": headway.data.read_csv(file)})


def test_a_file_that_is_deleted_between_epochs_is_named(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        shard = train.get_dataset_shard("train")
        for epoch in range(2):
            for _ in shard.iter_batches(batch_size=1000 + epoch):  # another size: nothing is kept from before
                pass
            Path(config["folder"], "files", "part-000000.parquet").unlink(missing_ok=True)
            train.report({"epoch": epoch})

    headway.data.range(50).write_parquet(tmp_path / "files")
    dataset = headway.data.read_parquet(tmp_path / "files")
    with pytest.raises(train.TrainingFailedError, match=r"part-000000\.parquet no longer exists"):
        fit(train_func, tmp_path, {"train": dataset}, 1)


def test_an_error_in_a_map_comes_with_its_row(tmp_path: Path) -> None:
    def careless(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": 1 // (row["id"] - 33)}

    with pytest.raises(train.WorkerGroupError) as caught:
        fit(train_on_numbers, tmp_path, {"train": headway.data.range(50).map(careless)})
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert any("map(careless), for row 33 of the dataset" in note for note in cause.__notes__)
    assert any("dataset.probe(33)" in note for note in cause.__notes__)


# --- which part is whose ---


def test_datasets_that_are_not_split_are_whole_on_every_worker(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        for name in ("train", "other"):
            rows = [n for batch in train.get_dataset_shard(name).iter_batches(batch_size=4) for n in batch["id"]]
            train.report({name: len(rows)})

    config = train.DataConfig(datasets_to_split=["train"])
    fit(train_func, tmp_path, {"train": numbers(), "other": numbers(7)}, dataset_config=config)
    found = Counter(json.dumps(line["metrics"]) for line in _lines(tmp_path / "run") if "rank" in line)
    assert found == {'{"train": 25}': 2, '{"other": 7}': 2}
    with pytest.raises(TypeError, match="datasets_to_split"):
        train.DataConfig(datasets_to_split=3)  # type: ignore[arg-type]
    with pytest.raises(train.ConfigError, match="contains unknown datasets: nobody"):
        fit(train_func, tmp_path, {"train": numbers()}, dataset_config=train.DataConfig(["nobody"]))


def test_a_dataset_may_be_a_function_or_a_torch_dataset(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> list[int]:
        made = [row["id"] for row in train.get_dataset_shard("made").iter_rows()]
        torchs = [row["item"] for row in train.get_dataset_shard("torchs").iter_rows()]
        return [sum(made), sum(torchs)]

    class Squares:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index**2

    result = fit(train_func, tmp_path, {"made": lambda: headway.data.range(5), "torchs": Squares()}, 1)
    assert result.return_value == [10, 14]


def test_shards_are_found_by_name(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> str:
        only = train.get_dataset_shard()
        assert only is train.get_dataset_shard("train"), "the same each time"
        assert only.get_shard(0) is only
        with pytest.raises(KeyError, match="there is no dataset 'nobody'; the trainer's datasets: 'train'"):
            train.get_dataset_shard("nobody")
        assert len(only.iter_batches(batch_size=10)) == 3
        assert only.schema().names == ["id"]  # type: ignore[union-attr]
        return repr(only)

    result = fit(train_func, tmp_path, {"train": numbers()})
    assert result.return_value.startswith("DataIterator(part 1 of 2 of Dataset(range(50)")


def test_a_loop_that_is_left_early_begins_the_next_epoch(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> list[list[int]]:
        batches = train.get_dataset_shard("train").iter_batches(batch_size=4)
        firsts = []
        for _ in range(3):
            for batch in batches:
                firsts.append(batch["id"].tolist())
                break
        return firsts

    firsts = fit(train_func, tmp_path, {"train": numbers()}, 1).return_value
    assert len({tuple(rows) for rows in firsts}) == 3


# --- seeing it ---


def test_waiting_for_data_is_reported_and_statistics_are_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.2)
        return batch

    def train_func(config: dict[str, Any]) -> None:
        for number, _ in enumerate(train.get_dataset_shard("train").iter_batches(batch_size=4)):
            train.report({"step": number})

    fit(train_func, tmp_path, {"train": headway.data.range(250).map_batches(slow, concurrency=1)})
    said = capfd.readouterr().err
    assert "waiting for data" in said, "the console says so, too"
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "waiting for data" in events
    assert "map_batches(slow) takes the longest" in events
    last = _lines(tmp_path / "run", "data.jsonl")[-1]["datasets"]["train"]
    assert last["operators"][1]["name"] == "map_batches(slow)"
    assert last["waited_s"] > 0.5 * last["elapsed_s"]


def train_until_told(config: dict[str, Any]) -> None:
    """Exits in this epoch after so many of its batches, wherever it was resumed."""
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] if checkpoint is not None else 0
    rank = train.get_context().get_world_rank()
    batches = train.get_dataset_shard("train").iter_batches(batch_size=4)
    for epoch in range(first, 4):
        for number, batch in enumerate(batches):
            train.collective.barrier()
            saved = train.Checkpoint.from_dict({"epoch": epoch}) if rank == 0 else None
            train.report({"epoch": epoch, "rows": batch["id"].tolist()}, checkpoint=saved)
            if rank == 0 and [epoch, number] == config.get("die"):
                os._exit(9)


def test_a_run_may_change_its_workers_and_be_killed_again_and_again(tmp_path: Path) -> None:
    """The epoch after a change is shared out again; batches made ahead in the old order must not be used."""
    for workers, die in ((2, [0, 2]), (3, [1, 1]), (1, [2, 5]), (3, [2, 1]), (2, None)):
        options: dict[str, Any] = {"config": {"die": die} if die else {}}
        if die:
            with pytest.raises(train.WorkerGroupError):
                fit(train_until_told, tmp_path, {"train": numbers(97)}, workers, **options)
        else:
            fit(train_until_told, tmp_path, {"train": numbers(97)}, workers, **options)
    assert exact(tmp_path / "run", 97, 4)


def test_a_local_shuffle_is_finished_as_it_was_begun(tmp_path: Path) -> None:
    rows = {"train": headway.data.range(50)}
    with pytest.raises(train.WorkerGroupError):
        fit(train_on_numbers, tmp_path, rows, config={"shuffle": 20, "die": (0, 3)})
    with pytest.raises(train.TrainingFailedError, match="use the original values until that epoch has ended"):
        fit(train_on_numbers, tmp_path, rows, config={"shuffle": 10})
    fit(train_on_numbers, tmp_path, rows, config={"shuffle": 20})
    assert exact(tmp_path / "run", 50, 2)


def test_positions_in_very_many_datasets_fit_into_a_report(tmp_path: Path) -> None:
    names = [f"{'a rather long name ' * 400}{number}" for number in range(10)]

    def train_func(config: dict[str, Any]) -> None:
        batches = [iter(train.get_dataset_shard(name).iter_batches(batch_size=1)) for name in names]
        for batch in batches:
            next(batch)
        train.report({"n": len(batches)})

    assert fit(train_func, tmp_path, {name: headway.data.range(2) for name in names}, 1).metrics == {"n": 10}
