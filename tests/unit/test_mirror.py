"""``tests/unit`` mirrors ``src``: the tests of ``src/headway/x/y.py`` are in ``tests/unit/x/test_y.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headway"
MIN_LINES = 60  # modules up to this length need no test file of their own

# Modules that only make sense with processes, or as parts of a whole run, and the tests that cover them.
COVERED_BY = {
    "cli/ckpt.py": "tests/process/test_checkpoints.py",
    "cli/doctor.py": "tests/process/test_cli.py",
    "cli/logs.py": "tests/process/test_cli_logs_stop_rm.py",
    "cli/quickstart.py": "tests/process/test_cli.py",
    "cli/replay.py": "tests/process/test_why_replay.py",
    "cli/run_script.py": "tests/process/test_cli.py",
    "cli/runs.py": "tests/process/test_cli.py",
    "cli/stop_remove.py": "tests/process/test_cli_logs_stop_rm.py",
    "compat/air/callbacks.py": "tests/process/test_air.py",
    "compat/air/session.py": "tests/process/test_air.py",
    "compat/air/trials.py": "tests/process/test_air.py",
    "compat/as_ray/import_finder.py": "tests/process/test_as_ray.py",
    "compat/as_ray/name_map.py": "tests/process/test_as_ray.py",
    "compat/as_ray/ray_core.py": "tests/process/test_as_ray.py",
    "compat/retired_options.py": "tests/process/test_as_ray.py",
    "compat/sgd/callbacks.py": "tests/process/test_sgd.py",
    "compat/sgd/iterator.py": "tests/process/test_sgd.py",
    "compat/sgd/session.py": "tests/process/test_sgd.py",
    "compat/sgd/trainer.py": "tests/process/test_sgd.py",
    "compat/worker_group.py": "tests/process/test_sgd.py",
    "control/controller.py": "tests/process/test_run.py",
    "control/machine/events.py": "tests/exhaustive/test_machine.py",
    "control/machine/save_consistency.py": "tests/exhaustive/test_machine.py",
    "control/machine/shutdown.py": "tests/exhaustive/test_machine.py",
    "control/machine/state.py": "tests/exhaustive/test_machine.py",
    "control/narration/checkpoint_log.py": "tests/process/test_checkpoints.py",
    "control/narration/data_log.py": "tests/process/test_datasets.py",
    "control/narration/event_log.py": "tests/process/test_console.py",
    "control/workers/slow_exits.py": "tests/process/test_worker_exits.py",
    "control/workers/start_message.py": "tests/process/test_run.py",
    "core/messages/inbox_events.py": "tests/contract/test_engines.py",
    "core/messages/to_controller.py": "tests/unit/core/test_wire.py",
    "core/messages/to_worker.py": "tests/unit/core/test_wire.py",
    "core/messages/worker_setup.py": "tests/unit/core/test_wire.py",
    "core/process/identity.py": "tests/process/test_process_titles.py",
    "core/process/title.py": "tests/process/test_process_titles.py",
    "engine/base.py": "tests/contract/test_engines.py",
    "engine/channel.py": "tests/contract/test_engines.py",
    "engine/fork_server_client.py": "tests/unit/engine/test_fork_server.py",
    "engine/inline.py": "tests/contract/test_engines.py",
    "engine/one_shot_process.py": "tests/process/test_validation.py",
    "engine/resources/gpu_locks.py": "tests/process/test_gpus.py",
    "observe/console.py": "tests/process/test_console.py",
    "storage/checkpoint/backend.py": "tests/contract/test_checkpoint_backends.py",
    "storage/checkpoint/file_sources.py": "tests/process/test_checkpoints.py",
    "storage/object_store/base.py": "tests/contract/test_object_stores.py",
    "storage/object_store/checkpoint_backend.py": "tests/contract/test_checkpoint_backends.py",
    "storage/object_store/commit.py": "tests/contract/test_checkpoint_backends.py",
    "storage/object_store/download_cache.py": "tests/process/test_object_store.py",
    "storage/object_store/fsspec_client.py": "tests/contract/test_object_stores.py",
    "storage/object_store/lease.py": "tests/process/test_object_store.py",
    "storage/object_store/log_mirror.py": "tests/process/test_object_store.py",
    "storage/object_store/obstore_client.py": "tests/contract/test_object_stores.py",
    "storage/object_store/upload.py": "tests/process/test_object_store.py",
    "storage/object_store/verify.py": "tests/process/test_object_store.py",
    "storage/run/location.py": "tests/process/test_cli_logs_stop_rm.py",
    "testing/contracts/checkpoint_backend.py": "tests/contract/test_checkpoint_backends.py",
    "testing/contracts/data_source.py": "tests/contract/test_data_sources.py",
    "testing/contracts/engine.py": "tests/contract/test_engines.py",
    "testing/contracts/framework.py": "tests/contract/test_frameworks.py",
    "testing/contracts/object_store.py": "tests/contract/test_object_stores.py",
    "testing/contracts/tracker.py": "tests/contract/test_trackers.py",
    "testing/fake.py": "tests/contract/test_engines.py",
    "train/context.py": "tests/process/test_run.py",
    "train/datasets.py": "tests/process/test_datasets.py",
    "train/early_stopping.py": "tests/process/test_early_stopping.py",
    "train/functions.py": "tests/process/test_reports.py",
    "train/launch/control_socket.py": "tests/process/test_cli_logs_stop_rm.py",
    "train/launch/driver_signals.py": "tests/process/test_preemption.py",
    "train/launch/fit.py": "tests/process/test_run.py",
    "train/launch/outcome.py": "tests/process/test_run.py",
    "train/launch/packing.py": "tests/process/test_run.py",
    "train/result.py": "tests/process/test_checkpoints.py",
    "train/run_handle.py": "tests/process/test_run.py",
    "train/torch/amp.py": "tests/process/test_torch.py",
    "train/torch/autosave.py": "tests/process/test_tracking.py",
    "train/torch/ddp_buckets.py": "tests/process/test_gradient_buckets.py",
    "train/torch/fsdp_state.py": "tests/process/test_tracking.py",
    "train/torch/loader.py": "tests/process/test_torch.py",
    "train/torch/model.py": "tests/process/test_torch.py",
    "train/torch/random_states.py": "tests/process/test_tracking.py",
    "train/torch/tracked_data.py": "tests/process/test_tracking.py",
    "train/torch/tracked_files.py": "tests/process/test_tracking.py",
    "train/torch/tracked_objects.py": "tests/process/test_tracking.py",
    "train/torch/unsaved_state.py": "tests/process/test_unsaved_state.py",
    "worker/checkpoint/local.py": "tests/process/test_upload_modes.py",
    "worker/checkpoint/object_store.py": "tests/process/test_object_store.py",
    "worker/heartbeat.py": "tests/process/test_hangs.py",
    "worker/main.py": "tests/process/test_run.py",
    "worker/process/vital_threads.py": "tests/process/test_worker_threads.py",
    "worker/session.py": "tests/process/test_reports.py",
    "worker/validation_main.py": "tests/process/test_validation.py",
}

# Modules whose test file is yet to be written. Only remove entries.
MISSING: set[str] = {
    "frameworks/torch.py",
    "frameworks/torch_config.py",
}

# Test files of several modules together.
WITHOUT_A_MODULE: set[str] = set()


def long_modules() -> list[str]:
    files = (path for path in SOURCE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
    return sorted(
        path.relative_to(SOURCE).as_posix() for path in files if len(path.read_text().splitlines()) > MIN_LINES
    )


def path_of_tests(module: str) -> Path:
    path = Path(module)
    return ROOT / "tests" / "unit" / path.parent / f"test_{path.name}"


@pytest.mark.parametrize("module", long_modules())
def test_a_long_module_has_a_test_file_of_its_own_or_a_reason(module: str) -> None:
    excused = module in COVERED_BY or module in MISSING
    assert path_of_tests(module).exists() != excused, (
        f"{module} needs {path_of_tests(module).relative_to(ROOT)}"
        if not excused
        else f"{module}: remove the exception"
    )


@pytest.mark.parametrize("module", sorted({*COVERED_BY, *MISSING}))
def test_an_exception_is_a_long_module(module: str) -> None:
    assert module in long_modules(), f"{module} was removed, renamed or shortened: remove the exception"


@pytest.mark.parametrize("path", sorted(set(COVERED_BY.values())))
def test_the_tests_that_cover_an_exception_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_each_unit_test_file_has_a_module_or_a_package() -> None:
    """Packages may have a test file for what their modules do together."""
    unit = ROOT / "tests" / "unit"
    lost = []
    for path in unit.rglob("test_*.py"):
        place = SOURCE / path.relative_to(unit).parent
        name = path.stem.removeprefix("test_")
        if not (place / f"{name}.py").exists() and not (place / name).is_dir() and path.name != "test_mirror.py":
            lost.append(path.relative_to(ROOT).as_posix())
    assert sorted(lost) == sorted(WITHOUT_A_MODULE)
