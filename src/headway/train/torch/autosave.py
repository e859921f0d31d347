"""State that saves itself: a loop without a line of saving or loading goes on bit for bit where it was.

    state = train.track(model=model, optimizer=optimizer, loader=loader)
    for epoch in state.epochs(10):
        for batch in loader:
            …
            train.report({"loss": loss})

Every ``CheckpointConfig(every_reports=n)`` reports, every ``every_s`` seconds and before an orderly stop, in a report
that all ranks have agreed on, the tracked state becomes a checkpoint. It is taken when the loop asks for its next batch
or the epoch is over (see :mod:`headway.train.torch.resume_points`), and belongs to the last report before:

    tracked/shared/      what all ranks have in common, written by rank 0
    tracked/sharded-…/   a sharded model and its optimizers, written by all
    tracked/places/…     where each was: all at the same place, else they saved different steps
    tracked/rank-0/ …    what each has of its own: its random states, and where its loaders are
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils.data import DataLoader

from headway.core import phrases
from headway.core.errors import ConfigError, StorageError
from headway.core.schema.data_cursor import DataCursor
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.dict_files import is_dict, read_dict, write_dict
from headway.storage.checkpoint.signatures import Proof
from headway.storage.checkpoint.staging import scratch
from headway.train.datasets import DatasetShards
from headway.train.torch import gradient_accumulation
from headway.train.torch.amp import Acceleration
from headway.train.torch.ddp_buckets import fix_buckets
from headway.train.torch.fsdp_state import ShardedState, check_sharded, is_sharded
from headway.train.torch.loader import USE, PreparedLoaders
from headway.train.torch.optimizer_state import load_optimizer
from headway.train.torch.resumable_loader import Cursor, follow
from headway.train.torch.resume_points import Passes
from headway.train.torch.unsaved_state import Omissions
from headway.worker.checkpoint.options import SaveOptions
from headway.worker.reports import SaveLater
from headway.worker.session import Session, current

_logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from headway.data.execution.epochs import EpochStream

# These are the same on all ranks; a meter, say, or a buffer of experience, is each rank's own.
_COMMON = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)

FOLDER, SHARED, SHARDED, PLACES = "tracked", "shared", "sharded", "places"


def can_track(thing: object) -> bool:
    """Whether this is an object of torch."""
    return isinstance(thing, (*_COMMON, DataLoader, torch.Tensor, torch.amp.GradScaler))


def track(**things: Any) -> Tracked:
    """See :func:`headway.train.track`."""
    session = current("headway.train.track")
    if session.reports.autosave is not None:
        raise ConfigError("train.track() was called twice: name everything in one call")
    tracked = Tracked(session, things)
    tracked._fix_buckets()
    tracked._restore(session.newest_checkpoint())
    session.helper(DatasetShards).follower = tracked._follow
    for stream in tracked._streams:
        tracked._follow(stream)
    session.reports.enable_autosave(tracked)
    return tracked


class Tracked:
    """What ``train.track()`` gives."""

    def __init__(self, session: Session, things: dict[str, Any]) -> None:
        self._session = session
        self._passes = Passes()
        self._owed = False  # a save that is due, but training could not have been resumed from where it was due
        self._said_held = False
        self._leaves = False  # all ranks do, after what is saved next
        self._thread: int | None = None  # the one that takes batches
        self._loaders: dict[str, Cursor] = {}
        self._others: dict[str, Any] = {}
        named = [vars(thing).get(USE) for thing in things.values() if isinstance(thing, DataLoader)]
        self._named_uses = [use for use in named if use is not None]
        for name, thing in things.items():
            if isinstance(thing, DataLoader):
                cursor = follow(thing, session.run.seed, self._set_random_states, name=name, watcher=self)
                self._loaders[name] = cursor
                self._passes.know(cursor.key)
            else:
                self._others[name] = _checked(name, thing)
        steps = gradient_accumulation.Steps()
        session.call_at_end(steps.close)
        self._omissions = Omissions(self._others, steps, audible=session.rank == 0)
        self._sharded = {name: ShardedState(t, self._others) for name, t in self._others.items() if is_sharded(t)}
        for name, state in self._sharded.items():
            for part in {name} | state.optimizers:
                del self._others[part]
        self._epoch = 0
        self._begun = False  # whether epochs are counted by us
        self._reports_of_epoch = 0
        self._random: dict[str, Any] | None = None  # to be set when the loop really goes on
        self._random_first: dict[str, Any] | None = None  # to be set when the epoch to be resumed begins
        self._began_with: dict[str, Any] | None = None  # the random states at the beginning of this epoch
        self._skipped: list[Hashable] = []  # passes that the epoch to be resumed has had

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs that are still to be done, out of so many."""
        try:
            for epoch in range(self._epoch, number):
                self._epoch = epoch
                self._begun = True
                self._reports_of_epoch = 0
                self._passes.begin_epoch()
                self._set_states_of_epoch()
                yield epoch
                known = [cursor.at_boundary() for cursor in self._loaders.values()]
                known += [stream.cursor.end_epoch() for stream in self._streams]
                if all(known):
                    self._resumable(done=True)
                else:  # the next epoch will show; a later report saves what this one should have
                    self._session.reports.send_held(None)
            if self._epoch <= number:  # else a later loop is to be resumed
                self._epoch, self._begun = number, False
                self._set_states_of_epoch()
        finally:
            self._passes.end_epochs()

    @property
    def num_batches(self) -> int:
        """How many batches of this epoch its first loop has been given, in this process and before a restart.

        For whatever happens in every n-th of them: ``if state.num_batches % 4 == 0: optimizer.step()``.
        """
        if self._passes.leading is None:
            self._omissions.guard()
        if not self._loaders:
            raise ConfigError("num_batches counts the batches of a prepared loader: name it in train.track(loader=...)")
        cursors = list(self._loaders.values())
        leading = next((cursor for cursor in cursors if cursor.key == self._passes.leading), cursors[0])
        position: int = leading.state()["position"]
        return position

    def _set_states_of_epoch(self) -> None:
        """Before an epoch begins, or code after the last one; a resumed epoch begins with what it began with before."""
        _set_states(self._random_first)
        self._random_first = None
        self._began_with = _random_states()
        self._omissions.begin_epoch()

    @property
    def _streams(self) -> list[EpochStream]:
        """The datasets that this worker has asked for; where they are rides in every report by itself."""
        return self._session.helper(DatasetShards).streams

    def _follow(self, stream: EpochStream) -> None:
        stream.hooks.observer, stream.hooks.before_first_batch = self, self._set_random_states
        stream.cursor.num_to_skip = self._skipped.count(stream.key)
        self._passes.know(stream.key)

    # --- how loops use their data ---

    def begin(self, name: Hashable) -> None:
        if self._passes.leading is None:
            self._omissions.begin_first_loop()
        if self._passes.begin(name):
            self._resumable(done=False)

    def ask(self, name: Hashable, *, last: bool) -> None:
        self._thread = threading.get_ident()
        if self._passes.ask(name, last=last):
            self._resumable(done=False)

    def end(self, name: Hashable) -> None:
        self._passes.end(name)

    def _resumable(self, *, done: bool) -> None:
        """Training can be resumed from here: what the last report is to save, is saved now."""
        if not self._session.reports.is_holding:
            return
        if not self._leaves and (held := self._undecided):  # a later report saves what this one should have
            self._say_what_is_held(held)
            self._session.reports.send_held(None)
        else:
            self._session.reports.send_held(self._saved(done=done))

    def _say_what_is_held(self, held: list[str]) -> None:
        if self._session.rank == 0 and not self._said_held:
            _logger.warning(
                f"nothing is saved in epoch {self._epoch} until it uses {', '.join(held)}: the epoch before "
                "has left an iterator with batches to give, and may go on with it or not; del the iterator to have "
                "state saved meanwhile"
            )
        self._said_held = True

    @property
    def _undecided(self) -> list[str]:
        """Whose pass the epoch before has left running: this one may go on with it, or begin another."""
        loaders = [name for name, cursor in self._loaders.items() if cursor.undecided]
        return loaders + [stream.name for stream in self._streams if stream.cursor.undecided]

    # --- saving ---

    def on_report(self, seq: int, must: bool, leave: bool) -> tuple[Checkpoint, SaveOptions] | SaveLater | None:
        """Save when it is due; or later, at the next place from which training can be resumed exactly."""
        self._warn_without_a_loader()
        self._warn_of_unnamed_loaders()
        every = self._session.run.options.every_reports
        self._owed |= must or (every is not None and (seq + 1) % every == 0)
        if not self._owed:
            return None
        self._leaves = leave
        if leave and not self._passes.resumable:
            return self._left_amid()
        if leave and self._session.rank == 0 and (held := self._undecided):
            _logger.warning(
                f"stopping in epoch {self._epoch} while {', '.join(held)} has an iterator that the epoch "
                "before has left with batches to give: the next iterator will go on with those batches"
            )
        if self._passes.expects_more and self._thread in (None, threading.get_ident()):
            return SaveLater()
        return self._saved(done=self._passes.epoch_over)

    def on_demand(self) -> tuple[Checkpoint, SaveOptions] | None:
        exact = self._passes.resumable and not self._passes.accompanied and not self._undecided
        return self._saved(done=self._passes.epoch_over) if exact else None

    def _left_amid(self) -> tuple[Checkpoint, SaveOptions]:
        """All ranks leave, and cannot wait for a better place."""
        if self._session.rank == 0:
            _logger.warning(
                f"stopping inside epoch {self._epoch}, after its first loop over tracked data: this loop will "
                "be empty when the epoch is resumed, and code between it and the present place will run again"
            )
        return self._saved(done=False, finished=self._passes.finished)

    def _saved(self, *, done: bool, finished: Sequence[Hashable] = ()) -> tuple[Checkpoint, SaveOptions]:
        self._owed = False
        self._check_omissions(done=done)
        run = self._session.run
        folder = scratch(Path(run.root or run.path), run.attempt)
        if self._session.rank == 0:
            self._write(folder, SHARED, {name: _state_of(thing) for name, thing in self._others.items()})
        for name, sharded in self._sharded.items():
            sharded.save(folder / FOLDER / f"{SHARDED}-{name}")
        self._write(folder, f"rank-{self._session.rank}", self._own(done, finished) | self._of_rank())
        place = self._place(done)
        weights = {name: _sample_of_weights(model) for name, model in self._models.items()}
        self._write(folder, f"{PLACES}/rank-{self._session.rank}", {"place": place, "weights": weights})
        return Checkpoint(folder), SaveOptions(
            delete_local=True, scratch=True, cursor=self._position(done), place=place
        )

    def _check_omissions(self, *, done: bool) -> None:
        uses = self._session.helper(PreparedLoaders).uses
        unnamed = [use for use in uses if not any(use is each for each in self._named_uses)]
        overlapping = [name for name, cursor in self._loaders.items() if cursor.overlaps]
        self._omissions.check(unnamed, overlapping, epoch=self._epoch if self._begun and not done else None)

    def _warn_without_a_loader(self) -> None:
        """Where nothing tells how far an epoch has come, a checkpoint counts as its end: that must be said."""
        self._reports_of_epoch += 1
        if self._reports_of_epoch == 2 and not self._follows_data and self._session.rank == 0:
            _logger.warning(
                f"epoch {self._epoch} has several reports and train.track() follows no loader: a restart from "
                "one of them goes on with the next epoch; name the prepared loader in train.track(...)"
            )

    def _warn_of_unnamed_loaders(self) -> None:
        followed = [cursor.sampler for cursor in self._loaders.values()]
        samplers = self._session.helper(PreparedLoaders).samplers
        if any(each.starts_over and each not in followed for each in samplers):
            samplers.clear()
            if self._session.rank == 0:
                _logger.warning(
                    "a shuffled loader is not named in train.track(...): after a restart it begins with its "
                    "first order again; name it, or call its loader.sampler.set_epoch(epoch)"
                )

    @property
    def _follows_data(self) -> bool:
        return bool(self._loaders or self._streams)

    def _position(self, done: bool) -> DataCursor:
        """For people, and for the manifest: the epoch, and how many batches of it each loader has handed out."""
        if done and self._begun:
            return DataCursor(epoch=self._epoch, over=True)
        batches = {name: cursor.state()["position"] for name, cursor in self._loaders.items()}
        return DataCursor(epoch=self._epoch, batches=batches or None)

    def _place(self, done: bool) -> str:
        """In words; the same on all ranks, or what they save does not fit together."""
        epoch = f"epoch {self._epoch}"
        if done and self._begun:
            return f"the end of {epoch}"
        for name, cursor in self._loaders.items():
            if cursor.key == self._passes.leading:
                state = cursor.state()
                return f"{epoch}, batch {state['position']} of pass {state['epoch']} over {name}"
        for stream in self._streams:
            if stream.key == self._passes.leading and stream.plan.keeps_rows:
                position = stream.cursor.resume_position
                return f"{epoch}, row {position.rows:,} of pass {position.epoch} over {stream.name}"
        return epoch

    def _own(self, done: bool, finished: Sequence[Hashable]) -> dict[str, Any]:
        loaders = {name: cursor.saved() for name, cursor in self._loaders.items()}
        done = done and self._begun
        own = {"epoch": self._epoch, "done": done, "loaders": loaders, **self._random_now(done=done)}
        return {**own, "passes": list(finished)} if finished else own

    def _random_now(self, *, done: bool) -> dict[str, Any]:
        """The random states of now, and those with which code that runs again began: of this epoch, or after all."""
        in_loop = not done and not self._passes.all_over
        began_with = self._began_with if self._passes.all_over or (self._begun and not done) else None
        return {"random": _random_states(), "began_with": began_with, "in_loop": in_loop}

    def _of_rank(self) -> dict[str, Any]:
        """What a rank has of its own in things that are the same on all ranks otherwise."""
        own = {name: _state_of(thing) for name, thing in self._others.items() if not isinstance(thing, _COMMON)}
        pending = {name: gradient_accumulation.saved(model) for name, model in self._models.items()}
        return {
            "gradients": {name: found for name, found in pending.items() if found},
            "buffers": {name: _buffers(model) for name, model in self._models_with_own_buffers.items()},
            "things": own if self._session.rank else {},
            "scaler": self._scaler.state_dict() if self._scaler is not None else None,
        }

    @property
    def _scaler(self) -> Any:
        """The gradient scaler of ``accelerate()``, which users do not get to see."""
        return getattr(self._session.helper(Acceleration).precision, "scaler", None)

    @property
    def _models(self) -> dict[str, nn.Module]:
        found = {name: _unwrapped(thing) for name, thing in self._others.items()}
        return {name: thing for name, thing in found.items() if isinstance(thing, nn.Module)}

    @property
    def _models_with_own_buffers(self) -> dict[str, nn.Module]:
        """Rank 0's are with the rest of the model, unless it is sharded: then any rank's are."""
        return {**(self._models if self._session.rank else {}), **{n: each.model for n, each in self._sharded.items()}}

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
                _logger.warning(
                    f"{name} may not resume bit for bit: its gradient buckets change after the first step of "
                    f"each start ({reason}); wrap it with prepare_model(), and register hooks after that"
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
            differing = _check_places(folder, proof)
            if differing and self._session.rank == 0:
                _logger.warning(
                    f"the ranks had other weights of {', '.join(differing)} when {path} was saved: now all "
                    "ranks take those of rank 0; prepare_model() has them train one model"
                )
            shared = read_dict(folder / SHARED, proof)
            same_world = len(list(folder.glob("rank-*"))) == self._session.run.num_workers
            mine = folder / f"rank-{self._session.rank if same_world else 0}"
            own = read_dict(mine, proof)
            ranks = [own] if same_world else [read_dict(place, proof) for place in sorted(folder.glob("rank-*"))]
            self._load_sharded(folder, proof)
        self._load(shared | (own.get("things", {}) if same_world else {}), path)
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
            try:
                if isinstance(thing, torch.optim.Optimizer):
                    load_optimizer(thing, shared[name])
                else:
                    _unwrapped(thing).load_state_dict(shared[name])
            except Exception as error:  # of torch, or of the user's own class
                reason = phrases.shortened(" ".join(f"{type(error).__name__}: {error}".split()), 300)
                raise StorageError(
                    f"{name} cannot take on what {path} holds of it ({reason}): make it as it was when that was saved, "
                    "or give the run a new name"
                ) from error

    def _load_of_rank(self, ranks: list[dict[str, Any]]) -> None:
        """``ranks``: what was written by this rank, or by all where there was another number of them."""
        for name, model in self._models.items():
            gradient_accumulation.load(
                model, gradient_accumulation.mean([own.get("gradients", {}).get(name, {}) for own in ranks])
            )
        for name, buffers in ranks[0].get("buffers", {}).items():
            if (found := self._sharded[name].model if name in self._sharded else self._models.get(name)) is not None:
                for part, value in buffers.items():
                    found.get_buffer(part).copy_(value)
        if self._scaler is not None and ranks[0].get("scaler"):
            self._scaler.load_state_dict(ranks[0]["scaler"])

    def _go_on(self, own: dict[str, Any], *, same_world: bool) -> None:
        """Another number of workers goes on at the same row; random states belong to those who had them."""
        finished = all(state["finished"] for state in list(own["loaders"].values())[:1])
        self._epoch = own["epoch"] + own.get("done", finished)  # older states do not say
        for name, cursor in self._loaders.items():
            if name in own["loaders"]:
                cursor.go_on(own["loaders"][name], same_world=same_world)
        self._skipped = [(kind, name) for kind, name in own.get("passes", [])]
        for cursor in self._loaders.values():
            cursor.num_to_skip = self._skipped.count(cursor.key)
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


def _check_places(folder: Path, proof: Proof) -> list[str]:
    """StorageError where the ranks have saved at different places; older checkpoints do not say.

    Returns:
        The names of models whose weights were not the same on all ranks.
    """
    found = {each.name: read_dict(each, proof) for each in sorted(folder.glob(f"{PLACES}/rank-*"))}
    places = {name: each["place"] for name, each in found.items()}
    if len(set(places.values())) > 1:
        told = ", ".join(f"{rank} at {place}" for rank, place in places.items())
        raise StorageError(
            f"{folder.parent} mixes the states of different steps ({told}): let all ranks report in the same steps, "
            "equally often, and give the run a new name"
        )
    weights = [each.get("weights", {}) for each in found.values()]
    return sorted({name for one in weights for name in one if any(one[name] != other.get(name) for other in weights)})


def _sample_of_weights(model: nn.Module) -> str:
    """A few numbers of every parameter: enough to tell models that were trained apart."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.layout is torch.strided and not isinstance(parameter, UninitializedParameter):
            found.update(repr(parameter.detach().reshape(-1)[:4].tolist()).encode())
    return found.hexdigest()[:16]


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
