"""The contract of a checkpoint backend, as tests: which files become a checkpoint, and when.

    class TestMyBackend(CheckpointBackendContract):
        def make(self, directory):
            return MyBackend(...)

        def stage(self, backend, attempt, seq, rank, files):
            ...

``make`` returns a writable backend of a run without checkpoints; ``stage`` stages files as a worker does.
"""

from __future__ import annotations

import contextlib
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import pytest

from headway.core.checkpoints import SavedCheckpoint, ValidationRecord
from headway.core.errors import StorageError
from headway.core.validation import ReportedCheckpointStatus
from headway.storage.checkpoint.backend import CheckpointBackend
from headway.storage.checkpoint.commit import CommitRequest

VALIDATED = ValidationRecord(status=ReportedCheckpointStatus.VALIDATED, metrics={"accuracy": 0.5})


class CheckpointBackendContract(ABC):
    """The tests. Subclass it in a test module, under a name that starts with ``Test``."""

    @abstractmethod
    def make(self, directory: Path) -> CheckpointBackend:
        """Return the backend of a new run, with the run locked. It may use this directory."""

    @abstractmethod
    def stage(
        self, backend: CheckpointBackend, attempt: int, seq: int, rank: int, files: Mapping[str, bytes], name: str
    ) -> None:
        """Stage the files of a rank, with its note, as a worker would.

        Args:
            backend: The backend that ``make`` returned.
            attempt: Number of the attempt.
            seq: Number of the report.
            rank: Rank that saves; there are two ranks.
            files: Contents by relative path.
            name: Name of the checkpoint that the files will belong to.
        """

    @abstractmethod
    def interrupted(self, backend: CheckpointBackend) -> contextlib.AbstractContextManager[None]:
        """Return a context in which storage rejects the last step of a commit, as if the process died before it."""

    @abstractmethod
    def damage(self, backend: CheckpointBackend, saved: SavedCheckpoint, file: str, data: bytes) -> None:
        """Overwrite a file of a checkpoint, to simulate faulty hardware."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> CheckpointBackend:
        return self.make(tmp_path / "run")

    def commit(
        self, backend: CheckpointBackend, seq: int = 0, files: Mapping[str, bytes] | None = None
    ) -> SavedCheckpoint:
        """Stage files of rank 0 and commit them."""
        request = self.request(seq)
        self.stage(backend, 1, seq, 0, files or {"weights": b"%d" % seq}, request.folder)
        return backend.commit(request)

    def request(self, seq: int, ranks: tuple[int, ...] = (0,)) -> CommitRequest:
        """A request to commit the report of a run with two workers."""
        return CommitRequest(
            number=seq, seq=seq, attempt=1, world_size=2, ranks=ranks, metrics={"loss": 0.5, "step": seq}
        )

    def test_a_new_run_has_no_checkpoint(self, backend: CheckpointBackend) -> None:
        found = backend.survey()
        assert (list(found.kept), dict(found.damaged), backend.folders()) == ([], {}, [])

    def test_staged_files_are_no_checkpoint(self, backend: CheckpointBackend) -> None:
        self.stage(backend, 1, 0, 0, {"weights": b"0"}, self.request(0).folder)
        assert list(backend.survey().kept) == []

    def test_a_commit_makes_a_checkpoint_of_staged_files(self, backend: CheckpointBackend, tmp_path: Path) -> None:
        saved = self.commit(backend, 3, {"weights": b"w", "sub/bias": b"b"})
        [kept] = backend.survey().kept
        assert (kept.path, kept.seq, kept.metrics) == (saved.path, 3, {"loss": 0.5, "step": 3})
        assert {name: stored.size for name, stored in kept.manifest.files.items()} == {"sub/bias": 1, "weights": 1}
        target = Path(backend.checkpoint(saved.path).to_directory(tmp_path / "copy"))
        assert (target / "weights").read_bytes() == b"w"
        assert (target / "sub/bias").read_bytes() == b"b"

    def test_every_file_of_a_manifest_has_a_checksum(self, backend: CheckpointBackend) -> None:
        manifest = self.commit(backend, 0, {"weights": b"w"}).manifest
        assert manifest.files
        assert all(len(stored.sha256) == 64 for stored in manifest.files.values())

    def test_ranks_give_files_to_one_checkpoint(self, backend: CheckpointBackend) -> None:
        request = self.request(0, ranks=(0, 1))
        for rank in (0, 1):
            self.stage(backend, 1, 0, rank, {f"rank-{rank}": b"x"}, request.folder)
        saved = backend.commit(request)
        assert sorted(saved.manifest.files) == ["rank-0", "rank-1"]
        assert saved.manifest.ranks == [0, 1]

    def test_late_files_extend_a_checkpoint(self, backend: CheckpointBackend) -> None:
        first = self.commit(backend, 0, {"rank-0": b"x"})
        self.stage(backend, 1, 0, 1, {"rank-1": b"y"}, first.manifest.name)
        backend.extend(first.path, 1, 0, 1)
        [kept] = backend.survey().kept
        assert (sorted(kept.manifest.files), kept.manifest.ranks) == (["rank-0", "rank-1"], [0, 1])
        assert backend.verify(kept.manifest.name)[1] == []

    def test_a_commit_without_the_files_of_a_rank_fails_and_leaves_nothing(self, backend: CheckpointBackend) -> None:
        request = self.request(0, ranks=(0, 1))
        self.stage(backend, 1, 0, 0, {"rank-0": b"x"}, request.folder)
        with pytest.raises((StorageError, OSError)):
            backend.commit(request)
        assert list(backend.survey().kept) == []

    def test_what_is_cut_off_before_the_end_of_a_commit_is_no_checkpoint(self, backend: CheckpointBackend) -> None:
        self.stage(backend, 1, 0, 0, {"weights": b"0"}, self.request(0).folder)
        with self.interrupted(backend), pytest.raises((StorageError, OSError)):
            backend.commit(self.request(0))
        assert list(backend.survey().kept) == [], "a checkpoint is visible before it is complete"
        assert not backend.survey().damaged

    def test_checkpoints_come_in_the_order_of_their_reports(self, backend: CheckpointBackend) -> None:
        for seq in (1, 4, 12):
            self.commit(backend, seq)
        assert [saved.seq for saved in backend.survey().kept] == [1, 4, 12]
        assert backend.next_number() > 12

    def test_a_discarded_checkpoint_is_gone(self, backend: CheckpointBackend) -> None:
        first, second = self.commit(backend, 1), self.commit(backend, 2)
        backend.discard(first.path)
        assert [saved.path for saved in backend.survey().kept] == [second.path]
        assert backend.folders() == [second.manifest.name]

    def test_changed_contents_are_found(self, backend: CheckpointBackend) -> None:
        saved = self.commit(backend, 0, {"weights": b"0123"})
        manifest, wrong = backend.verify(saved.manifest.name)
        assert (manifest.name, wrong) == (saved.manifest.name, [])
        self.damage(backend, saved, "weights", b"0124")
        assert "weights" in "; ".join(backend.verify(saved.manifest.name)[1])

    def test_a_truncated_file_makes_a_checkpoint_damaged(self, backend: CheckpointBackend) -> None:
        saved = self.commit(backend, 0, {"weights": b"0123"})
        self.damage(backend, saved, "weights", b"01")
        found = backend.survey()
        assert list(found.kept) == []
        assert len(found.damaged) == 1

    def test_a_validation_is_noted_beside_its_checkpoint(self, backend: CheckpointBackend) -> None:
        saved = self.commit(backend)
        backend.note_validation(saved.path, VALIDATED)
        [kept] = backend.survey().kept
        assert kept.validation == VALIDATED
        assert kept.metrics["accuracy"] == 0.5

    def test_the_validation_of_a_discarded_checkpoint_is_dropped(self, backend: CheckpointBackend) -> None:
        saved = self.commit(backend)
        backend.discard(saved.path)
        backend.note_validation(saved.path, VALIDATED)
        assert list(backend.survey().kept) == []
        assert not backend.survey().damaged

    def test_files_that_are_cleared_do_not_come_back(self, backend: CheckpointBackend) -> None:
        name = self.request(0).folder
        self.stage(backend, 1, 0, 0, {"weights": b"0"}, name)
        backend.clear(1, 0, 0, name)
        with pytest.raises((StorageError, OSError)):
            backend.commit(self.request(0))
        assert list(backend.survey().kept) == []

    def test_a_sweep_takes_what_an_attempt_has_left_and_no_checkpoint(self, backend: CheckpointBackend) -> None:
        kept = self.commit(backend, 0)
        name = self.request(1).folder
        self.stage(backend, 1, 1, 0, {"weights": b"1"}, name)
        backend.sweep(1, [name])
        with pytest.raises((StorageError, OSError)):
            backend.commit(self.request(1))
        assert [saved.path for saved in backend.survey().kept] == [kept.path]

    def test_recovery_keeps_every_checkpoint(self, backend: CheckpointBackend) -> None:
        for seq in (0, 1):
            self.commit(backend, seq)
        recovered = backend.recover(crashed=True)
        assert [saved.seq for saved in recovered.kept] == [0, 1]
        assert [saved.seq for saved in backend.survey().kept] == [0, 1]

    def test_recovery_after_a_crash_offers_no_damaged_checkpoint(self, backend: CheckpointBackend) -> None:
        self.commit(backend, 0)
        self.damage(backend, self.commit(backend, 1, {"weights": b"0123"}), "weights", b"0124")
        recovered = backend.recover(crashed=True)
        assert [saved.seq for saved in recovered.kept] == [0]

    def test_readers_may_be_in_another_process(self, backend: CheckpointBackend) -> None:
        saved = self.commit(backend)
        reader: CheckpointBackend = pickle.loads(pickle.dumps(backend.read_only()))
        assert [kept.path for kept in reader.survey().kept] == [saved.path]
        assert reader.url == backend.url
