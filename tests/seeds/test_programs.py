"""Every code sample of the seeds, as a program: it runs with ``headway run --as-ray``, and prints what it should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import mlflow.tracking
import pytest
import torch

from headway.train import Result
from support import python

PROGRAMS = Path(__file__).parent / "programs"
DATE = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d"
NUMBER = r"-?[\d.e-]+"

# Those that need what is not there yet, and what that is.
WAITING = {
    "seed003_tune": "tune.run, tune.grid_search, Trainer.to_tune_trainable",
    "seed003_tune_dataset": "tune.run, Trainer.to_tune_trainable",
    "seed004_tune": "Tuner, TuneConfig, tune.grid_search",
    "seed004_tune_trainable": "Tuner, Trainer.to_tune_trainable",
    "seed004_horovod": "HorovodTrainer",
    "seed004_tensorflow_porting": "TensorflowTrainer",
    "seed004_tensorflow_saving": "TensorflowTrainer",
    "seed004_tensorflow_loading": "TensorflowTrainer",
}


def as_ray(name: str, home: Path, *args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose ``~`` is ``home``."""
    around = {key: value for key, value in os.environ.items() if key != "HEADWAY_RESULTS"}
    command = [sys.executable, "-m", "headway", "run", "--as-ray", str(PROGRAMS / f"{name}.py"), *map(str, args)]
    return subprocess.run(
        command, env={**around, "HOME": str(home), **env}, capture_output=True, text=True, timeout=120
    )


