"""``headway why`` explains a failure; ``headway replay`` runs one rank of it again and changes nothing."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import failing
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from headway import data, train
from headway.cli import main
from headway.core import phrases
from headway.core.errors import TrainingFailedError
from headway.core.task import Task
from headway.frameworks.torch_config import TorchScriptConfig
from headway.storage.run import failure_bundle
from headway.storage.run.reader import RunReader
from headway.train.launch.fit import prepare
from headway.train.launch.request import TrainRequest
from headway.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from headway.worker.torchrun_script import run_script
from s3 import S3
from support import fit, plain_trainer, python

ROWS, BAD_ROW, BATCH = 64, 43, 4  # two workers take eight rows per step; rank 1 takes the odd rows


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        values = torch.full((4,), index / ROWS) + 0.01 * torch.rand(4)
        return index, values.log() if index != BAD_ROW else (-values).log()


def check(rows: list[int], values: torch.Tensor) -> None:
    api_token = f"hunter{len(rows)}"
    for row, value in zip(rows, values, strict=True):
        if not value.isfinite().all() and row != 0:
            raise ValueError(f"row {row} is not a number, says {len(api_token)}")


def train_func() -> None:
    model = prepare_model(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = prepare_data_loader(DataLoader(Rows(), batch_size=BATCH))
    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(2):
        for rows, values in loader:
            check(rows.tolist(), values)
            loss = model(values.clamp(-9, 9)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train.collective.barrier()
            assert train.get_preemption_info() is None
            train.report({"epoch": epoch, "loss": loss.item(), "row": rows[0].item()})


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose rank 1 fails at a bad row, twice. Tests must not change it."""
    storage = tmp_path_factory.mktemp("runs")
    trainer = TorchTrainer(
        train_func,
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(
            name="bad row",
            storage_path=storage,
            failure_config=train.FailureConfig(max_failures=1),
            checkpoint_config=train.CheckpointConfig(every_reports=2),
        ),
    )
    with pytest.raises(TrainingFailedError, match=f"row {BAD_ROW} is not a number"):
        trainer.fit()
    return storage / "bad row"


def headway(*args: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "headway", *args, **options)


def listing(run: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in (run, *run.rglob("*"))}


# --- why ---


def test_why_names_rank_place_and_remedy(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "bad row", "--storage-path", str(failed.parent)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("run bad row has failed (attempt 2)\n\nattempt 2 failed at ")
    assert f"rank 1 raised ValueError: row {BAD_ROW} is not a number" in text
    assert "begun        from checkpoint_000001, at report 4, with 2 workers" in text
    assert "rank 1       after report 4, 2 batches taken  ← failed first" in text
    assert 'test_why_replay.py", line ' in text
    assert "raise ValueError(f" in text
    assert "then         the run ended as FAILED" in text
    assert "replayed with --debug, the debugger stops where it was raised" in text
    assert str(failed / "failures" / "attempt-002") in text
    command = shlex.join(["headway", "replay", str(failed), "--rank", "1", "--attempt", "2"])
    assert f"to run rank 1 again, alone, here: {command}\n" in text


def test_why_all_lists_every_failure_and_what_followed(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(failed), "--all"]) == 0
    text = capsys.readouterr().out
    first, second = text.index("attempt 1 failed at"), text.index("attempt 2 failed at")
    assert first < second
    assert "begun        from the beginning, at report 0, with 2 workers" in text[first:second]
    assert "then         restarted from checkpoint_000001: attempt 2, at report 4, with 2 workers" in text[first:second]


def test_why_of_a_run_without_failures_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = fit(lambda: train.report({"step": 0}), name="fine", storage_path=tmp_path)
    capsys.readouterr()
    assert main(["why", str(result.path)]) == 0
    assert capsys.readouterr().out == "run fine has finished (attempt 1); nothing has failed\n"


def test_why_reports_that_a_rank_died(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingFailedError):
        fit(failing.die, 2, name="dead", storage_path=tmp_path)
    capsys.readouterr()
    assert main(["why", str(tmp_path / "dead")]) == 0
    text = capsys.readouterr().out
    assert "rank 1 exited with code 3 before its function returned" in text
    assert "class        dead" in text
    assert "os._exit() and sys.exit()" in text
    done = headway("replay", tmp_path / "dead")
    assert done.returncode == 3, "it takes the command with it"
    assert "if that happens again, this command ends, too" in done.stdout


