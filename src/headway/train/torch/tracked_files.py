"""The files of tracked state in a checkpoint: who writes which, and what a resumed rank reads.

    tracked/shared/      what all ranks have in common, written by rank 0
    tracked/sharded-…/   a sharded model and its optimizers, written by all
    tracked/places/…     where each rank was: all at the same place, else they saved different steps
    tracked/rank-0/ …    what each rank has of its own: its random states, and where its loaders are

Other places in the checkpoint are free for the user's files.
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
    """Writes one rank's part of a save into its own directory."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder / FOLDER
        self._rank = rank

    def write_shared(self, state: dict[str, Any]) -> None:
        """For rank 0."""
        self._write(SHARED, state)

    def write_own(self, state: dict[str, Any]) -> None:
        self._write(f"rank-{self._rank}", state)

    def write_place(self, place: str, weights: dict[str, str]) -> None:
        """``weights``: a fingerprint of each model."""
        self._write(f"{PLACES}/rank-{self._rank}", {"place": place, "weights": weights})

    def sharded(self, name: str) -> Path:
        """Where the sharded model of this name is saved."""
        return self._folder / f"{SHARDED}-{name}"

    def _write(self, part: str, state: dict[str, Any]) -> None:
        place = self._folder / part
        place.mkdir(parents=True)
        write_dict(place, state)


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A checkpoint of tracked state, as one rank reads it.

    Args:
        path: Of the checkpoint.
        proof: Whether pickles in it may be opened.
        shared: What all ranks have in common.
        own: What this rank has saved; with another number of workers, what rank 0 has.
        ranks: What this rank has saved; with another number of workers, what every rank has.
        same_world: Whether as many ranks have saved it as there are now.
        differing: Models whose weights were not the same on all ranks.
    """

    path: str
    proof: Proof
    shared: dict[str, Any]
    own: dict[str, Any]
    ranks: list[dict[str, Any]]
    same_world: bool
    differing: list[str]

    def sharded(self, name: str) -> Path:
        """The path of the sharded model of this name.

        Raises:
            StorageError: It was saved as a whole.
        """
        place = Path(self.path, FOLDER, f"{SHARDED}-{name}")
        if not place.is_dir():
            raise StorageError(f"{self.path} holds {name} as a whole, and here it is sharded: load it yourself")
        return place


@contextlib.contextmanager
def opened(checkpoint: Checkpoint, rank: int, num_workers: int) -> Iterator[SavedState]:
    """Read a checkpoint; its files stay on this machine while the context is open.

    Raises:
        StorageError: It holds no tracked state, or the ranks were at different places when they saved it.
    """
    with checkpoint.as_directory() as path:
        folder = Path(path, FOLDER)
        if not is_dict(folder / SHARED):
            raise StorageError(f"{path} was not made by train.track(): load it yourself, or give the run a new name")
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
    """The names of models whose weights were not the same on all ranks; older checkpoints do not say.

    Raises:
        StorageError: The ranks have saved at different places.
    """
    found = {each.name: read_dict(each, proof) for each in sorted(folder.glob(f"{PLACES}/rank-*"))}
    places = {name: each["place"] for name, each in found.items()}
    if len(set(places.values())) > 1:
        found_places = ", ".join(f"{rank} at {place}" for rank, place in places.items())
        raise StorageError(
            f"{folder.parent} mixes the states of different steps ({found_places}): let all ranks report in the same "
            "steps, equally often, and give the run a new name"
        )
    weights = [each.get("weights", {}) for each in found.values()]
    return sorted({name for one in weights for name in one if any(one[name] != other.get(name) for other in weights)})
