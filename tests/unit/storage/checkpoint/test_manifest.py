"""Manifests written by other versions of Headway."""

from __future__ import annotations

import json
from pathlib import Path

from headway.storage.checkpoint.commit import CommitRequest, commit
from headway.storage.checkpoint.recovery import committed, survey
from headway.storage.checkpoint.staging import Note, Slot, stage
from headway.storage.fs_ops import write_json
from headway.storage.run import layout


def staged(run: Path, rank: int, seq: int = 0, **files: str) -> None:
    source = run / f"source-{rank}-{seq}"
    source.mkdir(parents=True)
    for name, text in files.items():
        (source / name).write_text(text)
    stage(source, Slot(run, 1, seq, rank), Note(2, {}))


def commitment(*ranks: int, seq: int = 0, number: int = 0) -> CommitRequest:
    return CommitRequest(number=number, seq=seq, attempt=1, world_size=2, ranks=ranks, metrics={"loss": 1})


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    staged(tmp_path, 0, a="0")
    path = commit(tmp_path, commitment(0)).path / layout.MANIFEST
    write_json(path, {**json.loads(path.read_text()), "format": 99})
    assert committed(tmp_path) == []
    assert "has format 99; this version reads 1: upgrade Headway" in survey(tmp_path).damaged[path.parent]
    path.write_text("{")
    assert "is damaged" in survey(tmp_path).damaged[path.parent]
