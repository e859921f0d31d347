"""Reports never wait for another rank; checkpoints of all ranks are merged, complete, and resumed from."""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from headway import train
from headway.engine import channel
from headway.storage.run.reader import RunReader
from support import fit, journal, plain_trainer, save


def saved_files(result: train.Result) -> dict[str, str]:
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as folder:
        files = [p for p in sorted(Path(folder).iterdir()) if p.is_file() and not p.name.startswith(".")]
        return {p.name: p.read_text() for p in files}


def test_files_of_all_ranks_become_one_checkpoint() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        with tempfile.TemporaryDirectory() as folder:
            train.report({"loss": rank}, save(folder, **{f"rank-{rank}.txt": str(rank), "same.txt": "same"}))

    result = fit(train_func, 2)
    assert saved_files(result) == {"rank-0.txt": "0", "rank-1.txt": "1", "same.txt": "same"}
    [(checkpoint, metrics)] = result.best_checkpoints
    assert metrics == {"loss": 0}
    assert Path(checkpoint.path).name == "checkpoint_000000"


def test_of_files_with_equal_names_the_lowest_ranks_is_kept_with_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        with tempfile.TemporaryDirectory() as folder:
            train.report({}, save(folder, **{"model.txt": f"of rank {rank}"}))

    assert saved_files(fit(train_func, 2)) == {"model.txt": "of rank 0"}
    assert "ranks 0 and 1 reported different versions of model.txt; rank 0's was kept" in capfd.readouterr().err


def test_a_reported_directory_is_copied_and_never_changed(tmp_path: Path) -> None:
    """Seed 001 reports the temporary directory itself from every rank, while others write into it."""
    shared = tmp_path / "shared"
    (shared / "sub").mkdir(parents=True)
    (shared / "sub/deep.txt").write_text("deep")
    os.mkfifo(shared / "pipe")
    (shared / "loop").symlink_to(shared)

    def train_func() -> None:
        for step in range(20):
            train.collective.barrier()
            train.report({"step": step}, save(shared, **{"model.txt": "weights"}))
            Path(shared, f"gone-{os.getpid()}").write_text("x")
            os.remove(shared / f"gone-{os.getpid()}")

    result = fit(train_func, 2)
    assert (shared / "model.txt").read_text() == "weights"
    assert (shared / "sub/deep.txt").exists()
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "sub/deep.txt").read_text() == "deep"
    assert len(RunReader.at(Path(result.path)).checkpoints()) == 20


def test_a_directory_that_contains_the_run_can_be_reported(tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({}, save(tmp_path, **{"model.txt": "w"}))

    assert saved_files(fit(train_func, 2, storage_path=tmp_path / "inside")) == {"model.txt": "w"}


def test_to_directory_copies_only_the_files(tmp_path: Path) -> None:
    result = fit(lambda: train.report({}, save(tempfile.mkdtemp(dir=tmp_path), a="1")))
    assert result.checkpoint is not None
    target = result.checkpoint.to_directory(tmp_path / "copy")
    assert os.listdir(target) == ["a"]


def test_metrics_are_kept_with_or_without_a_checkpoint(tmp_path: Path) -> None:
    def train_func() -> None:
        for step in range(5):
            train.report({"step": step}, save(tmp_path, a="1") if step == 2 else None)

    result = fit(train_func, storage_path=tmp_path / "runs")
    assert result.metrics == {"step": 4}
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3, 4]
    assert [metrics for _, metrics in result.best_checkpoints] == [{"step": 2}]


def test_checkpoints_commit_at_once_when_only_rank_zero_reports() -> None:
    def train_func() -> None:
        import time

        if train.get_context().get_world_rank() == 1:
            while len(list(Path(train.get_context().get_trial_dir(), "checkpoints").glob("c*/.manifest.json"))) < 8:
                time.sleep(0.01)
            return
        for step in range(10):
            with tempfile.TemporaryDirectory() as folder:
                train.report({"step": step}, save(folder, step=str(step)))

    result = fit(train_func, 2)
    assert len(result.best_checkpoints) == 10
    assert saved_files(result) == {"step": "9"}