def test_why_reads_a_run_in_an_object_store(s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"{s3.url}/runs/sad"
    with pytest.raises(TrainingFailedError):
        fit(failing.fail, name="sad", storage_path=f"{s3.url}/runs")
    capsys.readouterr()
    assert main(["why", address]) == 0
    text = capsys.readouterr().out
    assert "rank 0 raised ValueError: sad" in text
    assert f"stacks and logs of every rank: {address}/failures/attempt-001" in text
    assert "headway replay" not in text
    assert main(["replay", address]) == 1
    assert (
        f"{address} is in an object store, but only runs in a local directory can be replayed"
        in capsys.readouterr().err
    )


def test_secrets_are_not_in_the_stacks(failed: Path) -> None:
    folder = failure_bundle.bundles(failed)[-1]
    text = failure_bundle.stacks(folder, 1)
    assert "api_token = (secret)" in text
    assert f"row = {BAD_ROW}" in text
    assert not [path for path in folder.glob("*.txt") if f"hunter{BATCH}" in path.read_text()]


# --- replay ---


def test_a_replay_reproduces_the_failure_and_does_not_change_the_run(failed: Path) -> None:
    before = listing(failed)
    done = headway("replay", failed, "--rank", "1")
    assert done.returncode == 1, done.stderr
    assert f"reproduced: rank 1 raised ValueError: row {BAD_ROW} is not a number" in done.stdout
    assert "gradients are this rank's own" in done.stdout
    assert 'test_why_replay.py", line ' in done.stdout
    assert "headway/worker" not in done.stdout, "no frame of ours"
    assert listing(failed) == before
    [then] = [line.metrics for line in RunReader.at(failed).reports(1) if line.seq == 4]
    assert then["row"] == 33
    assert f"report 4  {phrases.metrics(then)}\n" in done.stdout, "the same weights, rows and randomness"


def test_a_rank_that_had_not_failed_gets_further_and_is_stopped(failed: Path) -> None:
    before = listing(failed)
    done = headway("replay", failed, "--rank", "0", "--attempt", "1")
    assert done.returncode == 0, done.stderr
    assert "from the beginning, at report 0" in done.stdout
    assert "random weights" not in done.stdout
    assert "did not fail: it got further than in that attempt, and was stopped at report 7" in done.stdout
    assert listing(failed) == before


def test_the_debugger_stops_where_it_was_raised(failed: Path) -> None:
    done = headway("replay", failed, "--debug", input="p row\nq\n")
    assert done.returncode == 1, done.stderr
    assert f"(Pdb) {BAD_ROW}\n" in done.stdout
    assert done.stdout.index("Traceback") < done.stdout.index("(Pdb)")


def test_a_run_that_was_moved_is_replayed_by_its_owner(failed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(failed, tmp_path / "copy")
    assert f"reproduced: rank 1 raised ValueError: row {BAD_ROW}" in headway("replay", copy).stdout


def test_a_function_of_unproven_origin_is_not_opened(failed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(failed, tmp_path / "copy")
    another_user = {**os.environ, "HEADWAY_KEY_FILE": str(tmp_path / "key")}
    refused = headway("replay", copy, env=another_user)
    assert refused.returncode == 1
    assert "it is not proven that your own run wrote" in refused.stderr
    assert "--trust if you know where it comes from" in refused.stderr
    trusted = headway("replay", copy, "--trust", env=another_user)
    assert f"reproduced: rank 1 raised ValueError: row {BAD_ROW}" in trusted.stdout


def test_a_function_that_was_changed_is_not_opened(failed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(failed, tmp_path / "copy")
    task = copy / "failures" / "attempt-002" / "task.pkl"
    task.write_bytes(task.read_bytes() + b"\n")
    refused = headway("replay", copy)
    assert refused.returncode == 1
    assert "it is not proven that your own run wrote" in refused.stderr


def replayed(tmp_path: Path, function: Callable[[], Any], num_workers: int, *args: str) -> tuple[int, str, str]:
    """Run a function that fails on ordinary workers, then replay it."""
    with pytest.raises(TrainingFailedError):
        fit(function, num_workers, name="run", storage_path=tmp_path)
    before = listing(tmp_path / "run")
    done = headway("replay", tmp_path / "run", *args)
    assert listing(tmp_path / "run") == before
    return done.returncode, done.stdout, done.stderr


def test_rank_zero_has_what_it_broadcasts(tmp_path: Path) -> None:
    code, out, _ = replayed(tmp_path, failing.broadcast, 2, "--rank", "0")
    assert code == 1
    assert "reproduced: rank 0 raised ValueError: from rank 0" in out


def test_another_rank_gets_an_error_about_missing_ranks(tmp_path: Path) -> None:
    code, out, err = replayed(tmp_path, failing.broadcast, 2, "--rank", "1")
    assert code == 1
    assert err == (
        "headway: replay runs only one rank, but the function waits for the data of rank 0 in "
        "broadcast_from_rank_zero()\n"
    )
    assert "reproduced" not in out


def test_checkpoints_and_other_files_of_a_replay_are_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fails").touch()
    trainer = plain_trainer(failing.saves, 1, name="run", storage_path=tmp_path)
    with pytest.raises(TrainingFailedError):
        trainer.fit()
    run = tmp_path / "run"
    before = listing(run)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = headway("replay", run, cwd=elsewhere)
    assert "reproduced: rank 0 raised ValueError: there is a file" in done.stdout, done.stderr
    assert listing(run) == before
    Path("fails").unlink()
    done = headway("replay", run)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "did not fail: the function returned"), done.stderr


def test_a_missing_checkpoint_is_replaced_by_an_older_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingFailedError):
        fit(failing.goes_on, name="run", storage_path=tmp_path, max_failures=1)
    run = tmp_path / "run"
    shutil.rmtree(run / "checkpoints" / "checkpoint_000003")
    done = headway("replay", run)
    assert "checkpoint_000003 no longer exists: starting from the older checkpoint_000002" in done.stdout, done.stderr
    assert "reproduced: rank 0 raised ValueError: at the end" in done.stdout
    for number in range(3):
        shutil.rmtree(run / "checkpoints" / f"checkpoint_{number:06d}")
    assert main(["replay", str(run)]) == 1
    assert (
        "started from checkpoint_000003, which no longer exists, and there is no older checkpoint"
        in capsys.readouterr().err
    )


def test_impossible_replays_are_explained_in_one_line(
    failed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = fit(lambda: None, name="fine", storage_path=tmp_path)
    with pytest.raises(TrainingFailedError):
        fit(failing.fail, 0, name="inline", storage_path=tmp_path)
    for args, sentence in [
        ([str(failed), "--rank", "7"], "--rank must be one of the 2 ranks of that attempt, got 7"),
        ([str(failed), "--attempt", "9"], "attempt 9 of run bad row is not one of its failed attempts: 1, 2"),
        ([str(fine.path)], "run fine has no failed attempt to replay"),
        ([str(tmp_path / "inline")], "contains no function to replay"),
    ]:
        assert main(["replay", *args]) == 1
        assert sentence in capsys.readouterr().err


SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
pair = dist.new_group([0, 1], backend="gloo")
dist.all_reduce(torch.ones(1), group=pair)
dist.barrier()
raise ValueError(f"rank {os.environ['RANK']} of {dist.get_world_size()} with {sys.argv[1:]}")
"""


def train_on_a_dataset() -> None:
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["epoch"] if checkpoint is not None else 0
    batches = train.get_dataset_shard("train").iter_batches(batch_size=4)
    for epoch in range(first, 2):
        for batch in batches:
            train.collective.barrier()
            if epoch == 1 and 33 in batch["id"]:
                raise ValueError(f"a bad batch: {sorted(batch['id'].tolist())}")
            train.report({"epoch": epoch}, checkpoint=train.Checkpoint.from_dict({"epoch": epoch}))


@pytest.mark.parametrize("filtered", [False, True])
def test_a_replay_gets_the_rows_of_the_attempt(tmp_path: Path, filtered: bool) -> None:
    dataset = data.range(50).random_shuffle(seed=1)
    trainer = train.DataParallelTrainer(
        train_on_a_dataset,
        datasets={"train": dataset.filter(lambda row: row["id"] != 7) if filtered else dataset},
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(
            name="run", storage_path=tmp_path, failure_config=train.FailureConfig(max_failures=1)
        ),
    )
    with pytest.raises(TrainingFailedError) as caught:
        trainer.fit()
    told = headway("replay", tmp_path / "run")
    assert str(caught.value.__cause__) in told.stdout + told.stderr, told.stdout + told.stderr


def test_a_script_for_torchrun_is_replayed_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    request = TrainRequest(
        kind="script",
        task=Task(functools.partial(run_script, str(script), ["--flag"]), TorchScriptConfig()),
        scaling=train.ScalingConfig(2),
        run=train.RunConfig(name="script", storage_path=tmp_path),
    )
    with pytest.raises(TrainingFailedError):
        prepare(request).run()
    done = headway("replay", tmp_path / "script", "--rank", "1")
    assert "reproduced: rank 1 raised ValueError: rank 1 of 2 with ['--flag']" in done.stdout, done.stderr
    assert f'File "{script}", line 11, in <module>' in done.stdout


def shard() -> None:
    prepare_model(nn.Linear(4, 4), parallel_strategy="fsdp")
    raise ValueError("sharded")


def test_a_sharded_model_is_refused_with_a_message(tmp_path: Path) -> None:
    trainer = TorchTrainer(
        shard,
        scaling_config=train.ScalingConfig(2),
        run_config=train.RunConfig(name="run", storage_path=tmp_path),
    )
    with pytest.raises(TrainingFailedError):
        trainer.fit()
    done = headway("replay", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("headway: replay runs only one rank, but a sharded model (FSDP")