def printed(name: str, home: Path, *args: str | Path, **env: str) -> str:
    done = as_ray(name, home, *args, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rounds(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("[{")]


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_says_what_it_waits_for(name: str, tmp_path: Path) -> None:
    done = as_ray(name, tmp_path)
    assert done.returncode != 0
    refusal = done.stderr.splitlines()[-1]
    assert re.search(r"Headway has no (ray\.|to_tune_trainable)|No module named 'horovod'", refusal), refusal


def test_every_program_is_run_or_waits() -> None:
    text = Path(__file__).read_text()
    for path in PROGRAMS.glob("seed*.py"):
        assert f'"{path.stem}"' in text, f"{path.name} is not run"


# --- seed 000: Ray AIR, PyTorch ---


def test_seed_000_goes_from_one_worker_to_several(tmp_path: Path) -> None:
    output = printed("seed000_quick_start", tmp_path)
    assert re.search(rf"^epoch: 2, loss: {NUMBER}$", output, re.M), output
    assert re.search(rf"^distributed: 2 {NUMBER}$", output, re.M), output


def test_seed_000_ports_a_function(tmp_path: Path) -> None:
    assert printed("seed000_porting", tmp_path).split() == ["8", "8", "8", "8"]


def test_seed_000_saves_and_loads_dicts(tmp_path: Path) -> None:
    saved = printed("seed000_saving", tmp_path)
    weights = r"OrderedDict\(.*'module.weight', tensor\(.*\)"
    extra = r"'_timestamp': \d+, '_preprocessor': None, '_current_checkpoint_id': "
    assert re.search(rf"^\{{'epoch': 4, 'model_weights': {weights}.*, {extra}4\}}$", saved, re.M | re.S), saved
    loaded = printed("seed000_loading", tmp_path)
    assert re.search(rf"^\{{'epoch': 3, 'model_weights': OrderedDict\(.*, {extra}2\}}$", loaded, re.M | re.S), loaded


def test_seed_000_aggregates_metrics_of_all_workers(tmp_path: Path) -> None:
    output = printed("seed000_torchmetrics", tmp_path)
    r2, train_loss, valid_loss = map(float, output.split())
    assert r2 <= 1
    assert train_loss > 0
    assert valid_loss > 0


def test_seeds_000_and_004_mix_precisions_and_repeat_themselves(tmp_path: Path) -> None:
    assert printed("seed004_amp", tmp_path) == "torch.bfloat16 True\n"


# --- seed 001: Ray Train 2.7 ---


def test_seed_001_begins_without_a_trainer(tmp_path: Path) -> None:
    assert re.fullmatch(rf"loss {NUMBER}\n", printed("seed001_plain", tmp_path, TMPDIR=str(tmp_path)))


def test_seed_001_reports_the_temporary_folder_itself_from_every_rank(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    output = printed("seed001_quick_start", tmp_path, TMPDIR=str(temporary))
    assert re.search(r"^metrics \{'loss': [\d.]+\}$", output, re.M), output
    assert "error None" in output
    path = re.search(r"^path (.*)$", output, re.M)
    assert path
    assert re.fullmatch(rf"{tmp_path}/ray_results/TorchTrainer_{DATE}", path[1])
    result = Result.from_path(path[1])
    assert len(result.best_checkpoints) == 10
    assert result.checkpoint is not None
    state = torch.load(Path(result.checkpoint.path, "model.checkpoint"))
    assert all(key.startswith("module.") for key in state)
    assert (temporary / "model.checkpoint").exists(), "the reported folder is left as it was"


def test_seed_001_in_pieces(tmp_path: Path) -> None:
    assert printed("seed001_pieces", tmp_path).split() == ["8", "8", "1", "True", "None"]


# --- seed 002: Train V2 with Ray Data ---


def test_seed_002_step_1_needs_no_ray(tmp_path: Path) -> None:
    output = printed("seed002_step1", tmp_path)
    assert re.fullmatch(r"\{'epoch_num': 0, 'loss': [\d.]+, 'accuracy': [\d.]+\}\n", output), output


def test_seed_002_step_2_validates_and_saves_from_every_rank(tmp_path: Path) -> None:
    done = as_ray("seed002_step2", tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\[r0\] \{'epoch_num': 0, 'loss': [\d.]+, 'accuracy': [\d.]+\}$", done.stdout, re.M), done.stdout
    assert "Training result: Result(" in done.stdout
    assert "Train Epoch 0: 100%" in done.stderr
    [path] = tmp_path.glob("train_run-*")
    result = Result.from_path(path)
    assert result.metrics is not None
    assert set(result.metrics) == {"loss", "accuracy"}
    assert result.checkpoint is not None
    state = torch.load(Path(result.checkpoint.path, "model.pt"))
    assert not any(key.startswith("module.") for key in state)


def test_seed_002_step_3_reads_maps_and_deals_out_parquet_files(tmp_path: Path) -> None:
    done = as_ray("seed002_step3", tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "image: " in done.stdout, "the schema was shown"
    assert re.search(r"^\[r0\] \{'epoch_num': 1, 'loss': [\d.]+, 'accuracy': [\d.]+\}$", done.stdout, re.M), done.stdout
    assert "Train Epoch 1: 100%" in done.stderr, "tqdm knows how many batches there are"
    [path] = tmp_path.glob("train_data_run-*")
    result = Result.from_path(path)
    assert result.metrics is not None
    assert result.metrics["rows"] == 50, "half of the 100 rows to validate with"


@pytest.mark.parametrize(
    ("name", "expected"), [("seed002_step3", "Training result: Result("), ("seed004_ingest", "{'train_rows': 40, ")]
)
def test_programs_with_data_run_with_our_name_for_theirs_too(name: str, expected: str, tmp_path: Path) -> None:
    program = (PROGRAMS / f"{name}.py").read_text()
    program = program.replace("ray.air", "headway.compat.air").replace("import ray\n", "import headway.data\n")
    script = tmp_path / "program.py"
    script.write_text(re.sub(r"\bray\b", "headway", program))
    done = python(script, tmp_path, env={**os.environ, "PYTHONPATH": str(PROGRAMS)})
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


# --- seed 003: RaySGD v2 ---


def test_seed_003_runs_plain_functions_and_ddp_of_the_users_own(tmp_path: Path) -> None:
    output = printed("seed003_quick_start", tmp_path)
    assert re.search(rf"^\[tensor\(\[{NUMBER}\].*\), tensor\(\[{NUMBER}\].*\)\]$", output, re.M), output
    assert "2 [10, 10]" in output


def test_seed_003_runs_twice_with_two_configs(tmp_path: Path) -> None:
    first, second, logdir, run_dir = printed("seed003_config", tmp_path).splitlines()
    assert first == "[[0, 1], [0, 1]]"
    assert second == "[[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]"
    assert re.fullmatch(rf"{tmp_path}/ray_results/sgd_{DATE}", logdir)
    assert run_dir == f"{logdir}/run_002"


def test_seed_003_reports_metrics_of_all_workers(tmp_path: Path) -> None:
    [line] = rounds(printed("seed003_torchmetrics", tmp_path))
    assert len(re.findall(rf"'accuracy': {NUMBER}, '_timestamp': \d+, '_time_this_iter_s'", line)) == 2


def test_seed_003_calls_back(tmp_path: Path) -> None:
    output = printed("seed003_callbacks", tmp_path)
    one = rf"\{{'epoch': {{}}, '_timestamp': \d+, '_time_this_iter_s': {NUMBER}, '_training_iteration': {{}}\}}"
    lines = rounds(output)
    assert len(lines) == 3
    for epoch, line in enumerate(lines):
        each = one.replace("{}", "{0}").replace("'epoch': {0}", f"'epoch': {epoch}").replace("{0}", str(epoch + 1))
        assert re.fullmatch(rf"\[{each}, {each}\]", line), line
    assert "'events'" in output
    assert "'results'" in output


def test_seed_003_says_more_when_it_is_asked_to(tmp_path: Path) -> None:
    output = printed("seed003_callbacks", tmp_path, SGD_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS="1")
    line = rounds(output)[0]
    for key in ("_date", "_hostname", "_node_ip", "_pid", "_time_total_s"):
        assert line.count(f"'{key}': ") == 2


def test_seed_003_saves(tmp_path: Path) -> None:
    latest, folder, path, in_memory = printed("seed003_saving", tmp_path).splitlines()
    assert latest == "{'epoch': 4, 'model': 10}"
    assert re.fullmatch(rf"{tmp_path}/ray_results/sgd_{DATE}/run_001/checkpoints", folder)
    assert path == f"{folder}/checkpoint_000005"
    assert in_memory == "{'epoch': 1, 'model': 1} None"


def test_seed_003_loads(tmp_path: Path) -> None:
    assert printed("seed003_loading", tmp_path) == "{'epoch': 4, 'model': 10}\n"


def test_seed_003_trains_on_a_dataset(tmp_path: Path) -> None:
    output = printed("seed003_dataset", tmp_path, tmp_path)
    assert output.count("(8, 1)") == 4
    assert "[Linear(in_features=1, out_features=1, bias=True), Linear(" in output


# --- seed 004: Ray AIR ---


def test_seed_004_ports_a_function(tmp_path: Path) -> None:
    assert printed("seed004_porting", tmp_path).split() == ["8", "8", "8", "8", "8"]


def test_seed_004_passes_a_config(tmp_path: Path) -> None:
    assert printed("seed004_config", tmp_path) == "1\n"


def test_seed_004_shows_results(tmp_path: Path) -> None:
    output = printed("seed004_results", tmp_path)
    keys = """_time_this_iter_s _timestamp _training_iteration config date done episodes_total epoch experiment_id
    experiment_tag hostname iterations_since_restore node_ip pid time_since_restore time_this_iter_s time_total_s
    timestamp timesteps_since_restore timesteps_total training_iteration trial_id warmup_time"""
    for key in keys.split():
        assert f"'{key}': " in output
    assert "'done': True" in output
    trial = rf"{tmp_path}/ray_results/TorchTrainer_{DATE}/TorchTrainer_[0-9a-f]{{5}}_00000_0_{DATE}"
    assert re.search(rf"^Checkpoint\('{trial}/checkpoints/checkpoint_000001'\)$", output, re.M), output
    assert re.search(rf"^{trial}$", output, re.M)


def test_seed_004_splits_a_csv_file_and_deals_it_out(tmp_path: Path) -> None:
    assert "{'train_rows': 40, 'validation_rows': 10}" in printed("seed004_ingest", tmp_path, tmp_path)


def test_seed_004_saves(tmp_path: Path) -> None:
    output = printed("seed004_saving", tmp_path)
    assert re.search(r"^\{'epoch': 4, 'model_weights': OrderedDict\(", output, re.M)
    assert "('weight', tensor(" in output, "without the prefix"
    assert "'_preprocessor': None, '_current_checkpoint_id': 4}" in output
    assert re.search(r"^\('local_path', '.*/checkpoint_000004'\)$", output, re.M)


def test_seed_004_loads(tmp_path: Path) -> None:
    output = printed("seed004_loading", tmp_path)
    assert re.search(r"^\{'epoch': 3, .*'_current_checkpoint_id': 2\}$", output, re.M | re.S), output


def test_seed_004_writes_no_checkpoint_to_disk(tmp_path: Path) -> None:
    assert printed("seed004_no_disk", tmp_path) == "[] {'epoch': 2}\n"


def test_seed_004_keeps_the_best(tmp_path: Path) -> None:
    first, second = printed("seed004_best", tmp_path).splitlines()
    assert first.startswith("('local_path', ")
    assert first.endswith("/checkpoint_000000')")
    assert second.endswith("/checkpoint_000002')")


def test_seed_004_logs_to_mlflow_and_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracking = f"file://{tmp_path}/mlruns"
    output = printed("seed004_mlflow", tmp_path, tracking)
    folder = re.search(r"^Run directory: (.*)$", output, re.M)
    assert folder
    [events] = Path(folder[1]).glob("*/events.out.tfevents.*")
    assert b"ray/tune/epoch" in events.read_bytes()
    client = mlflow.tracking.MlflowClient(tracking)
    experiment = client.get_experiment_by_name("train_experiment")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert [point.value for point in client.get_metric_history(run.info.run_id, "epoch")] == [0, 1, 2]


def test_seed_004_lags_behind_in_callbacks(tmp_path: Path) -> None:
    first, second, third = printed("seed004_callback", tmp_path).splitlines()
    started = "trial_id experiment_id date timestamp pid hostname node_ip config"
    assert re.findall(r"'(\w+)': ", first) == started.split()
    assert "'epoch': 0" in second
    assert "'training_iteration': 1" in second
    assert "'epoch': 1" in third


def test_seed_004_computes_metrics(tmp_path: Path) -> None:
    assert 0 <= float(printed("seed004_torchmetrics", tmp_path)) <= 1


def test_seed_004_profiles(tmp_path: Path) -> None:
    run_dir, count = printed("seed004_profiling", tmp_path).splitlines()
    assert re.fullmatch(rf"{tmp_path}/ray_results/train_{DATE}/run_001", run_dir)
    assert int(count) == 4, "two of each worker"