def test_crossing_checkpoints_fail_the_run_and_name_the_ranks(tmp_path: Path) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        if rank == 0:
            train.report({"extra": 0})
        for _ in range(3):
            train.report({}, save(tempfile.mkdtemp(dir=tmp_path), shard=str(rank)))
            train.report({})

    with pytest.raises(train.TrainingFailedError, match=r"ranks . and . saved checkpoint \d+ in different reports"):
        fit(train_func, 2, max_failures=5, name="crossed")
    record = RunReader.at(Path(os.environ["HEADWAY_RESULTS"], "crossed"))
    assert record.checkpoints() == [], "half a checkpoint is none"


def test_ranks_that_drift_apart_still_make_complete_checkpoints() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        time.sleep(0.3 * rank)
        for step in range(20):
            with tempfile.TemporaryDirectory() as folder:
                train.report({"step": step}, save(folder, **{f"of-{rank}": str(step)}))

    result = fit(train_func, 2)
    assert saved_files(result) == {"of-0": "19", "of-1": "19"}
    for checkpoint, _ in result.best_checkpoints:
        assert {"of-0", "of-1"} <= set(os.listdir(checkpoint.path)), "no half ones"


def test_get_checkpoint_returns_the_newest(tmp_path: Path) -> None:
    def train_func() -> list[str | None]:
        seen: list[str | None] = []
        for step in range(3):
            checkpoint = train.get_checkpoint()
            seen.append(Path(checkpoint.path, "step").read_text() if checkpoint else None)
            train.report({}, save(tempfile.mkdtemp(dir=tmp_path), step=str(step)))
        return seen

    assert fit(train_func).return_value == [None, "0", "1"]


def test_a_killed_run_resumes_from_its_newest_checkpoint(tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def train_func() -> int:
        checkpoint = train.get_checkpoint()
        start = int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0
        for step in range(start, 20):
            train.collective.barrier()
            with tempfile.TemporaryDirectory() as folder:
                train.report({"step": step, "start": start}, save(folder, step=str(step)))
            if step == 10 and train.get_context().get_world_rank() == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return start

    result = fit(train_func, 2, max_failures=1)
    assert 8 <= result.return_value <= 11
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["step"]) == list(range(20)), "each report counts once"
    record = RunReader.at(Path(result.path))
    assert [saved.manifest.seq for saved in record.checkpoints()] == list(range(20))
    assert {saved.manifest.attempt for saved in record.checkpoints()} == {1, 2}


def test_a_run_of_the_same_name_continues_where_it_ended(tmp_path: Path) -> None:
    def train_func(config: dict[str, int]) -> int:
        checkpoint = train.get_checkpoint()
        start = int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0
        for step in range(start, config["until"]):
            train.report({"step": step}, save(tempfile.mkdtemp(dir=tmp_path), step=str(step)))
        return start

    assert fit(train_func, 2, config={"until": 3}, name="again").return_value == 0
    result = fit(train_func, 2, config={"until": 5}, name="again")
    assert result.return_value == 3
    assert result.metrics_dataframe is not None
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3, 4]
    assert [Path(c.path).name for c, _ in result.best_checkpoints][-1] == "checkpoint_000004"


def test_resume_never_refuses_an_existing_run_and_must_requires_one() -> None:
    fit(lambda: None, name="there")
    with pytest.raises(train.ConfigError, match="already contains a run"):
        fit(lambda: None, name="there", resume="never")
    with pytest.raises(train.ConfigError, match="contains no run"):
        fit(lambda: None, name="elsewhere", resume="must")
    fit(lambda: None, name="there", resume="must")


def test_resume_from_checkpoint_is_the_first_checkpoint(tmp_path: Path) -> None:
    def train_func() -> str:
        checkpoint = train.get_checkpoint()
        assert checkpoint is not None
        return Path(checkpoint.path, "weights").read_text()

    given = save(tmp_path, weights="pretrained")
    trainer = train.DataParallelTrainer(train_func, resume_from_checkpoint=given)
    assert trainer.fit().return_value == "pretrained"


