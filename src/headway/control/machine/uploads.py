"""Uploads: checkpoints whose ranks upload files directly to the final location, and which rank uploads which. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from headway.core.checkpoints import checkpoint_name
from headway.core.messages import UploadGrant, UploadRequest


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """The destination of one report's files. ``owners``: the rank that uploads each file."""

    seq: int
    number: int
    name: str
    owners: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Uploads:
    """The uploads of one attempt."""

    targets: tuple[UploadTarget, ...] = ()

    def grant(
        self, rank: int, request: UploadRequest, next_number: int, taken: Collection[str]
    ) -> tuple[Uploads, UploadGrant]:
        """Decide where the files of this rank go, and which of them it uploads; no file is written twice.

        Args:
            rank: The rank that sent the request.
            request: The request.
            next_number: Number of the checkpoint, if the rank is the first of its report.
            taken: Names of existing checkpoints.
        """
        target = self._target(request.seq)
        if target is None:
            used = {*taken, *(each.name for each in self.targets)}
            while request.name is None and checkpoint_name(next_number) in used:
                next_number += 1
            target = UploadTarget(request.seq, next_number, request.name or checkpoint_name(next_number))
            if target.name in used:
                text = f"checkpoint {target.name} already exists: give each checkpoint its own name"
                return self, refusal(request, text)
        if request.name not in (None, target.name):
            text = f"the ranks gave this checkpoint different names: {target.name}, {request.name}"
            return self, refusal(request, text)
        owners = {**dict.fromkeys(request.files, rank), **target.owners}
        others = (each for each in self.targets if each.seq != request.seq)
        mine = tuple(file for file in request.files if owners[file] == rank)
        uploads = Uploads((*others, replace(target, owners=owners)))
        return uploads, UploadGrant(index=request.index, folder=target.name, files=mine)

    def number_of(self, seq: int) -> int | None:
        """Return the number of this report's checkpoint; None if no rank has asked to upload it."""
        target = self._target(seq)
        return target.number if target else None

    def name_of(self, seq: int) -> str | None:
        """Return the name of this report's checkpoint; None if no rank has asked to upload it."""
        target = self._target(seq)
        return target.name if target else None

    def names_except(self, reports: Collection[int]) -> frozenset[str]:
        return frozenset(each.name for each in self.targets if each.seq not in reports)

    def _target(self, seq: int) -> UploadTarget | None:
        return next((each for each in self.targets if each.seq == seq), None)


def refusal(request: UploadRequest, why: str) -> UploadGrant:
    """Return the answer that refuses an upload."""
    return UploadGrant(index=request.index, folder="", files=(), refusal=why)
