"""The command line: scripts for torchrun, and commands that read run directories."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway import train
from headway.cli import main
from headway.core.task import Task
from headway.frameworks.torch_config import TorchScriptConfig
from headway.storage.run.reader import runs
from headway.train.launch.fit import prepare
from headway.train.launch.request import TrainRequest
from headway.worker.torchrun_script import run_script
from support import fit, python, save, write_script

TORCHRUN_SCRIPT = """
    import os, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    class Net(torch.nn.Linear):
        pass

    def main():
        dist.init_process_group("gloo")
        model = DistributedDataParallel(Net(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        torch.save(model.module, f"{sys.argv[1]}/model-{dist.get_rank()}.pt")
        print("rank", dist.get_rank(), "of", dist.get_world_size(), "args", sys.argv[1:], __file__)
        dist.destroy_process_group()

    if __name__ == "__main__":
        main()
"""


def headway(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "headway", *args)


def test_a_script_for_torchrun_runs_unchanged(tmp_path: Path) -> None:
    script = write_script(tmp_path, TORCHRUN_SCRIPT)
    done = headway("run", "-n", "2", script, tmp_path, "--flag")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"[r{rank}] rank {rank} of 2 args ['{tmp_path}', '--flag'] {script}" in done.stdout
        assert (tmp_path / f"model-{rank}.pt").exists()
    [record] = runs(Path(os.environ["HEADWAY_RESULTS"])).readable
    assert record.path.name.startswith("script_")
    assert record.state == "FINISHED"


def test_a_script_that_destroys_its_group_before_its_model_does_not_hang(tmp_path: Path) -> None:
    script = write_script(tmp_path, TORCHRUN_SCRIPT)
    for _ in range(15):
        request = TrainRequest(
            kind="script",
            task=Task(functools.partial(run_script, str(script), [str(tmp_path)]), TorchScriptConfig()),
            scaling=train.ScalingConfig(num_workers=2),
        )
        assert prepare(request).run().state == "FINISHED"


def test_a_script_recovers_like_any_run(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, pathlib, signal, sys
        marker = pathlib.Path(sys.argv[1])
        if os.environ["RANK"] == "1" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        from headway import train
        train.report({"rank": train.get_context().get_world_rank()})
        """,
    )
    done = headway("run", "-n", "2", "--max-failures", "1", "--name", "again", script, tmp_path / "marker")
    assert done.returncode == 0, done.stderr
    assert re.search(r"attempt 1 ended .*: rank 1 was killed \(SIGKILL", done.stderr), done.stderr
    shown = headway("show", "again")
    assert "FINISHED" in shown.stdout


def test_a_script_that_fails_shows_its_own_traceback(tmp_path: Path) -> None:
    script = write_script(tmp_path, "def boom():\n    raise RuntimeError('in the script')\n\nboom()\n")
    done = headway("run", script)
    assert done.returncode == 1
    assert "raised RuntimeError: in the script" in done.stderr
    assert f'File "{script}", line 4, in <module>' in done.stderr
    assert "headway/cli" not in done.stderr, "no frame of ours"


def test_run_takes_resources_stalls_and_elasticity(tmp_path: Path) -> None:
    script = write_script(tmp_path, "import os; print('threads', os.environ['OMP_NUM_THREADS'], os.environ['TOLD'])")
    options = "-n 1:2 --cpus-per-worker 1 --max-preemptions 3 --stall-warn off --stall-timeout 60 --env TOLD=a=b"
    done = python("-m", "headway", "run", *options.split(), "--name", "run", script)
    assert "[r0] threads 1 a=b" in done.stdout, done.stderr
    [record] = runs(Path(os.environ["HEADWAY_RESULTS"])).readable
    assert record.opening.scaling_config["num_workers"] == [1, 2]
    assert record.opening.scaling_config["resources_per_worker"] == {"CPU": 1.0}
    limits = record.opening.failure_config
    assert (limits["max_preemption_failures"], limits["stall_warn_s"], limits["stall_timeout_s"]) == (3, None, 60.0)
    for wrong, sentence in [
        (("-n", "4:1"), "-n must be a positive number of processes, or MIN:MAX, got 4:1"),
        (("--stall-warn", "soon"), "--stall-warn must be a positive number of seconds, or off, got soon"),
        (("--env", "TOLD"), "--env must be NAME=VALUE, got TOLD"),
        (("--as-ray", "--max-failures", "1"), "--max-failures cannot be combined with --as-ray"),
    ]:
        assert main(["run", *wrong, str(script)]) == 1, sentence
    done = python("-m", "headway", "run", "--gpus-per-worker", "999", script)
    assert "the run needs 999 GPUs" in done.stderr


def test_workers_have_the_variables_of_torchrun(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os, pathlib, signal, sys
        names = ["TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "ROLE_NAME"]
        names += ["ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"]
        print(*(os.environ.get(name) for name in names), flush=True)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    done = python("-m", "headway", "run", "--max-failures", "2", "--name", "run", script)
    assert "[r0] 0 2 run default 0 1 0 1 False" in done.stdout, done.stderr
    assert "[r0] 1 2 run default 0 1 0 1 False" in done.stdout


def test_a_preempted_script_exits_with_code_75(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import time
        from headway import train
        for step in range(100_000):
            train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))
            if step == 2:
                print("ready", flush=True)
            time.sleep(0.02)
        """,
    )
    command = [sys.executable, "-u", "-m", "headway", "run", "--name", "run", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[r0] ready\n"
        process.terminate()
        _, told = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "run it again to resume from checkpoint_" in told
    assert "Traceback" not in told


def test_a_module_runs_too(tmp_path: Path) -> None:
    write_script(tmp_path, "import sys, os; print('module', sys.argv[1:], os.environ['RANK'])", "my_module.py")
    done = python("-m", "headway", "run", "-n", "1", "-m", "my_module", "x", cwd=tmp_path)
    assert "[r0] module ['x'] 0" in done.stdout, done.stderr


def test_bad_requests_get_one_line(tmp_path: Path) -> None:
    for args, sentence in [
        (("run", "nowhere.py"), "there is no script 'nowhere.py'"),
        (
            ("run", "-n", "0", str(write_script(tmp_path, "pass"))),
            "-n must be a positive number of processes, or MIN:MAX, got 0",
        ),
        (("show", "nothing"), "run 'nothing' was found neither as a path nor"),
    ]:
        done = headway(*args)
        assert done.returncode == 1
        assert done.stderr.startswith(f"headway: {sentence}")
        assert "Traceback" not in done.stderr


def test_ls_and_show_read_run_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train_func(config: dict[str, float]) -> None:
        train.report({"loss": config["lr"]}, save(tmp_path / "weights", a="123"))

    (tmp_path / "weights").mkdir()
    storage = tmp_path / "runs"
    fit(train_func, 2, config={"lr": 0.25}, storage_path=storage, name="good")
    with pytest.raises(train.TrainingFailedError):
        fit(lambda: 1 / 0, storage_path=storage, name="bad", max_failures=1)
    capsys.readouterr()

    assert main(["ls", str(storage)]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [["bad", "FAILED"], ["good", "FINISHED"]]

    assert main(["show", "good", "--storage-path", str(storage)]) == 0
    shown = capsys.readouterr().out
    assert "config       {'lr': 0.25}" in shown
    assert "newest       loss=0.25" in shown
    assert "checkpoint_000000" in shown

    assert main(["show", str(storage / "bad")]) == 0
    shown = capsys.readouterr().out
    cause = "rank 0 raised ZeroDivisionError: division by zero"
    assert [line.split()[0] for line in shown.splitlines() if line.rstrip().endswith(cause)] == ["1", "2"]
    (tmp_path / "empty").mkdir()
    assert main(["ls", str(tmp_path / "empty")]) == 0
    assert "no runs in" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["ls", "show", "logs"])
def test_characters_that_the_terminal_cannot_show_are_escaped(command: str, tmp_path: Path) -> None:
    fit(lambda: print("größer"), name="läuft", storage_path=tmp_path)
    where = tmp_path if command == "ls" else tmp_path / "läuft"
    done = python("-m", "headway", command, where, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert (r"gr\xf6\xdfer" if command == "logs" else r"l\xe4uft") in done.stdout


def test_ls_shows_interrupted_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(fit(lambda: None, storage_path=tmp_path, name="cut").path)
    events = (path / "events.jsonl").read_text().splitlines()
    (path / "events.jsonl").write_text("\n".join(events[:-2]) + "\n" + '{"event": "torn')
    main(["ls", str(tmp_path)])
    assert "INTERRUPTED" in capsys.readouterr().out


def test_the_doctor_finds_no_problem_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    found = [line[2:16].strip() for line in told.splitlines() if line.startswith("✓ ")]
    assert found[:5] == ["system", "torch", "devices", "memory", "shared memory"]
    assert found[5:] == ["limits", "loopback", "ptrace", "storage", "workers"]
    assert "Everything that Headway needs works here." in told


def test_the_doctor_lists_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--storage-path", str(tmp_path / "file/below")]) == 1
    assert "cannot be written" in capsys.readouterr().out


def test_the_quickstart_reaches_97_percent_on_two_workers(tmp_path: Path) -> None:
    done = headway("quickstart", "--storage-path", tmp_path)
    assert done.returncode == 0, done.stderr
    [record] = runs(tmp_path).readable
    assert record.description.openings[0].scaling_config["num_workers"] == 2
    metrics = record.newest_metrics()
    assert metrics is not None
    assert metrics["accuracy"] >= 0.97
    assert "of the held-out images are classified correctly" in done.stdout


def test_help_lists_every_command() -> None:
    _, _, text = headway("--help").stdout.partition("  COMMAND\n")
    listed = re.findall(r"^    (\w+)", text, re.MULTILINE)
    assert listed == ["quickstart", "run", "ls", "show", "logs", "stop", "rm", "ckpt", "why", "replay", "doctor"]
    assert headway("--version").stdout.startswith("headway 0.")


def test_importing_the_package_stays_light() -> None:
    code = "import sys, json; import headway.train; print(json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"
    loaded = set(json.loads(python("-c", code).stdout))
    assert not loaded & {"torch", "pyarrow", "pandas", "ray", "numpy", "rich", "psutil", "tensorflow"}
    assert sys.version_info >= (3, 11)
    code = "import sys; import headway.data; import headway.train.torch; print('pyarrow' in sys.modules)"
    assert python("-c", code).stdout == "False\n", "who uses no dataset does not wait for Arrow"


def test_a_script_that_starts_its_own_workers_is_refused_by_headway_run(tmp_path: Path) -> None:
    script = write_script(
        tmp_path, "from headway import train\ntrain.DataParallelTrainer(print).fit()\nprint('trained')\n"
    )
    done = headway("run", "-n", "2", "--name", "nested", script)
    assert done.returncode == 1
    assert "this script starts its own workers" in done.stderr
    assert "run it with python" in done.stderr
    assert "trained" not in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("rnu", "x.py"), "did you mean 'run'?"),
        (("run",), "the following arguments are required: SCRIPT\n"),
        (("run", "--nproc_per_node", "2", "x.py"), "headway run takes -n N instead of torchrun's --nproc-per-node"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(args: tuple[str, ...], words: str) -> None:
    done = headway(*args)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_directory_that_does_not_exist_is_not_listed_as_empty(tmp_path: Path) -> None:
    done = headway("ls", tmp_path / "nosuch")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no directory {tmp_path}/nosuch" in done.stderr


def test_a_run_without_output_says_so() -> None:
    done = headway("logs", fit(lambda: None).path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "have printed nothing" in done.stderr


def test_a_run_among_rays_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fit(lambda: None, name="rayrun", storage_path=tmp_path / "ray_results")
    done = headway("show", "rayrun")
    assert f"there is one in {tmp_path}/ray_results: pass --storage-path {tmp_path}/ray_results" in done.stderr


def test_an_attempt_whose_program_was_killed_is_shown_as_interrupted(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import os
        from headway import train
        run = train.RunConfig(name="run", storage_path="runs")
        train.DataParallelTrainer(lambda: os.kill(int(os.environ["DRIVER"]), 9), run_config=run).fit()
        """.replace("import os\n", "import os; os.environ['DRIVER'] = str(os.getpid())\n"),
    )
    assert python(script, cwd=tmp_path).returncode == -9
    assert "interrupted: its program was killed" in headway("show", tmp_path / "runs/run").stdout