def test_retention_keeps_the_best_and_the_newest(tmp_path: Path) -> None:
    def train_func() -> None:
        for loss in (2, 4, 1, 3):
            train.report({"loss": loss}, save(tempfile.mkdtemp(dir=tmp_path), loss=str(loss)))

    keep = train.CheckpointConfig(2, "loss", "min")
    result = fit(train_func, checkpoint_config=keep)
    assert [metrics["loss"] for _, metrics in result.best_checkpoints] == [2, 1], "ascending, the best last"
    assert result.checkpoint is not None
    assert saved_files(result) == {"loss": "3"}, "the newest stays, too"
    best = result.get_best_checkpoint("loss", "max")
    assert best is not None
    assert Path(best.path, "loss").read_text() == "3"
    with pytest.raises(train.ConfigError, match="no checkpoint has a metric 'accuracy'"):
        result.get_best_checkpoint("accuracy", "max")
    folders = [p.name for p in Path(result.path, "checkpoints").iterdir() if not p.name.startswith(".")]
    assert sorted(folders) == ["checkpoint_000000", "checkpoint_000002", "checkpoint_000003"]


def test_a_directory_that_is_not_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    """Something else exists under the name of the next checkpoint: it stays unchanged; the next free name is used."""

    def train_func() -> None:
        blocked = Path(train.get_context().get_trial_dir(), "checkpoints/checkpoint_000001")
        train.report({}, save(tempfile.mkdtemp(dir=tmp_path), a="0"))
        blocked.mkdir()
        (blocked / "foreign").write_text("x")
        train.report({}, save(tempfile.mkdtemp(dir=tmp_path), a="1"))

    result = fit(train_func)
    checkpoints = Path(result.path, "checkpoints")
    assert [path.name for path in (checkpoints / "checkpoint_000001").iterdir()] == ["foreign"]
    assert saved_files(result) == {"a": "1"}
    assert Path(result.checkpoint.path).name == "checkpoint_000002"  # type: ignore[union-attr]
    assert len(RunReader.at(result.path).checkpoints()) == 2


def test_collective_calls_synchronize_all_ranks(tmp_path: Path) -> None:
    def train_func() -> Any:
        rank = train.get_context().get_world_rank()
        (tmp_path / f"here-{rank}").touch()
        train.collective.barrier()
        everybody_was_here = len(list(tmp_path.glob("here-*"))) == 3
        word = train.collective.broadcast_from_rank_zero({"seed": 7} if rank == 0 else None)
        train.report({"here": everybody_was_here, **word})

    path = Path(fit(train_func, 3, storage_path=tmp_path / "runs").path)
    assert [RunReader.at(path).reports(rank)[0].metrics for rank in range(3)] == [{"here": True, "seed": 7}] * 3


def test_a_collective_call_that_can_never_complete_fails_the_run() -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 0:
            train.collective.barrier()

    with pytest.raises(train.TrainingFailedError, match=r"rank 0 waits in barrier\(\), which rank 1 will never reach"):
        fit(train_func, 2)


def test_ranks_that_wait_in_different_collective_calls_fail_the_run() -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 0:
            train.collective.barrier()
        else:
            train.collective.broadcast_from_rank_zero(1)

    with pytest.raises(train.TrainingFailedError, match="waits in"):
        fit(train_func, 2)


class Recorder(train.UserCallback):
    def __init__(self) -> None:
        self.rounds: list[tuple[list[Any], str | None]] = []
        self.errors: list[dict[int, BaseException]] = []
        self.context: train.TrainRunContext | None = None

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.context = run_context
        self.rounds.append((metrics, Path(checkpoint.path).name if checkpoint else None))

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, BaseException]) -> None:
        self.errors.append(worker_exceptions)


def test_callbacks_receive_every_round_in_order(tmp_path: Path) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(4):
            folder = tempfile.mkdtemp(dir=tmp_path)
            train.report({"rank": rank, "step": step}, save(folder, a="1") if step % 2 else None)

    heard = Recorder()
    fit(train_func, 2, callbacks=[heard], storage_path=tmp_path / "runs")
    assert [[m["step"] for m in metrics] for metrics, _ in heard.rounds] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert [[m["rank"] for m in metrics] for metrics, _ in heard.rounds] == [[0, 1]] * 4
    assert [name for _, name in heard.rounds] == [None, "checkpoint_000000", None, "checkpoint_000001"]
    assert heard.context is not None
    assert heard.context.scaling_config.num_workers == 2


