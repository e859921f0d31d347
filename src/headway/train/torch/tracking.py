"""State that saves itself: a loop without a line of saving or loading goes on bit for bit where it was.

    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(10):
        for batch in loader:
            …
            train.report({"loss": loss})

Every ``CheckpointConfig(every_reports=n)`` reports, every ``every_s`` seconds and before an orderly stop, in a report
that all ranks have agreed on, the tracked state becomes a checkpoint:

    tracked/shared/      what all ranks have in common, written by rank 0
    tracked/sharded-…/   a sharded model and its optimizers, written by all
    tracked/rank-0/ …    what each has of its own: its random states, and where its loaders are
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader

from headway.core.errors import ConfigError, StorageError
from headway.storage.checkpoint import Checkpoint
from headway.storage.dicts import is_dict, read_dict, write_dict
from headway.storage.proof import Proof
from headway.storage.staging import scratch
from headway.train.torch import gradients
from headway.train.torch.buckets import fix_buckets
from headway.train.torch.resuming import Cursor, follow
from headway.train.torch.sharded import ShardedState, check_sharded, is_sharded
from headway.worker.saving import Wish
from headway.worker.session import Session, current

FOLDER, SHARED, SHARDED = "tracked", "shared", "sharded"


def track(**things: Any) -> Tracked:
    """See :func:`headway.train.track`."""
    session = current("headway.train.track")
    if session.autosave is not None:
        raise ConfigError("train.track() was called twice: name everything in one call")
    tracked = Tracked(session, things)
    tracked._fix_buckets()
    tracked._restore(session.newest_checkpoint())
    session.track(tracked._save)
    return tracked


class Tracked:
    """What ``train.track()`` gives."""

    def __init__(self, session: Session, things: dict[str, Any]) -> None:
        self._session = session
        self._loaders: dict[str, Cursor] = {}
        self._others: dict[str, Any] = {}
        for name, thing in things.items():
            if isinstance(thing, DataLoader):
                self._loaders[name] = follow(thing, session.run.seed, before_first_batch=self._set_random_states)
            else:
                self._others[name] = _checked(name, thing)
        self._sharded = {name: ShardedState(t, self._others) for name, t in self._others.items() if is_sharded(t)}
        for name, state in self._sharded.items():
            for part in {name} | state.optimizers:
                del self._others[part]
        steps = gradients.Steps()
        session.at_end.append(steps.close)
        self._epoch = 0
        self._finished_before: int | None = None  # how often the first loader had come to its end as this epoch began
        self._reports_of_epoch = 0
        self._random: dict[str, Any] | None = None  # to be set when the loop really goes on
        self._random_first: dict[str, Any] | None = None  # to be set when the epoch to be resumed begins
        self._began_with: dict[str, Any] | None = None  # the random states at the beginning of this epoch

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs that are still to be done, out of so many."""
        for epoch in range(self._epoch, number):
            self._epoch = epoch
            self._finished_before = self._num_finished
            self._reports_of_epoch = 0
            self._set_states_of_epoch()
            self._when_it_goes_on()
            yield epoch
        self._epoch = number
        self._set_states_of_epoch()

    @property
    def num_batches(self) -> int:
        """How many batches of this epoch the first loader has handed out, in this process and before a restart.

        For whatever happens in every n-th of them: ``if state.num_batches % 4 == 0: optimizer.step()``.
        """
        if not self._loaders:
            raise ConfigError("num_batches counts the batches of a prepared loader: name it in train.track(loader=...)")
        position: int = next(iter(self._loaders.values())).state()["position"]
        return position

    def _set_states_of_epoch(self) -> None:
        """Before an epoch begins, or code after the last one; a resumed epoch begins with what it began with before."""
        _set_states(self._random_first)
        self._random_first = None
        self._began_with = _random_states()

    def _when_it_goes_on(self) -> None:
        """In the middle of an epoch, random states are set just before the next batch, where the save was made."""
        for stream in self._streams:
            stream.before_first_batch = self._set_random_states

    @property
    def _streams(self) -> list[Any]:
        """The datasets that this worker has asked for; where they are rides in every report by itself."""
        return [shard._own for shard in self._session.extras.get("shards", {}).values()]

    @property
    def _num_finished(self) -> int:
        """How often the first loader, or the first dataset, has come to its end."""
        counted = [*self._loaders.values(), *self._streams]
        return counted[0].num_finished if counted else 0

    # --- saving ---

    def _save(self, seq: int, must: bool) -> tuple[Checkpoint, Wish] | None:
        self._warn_without_a_loader()
        every = self._session.run.every_reports
        if not must and (every is None or (seq + 1) % every):
            return None
        run = self._session.run
        folder = scratch(Path(run.root or run.path), run.attempt)
        if self._session.rank == 0:
            self._write(folder, SHARED, {name: _state_of(thing) for name, thing in self._others.items()})
        for name, sharded in self._sharded.items():
            sharded.save(folder / FOLDER / f"{SHARDED}-{name}")
        self._write(folder, f"rank-{self._session.rank}", self._own() | self._of_rank())
        return Checkpoint(folder), Wish(delete_local=True, scratch=True, cursor=self._position())

    def _warn_without_a_loader(self) -> None:
        """Where nothing tells how far an epoch has come, a checkpoint counts as its end: that must be said."""
        self._reports_of_epoch += 1
        if self._reports_of_epoch == 2 and not self._follows_data and self._session.rank == 0:
            print(
                f"headway: epoch {self._epoch} has several reports and train.track() follows no loader: a restart from "
                "one of them goes on with the next epoch; name the prepared loader in train.track(...)",
                file=sys.stderr,
            )

    @property
    def _follows_data(self) -> bool:
        return bool(self._loaders or self._streams)

    def _position(self) -> dict[str, Any]:
        """For people, and for the manifest: the epoch, and how many batches of it each loader has handed out."""
        batches = {name: cursor.state()["position"] for name, cursor in self._loaders.items()}
        return {"epoch": self._epoch, **({"batches": batches} if batches else {})}

    def _own(self) -> dict[str, Any]:
        loaders = {name: cursor.state() for name, cursor in self._loaders.items()}
        begun = self._finished_before is not None
        done = begun and (not self._follows_data or self._num_finished > (self._finished_before or 0))
        return {"epoch": self._epoch, "done": done, "loaders": loaders, **self._random_now(amid=begun and not done)}

    def _random_now(self, *, amid: bool) -> dict[str, Any]:
        """The random states of now. Amid an epoch also those that it began with: code before its batches runs again."""
        in_loop = any(not cursor.state()["finished"] for cursor in self._loaders.values())
        in_loop |= any(not stream.position.done for stream in self._streams)
        return {"random": _random_states(), "began_with": self._began_with if amid else None, "in_loop": in_loop}

    def _of_rank(self) -> dict[str, Any]:
        """What a rank has of its own in things that are the same on all ranks otherwise."""
        pending = {name: gradients.saved(model) for name, model in self._models.items()}
        return {
            "gradients": {name: found for name, found in pending.items() if found},
            "buffers": {name: _buffers(model) for name, model in self._models.items()} if self._session.rank else {},
            "scaler": self._scaler.state_dict() if self._scaler is not None else None,
        }

    @property
    def _scaler(self) -> Any:
        """The gradient scaler of ``accelerate()``, which users do not get to see."""
        return getattr(self._session.extras.get("precision"), "scaler", None)

    @property
    def _models(self) -> dict[str, nn.Module]:
        found = {name: _unwrapped(thing) for name, thing in self._others.items()}
        return {name: thing for name, thing in found.items() if isinstance(thing, nn.Module)}

    def _write(self, folder: Path, part: str, data: dict[str, Any]) -> None:
        place = folder / FOLDER / part
        place.mkdir(parents=True)
        write_dict(place, data)

    # --- going on ---

    def _fix_buckets(self) -> None:
        """The order in which gradients are added must not depend on when the process was started."""
        for name, thing in self._others.items():
            reason = fix_buckets(thing) if isinstance(thing, nn.Module) else None
            if reason and self._session.place.world_size > 2 and self._session.rank == 0:
                print(
                    f"headway: {name} may not resume bit for bit: its gradient buckets change after the first step of "
                    f"each start ({reason}); wrap it with prepare_model(), and register hooks after that",
                    file=sys.stderr,
                )

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        with checkpoint.as_directory() as path:
            folder = Path(path, FOLDER)
            if not is_dict(folder / SHARED):
                raise StorageError(
                    f"{path} was not made by train.track(): load it yourself, or give the run a new name"
                )
            proof = checkpoint.proof(Path(path))
            shared = read_dict(folder / SHARED, proof)
            same_world = len(list(folder.glob("rank-*"))) == self._session.run.num_workers
            mine = folder / f"rank-{self._session.rank if same_world else 0}"
            own = read_dict(mine, proof)
            ranks = [own] if same_world else [read_dict(place, proof) for place in sorted(folder.glob("rank-*"))]
            self._load_sharded(folder, proof)
        self._load(shared, path)
        self._load_of_rank(ranks)
        self._go_on(own, same_world=same_world)

    def _load_sharded(self, folder: Path, proof: Proof) -> None:
        for name, sharded in self._sharded.items():
            place = folder / f"{SHARDED}-{name}"
            if not place.is_dir():
                raise StorageError(f"{folder.parent} holds {name} as a whole, and here it is sharded: load it yourself")
            check_sharded(place, proof)
            sharded.load(place)

    def _load(self, shared: dict[str, Any], path: str) -> None:
        if missing := self._others.keys() - shared.keys():
            raise StorageError(f"{path} does not hold {', '.join(sorted(missing))}: it holds {', '.join(shared)}")
        for name, thing in self._others.items():
            _unwrapped(thing).load_state_dict(shared[name])

    def _load_of_rank(self, ranks: list[dict[str, Any]]) -> None:
        """``ranks``: what was written by this rank, or by all where there was another number of them."""
        for name, model in self._models.items():
            gradients.load(model, gradients.mean([own.get("gradients", {}).get(name, {}) for own in ranks]))
            for part, value in ranks[0].get("buffers", {}).get(name, {}).items():
                model.get_buffer(part).copy_(value)
        if self._scaler is not None and ranks[0].get("scaler"):
            self._scaler.load_state_dict(ranks[0]["scaler"])

    def _go_on(self, own: dict[str, Any], *, same_world: bool) -> None:
        """Another number of workers goes on at the same row; random states belong to those who had them."""
        finished = all(state["finished"] for state in list(own["loaders"].values())[:1])
        self._epoch = own["epoch"] + own.get("done", finished)  # older states do not say
        for name, cursor in self._loaders.items():
            if name in own["loaders"]:
                cursor.go_on(own["loaders"][name], same_world=same_world)
        if same_world:
            self._random_first = own.get("began_with") or own["random"]
            self._random = own["random"] if own.get("in_loop", True) else None

    def _set_random_states(self) -> None:
        states, self._random = self._random, None
        _set_states(states)


def _checked(name: str, thing: Any) -> Any:
    if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
        raise ConfigError(f"train.track({name}=...) must have state_dict() and load_state_dict(), got {thing!r}")
    return thing


def _unwrapped(thing: Any) -> Any:
    """DDP's own model: the same names whether it is wrapped or not."""
    return thing.module if isinstance(thing, nn.parallel.DistributedDataParallel) else thing


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Those that belong to the state. Ranks may differ in them: DDP aligns them in the next step, or never."""
    kept = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def _state_of(thing: Any) -> Any:
    return _unwrapped(thing).state_dict()


def _set_states(states: dict[str, Any] | None) -> None:
    if states is None:
        return
    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def _random_states() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "pid": os.getpid(),
    }
