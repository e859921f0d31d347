"""The files of tracked state in a checkpoint: which rank writes which files, and what a resumed rank reads.

    tracked/shared/      what all ranks have in common, written by rank 0
    tracked/sharded-…/   a sharded model and its optimizers, written by all ranks
    tracked/places/…     the position of each rank; if positions differ, the ranks saved different steps
    tracked/rank-0/ …    the separate state of each rank: its random states and the positions of its loaders

All other paths in the checkpoint are available for the user's files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.errors import StorageError
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.dict_files import is_dict, read_dict, write_dict
from headway.storage.checkpoint.signatures import Proof

FOLDER, SHARED, SHARDED, PLACES = "tracked", "shared", "sharded", "places"


class StateWriter:
    """The writer of one rank's part of a save, in the rank's own directory."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder / FOLDER
        self._rank = rank

    def write_shared(self, state: dict[str, Any]) -> None:
        """Write the state that all ranks have in common. Only rank 0 calls it."""
        self._write(SHARED, state)

    def write_own(self, state: dict[str, Any]) -> None:
        self._write(f"rank-{self._rank}", state)

    def write_place(self, place: str, weights: dict[str, str]) -> None:
        """Write this rank's position. ``weights``: a fingerprint of each model."""
        self._write(f"{PLACES}/rank-{self._rank}", {"place": place, "weights": weights})

    def sharded(self, name: str) -> Path:
        """Return the directory for the sharded model of this name."""
        return self._folder / f"{SHARDED}-{name}"

    def _write(self, part: str, state: dict[str, Any]) -> None:
        place = self._folder / part
        place.mkdir(parents=True)
        write_dict(place, state)


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A checkpoint of tracked state, as one rank reads it.

    Args:
        path: The path of the checkpoint.
        proof: Whether pickles in it may be opened.
        shared: The state that all ranks have in common.
        own: The state that this rank saved, or rank 0's if the number of workers has changed.
        ranks: The state that this rank saved, or every rank's if the number of workers has changed.
        same_world: Whether the number of ranks is the same as when it was saved.
        differing: Models whose weights differed between ranks.
    """

    path: str
    proof: Proof
    shared: dict[str, Any]
    own: dict[str, Any]
    ranks: list[dict[str, Any]]
    same_world: bool
    differing: list[str]

    def sharded(self, name: str) -> Path:
        """Return the path of the sharded model of this name.

        Raises:
            StorageError: If the model was saved unsharded.
        """
        place = Path(self.path, FOLDER, f"{SHARDED}-{name}")
        if not place.is_dir():
            raise StorageError(f"{self.path} contains {name} unsharded, but it is sharded now: load it yourself")
        return place


@contextlib.contextmanager
def opened(checkpoint: Checkpoint, rank: int, num_workers: int) -> Iterator[SavedState]:
    """Read a checkpoint; its files stay on this machine while the context is open.

    Raises:
        StorageError: If it contains no tracked state, or the ranks were at different positions when they saved it.
    """
    with checkpoint.as_directory() as path:
        folder = Path(path, FOLDER)
        if not is_dict(folder / SHARED):
            raise StorageError(f"{path} was not saved by train.track(): load it yourself, or give the run a new name")
        proof = checkpoint.proof(Path(path))
        differing = _check_places(folder, proof)
        places = sorted(folder.glob("rank-*"))
        same_world = len(places) == num_workers
        own = read_dict(folder / f"rank-{rank if same_world else 0}", proof)
        yield SavedState(
            path=str(path),
            proof=proof,
            shared=read_dict(folder / SHARED, proof),
            own=own,
            ranks=[own] if same_world else [read_dict(place, proof) for place in places],
            same_world=same_world,
            differing=differing,
        )


def _check_places(folder: Path, proof: Proof) -> list[str]:
    """Return the names of models whose weights differed between ranks; older checkpoints do not record this.

    Raises:
        StorageError: If the ranks saved at different positions.
    """
    found = {each.name: read_dict(each, proof) for each in sorted(folder.glob(f"{PLACES}/rank-*"))}
    places = {name: each["place"] for name, each in found.items()}
    if len(set(places.values())) > 1:
        found_places = ", ".join(f"{rank} at {place}" for rank, place in places.items())
        raise StorageError(
            f"{folder.parent} mixes the states of different steps ({found_places}): let all ranks report in the same "
            "steps and equally often, and give the run a new name"
        )
    weights = [each.get("weights", {}) for each in found.values()]
    return sorted({name for one in weights for name in one if any(one[name] != other.get(name) for other in weights)})