def test_callbacks_receive_exceptions_and_cannot_fail_the_run(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Clumsy(train.UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            raise RuntimeError("oops")

    def train_func() -> None:
        train.report({})
        if not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            raise ValueError("first time")

    heard = Recorder()
    result = fit(train_func, max_failures=1, callbacks=[Clumsy(), heard], storage_path=tmp_path / "runs")
    assert result.state == "FINISHED"
    assert [type(errors[0]) for errors in heard.errors] == [ValueError]
    assert "Clumsy.after_report raised RuntimeError: oops; the run continues" in capfd.readouterr().err
    notes = [event["text"] for event in journal(Path(result.path)) if event["event"] == "callback"]
    assert "Clumsy.after_report raised RuntimeError: oops; the run continues" in notes[0]


@pytest.mark.parametrize("seed", range(20))
def test_random_report_schedules_on_real_processes_end_and_lose_nothing(seed: int, tmp_path: Path) -> None:
    """Ranks report different numbers of times, with and without checkpoints, finish early, raise."""
    choose = random.Random(seed)
    plans = [[choose.random() < 0.4 for _ in range(choose.randrange(8))] for _ in range(2)]
    raising = choose.choice([None, None, 0, 1])

    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for files in plans[rank]:
            with tempfile.TemporaryDirectory() as folder:
                train.report({"rank": rank}, save(folder, **{f"of-{rank}": "x"}) if files else None)
        if rank == raising:
            raise ValueError("as planned")

    try:
        result = fit(train_func, 2, storage_path=tmp_path)
    except train.TrainingFailedError as error:
        crossed = "in different reports" in str(error)
        assert crossed or raising is not None
        result = error.result
    else:
        crossed = False
        assert raising is None
    kept = {saved.manifest.seq: set(saved.manifest.files) for saved in RunReader.at(Path(result.path)).checkpoints()}
    for seq, files in kept.items():
        assert files == {f"of-{rank}" for rank in (0, 1) if plans[rank][seq : seq + 1] == [True]}, "never half a one"
    lines = [json.loads(line) for line in Path(result.path, "metrics.jsonl").read_text().splitlines()]
    told = {(line["rank"], line["seq"]) for line in lines if "rank" in line}
    complete = {seq for rank, seq in told if plans[rank][seq] and {(0, seq), (1, seq)} <= told}
    if not crossed:
        assert complete <= set(kept), "what every rank had passed is committed"
    if raising is None and not crossed:
        assert sorted(line["rank"] for line in lines if "rank" in line) == [0] * len(plans[0]) + [1] * len(plans[1])


def test_a_slow_reader_of_reports_loses_none(tmp_path: Path) -> None:
    def train_func() -> None:
        for step in range(20_000):
            train.report({"step": step})

    run = plain_trainer(train_func, 2).start()
    steps = [report.metrics["step"] for report in run.reports()]
    assert steps == list(range(20_000))
    run.result()


def test_file_names_that_are_not_utf8_can_be_reported() -> None:
    name = os.fsdecode(b"caf\xe9.png")

    def train_func() -> None:
        train.report({"loss": 0.5, "worst": name, name: {"count": 1}})

    result = fit(train_func)
    assert result.metrics == {"loss": 0.5, "worst": name, name: {"count": 1}}, "the very name, which os.open() takes"
    frame = result.metrics_dataframe
    assert frame is not None
    assert frame.to_dict("records") == [{"loss": 0.5, "worst": r"caf\udce9.png", r"caf\udce9.png/count": 1}]


def test_a_giant_report_is_received_without_pauses(tmp_path: Path) -> None:
    """The loop does not pause inside a message: 16 MB would need about eighty pauses."""

    def train_func() -> tuple[float, float]:
        took = []
        for text in ("", "x" * 16_000_000):
            began = time.perf_counter()
            train.report({"text": text})
            train.collective.barrier()
            took.append(time.perf_counter() - began)
        return took[0], took[1]

    result = train.DataParallelTrainer(
        train_func,
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(name="run", storage_path=tmp_path),
    ).fit()
    small, large = result.return_value
    assert large - small < 80 * channel.REST_S / 2
