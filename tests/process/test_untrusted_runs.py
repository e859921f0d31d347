"""Run directories that strangers have made, or that are damaged: nothing of them is executed, nothing is written
outside, nothing hangs, and whoever reads them hears one clear sentence.

One good run is made. Each case is a copy of it with one thing changed: a file is replaced by something that is no file,
or holds what it should not; one value of its JSON is replaced; names are turned into paths; pickles into bombs. Then
everything that reads run directories reads it, in this process.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import fcntl
import hashlib
import io
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter

import headway.data
from headway import train
from headway.cli import main
from headway.core.checkpoints import ValidationRecord
from headway.core.errors import HeadwayError
from headway.core.schema.data_stats import DataStatsLine
from headway.core.schema.journal_entries import NoticeEntry
from headway.core.schema.run_description import Opening
from headway.core.security.signing import user_key
from headway.core.validation import ReportedCheckpointStatus as Status
from headway.storage import durable_fs
from headway.storage.checkpoint.checkpoint import Checkpoint
from headway.storage.checkpoint.manifest import _sealed, checksum
from headway.storage.checkpoint.signatures import Proof
from headway.storage.checkpoint.staging import Note
from headway.storage.checkpoint.validation_record import read_validation, unpack
from headway.storage.object_store import download_cache
from headway.storage.object_store.client_selection import open_store
from headway.storage.run import failure_bundle, layout
from headway.storage.run.opening import open_run
from headway.storage.run.reader import RunReader
from headway.train import replay
from headway.train.launch import control_socket
from headway.train.torch.fsdp_state import ShardedReader, _Planner

Change = Callable[[Path], object]

PATIENCE_S = 10  # for all readers of one case; they take some tens of milliseconds
ESCAPES = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\r\x9b31m\u202eevil\u2066\n"
CHECKPOINT = "checkpoints/checkpoint_000000"
BUNDLE = "failures/attempt-001"
FILES = [
    "run.json",
    "events.jsonl",
    "metrics.jsonl",
    "data.jsonl",
    ".lock",
    f"{CHECKPOINT}/.manifest.json",
    f"{CHECKPOINT}/.validation.json",
    f"{CHECKPOINT}/.metadata.json",
    f"{CHECKPOINT}/dict.json",
    f"{CHECKPOINT}/pickled.pkl",
    f"{BUNDLE}/failure.json",
    f"{BUNDLE}/task.pkl",
    f"{BUNDLE}/rank-0.stacks.txt",
    f"{BUNDLE}/rank-0.log.txt",
    "logs/rank-0.out",
    "logs/rank-0.err",
]
FOLDERS = ["logs", "checkpoints", "failures", CHECKPOINT, BUNDLE]


# --- the run that all cases begin with ---


class Odd:
    """Only pickle can hold it."""


def validate(checkpoint: train.Checkpoint, **kwargs: Any) -> dict[str, Any]:
    return {"accuracy": 0.5}


def learn(config: dict[str, Any]) -> None:
    for batch in train.get_dataset_shard("train").iter_batches(batch_size=4):
        print("a line of output", len(batch))
    checkpoint = train.Checkpoint.from_dict({"step": 1, "odd": Odd()})
    train.report({"loss": 0.5, "note": "text", "valid": {"accuracy": 0.25}}, checkpoint, validation=True)
    raise ValueError("a failure to be explained")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has failed, with one of everything."""
    trainer = train.DataParallelTrainer(
        learn,
        train_loop_config={"lr": 0.1, "layers": [1, 2]},
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(name="run", storage_path=tmp_path_factory.mktemp("good")),
        datasets={"train": headway.data.range(8)},
        validation_config=train.ValidationConfig(validate, train.ValidationTaskConfig(fn_kwargs={"sizes": {1, 2}})),
    )
    with pytest.raises(train.TrainingFailedError) as caught:
        trainer.fit()
    run = Path(caught.value.result.path)
    (run / CHECKPOINT / ".metadata.json").write_text('{"by": "me"}')
    for name in FILES:
        (run / name).touch()  # so that the corpus does not silently pass over one
    return run


# --- what must not happen ---


@dataclass
class Sandbox:
    """A storage directory with the hostile run and a good one beside it, and files outside of it."""

    storage: Path
    outside: Path
    seen: list[str] = field(default_factory=list)  # what went wrong

    @property
    def run(self) -> Path:
        return self.storage / "run"

    @property
    def canary(self) -> Path:
        return self.outside / "executed"

    def state(self) -> dict[str, str]:
        """The files outside, to check that none was touched."""
        return {
            str(path.relative_to(self.outside)): _state_of(path)
            for path in [self.outside, *sorted(self.outside.rglob("*"))]
        }


def _state_of(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return f"{path.lstat().st_mode:o}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def sandbox(tmp_path: Path, good: Path) -> Sandbox:
    made = Sandbox(tmp_path / "storage", tmp_path / "outside")
    made.outside.mkdir()
    (made.outside / "precious").mkdir()
    (made.outside / "precious" / "file").write_text("the user's own")
    (made.outside / "text").write_text("the user's own\n")
    made.storage.mkdir()
    shutil.copytree(good, made.storage / "neighbour")
    return made


class Hangs(BaseException):
    """It took longer than anybody waits."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def bomb(canary: Path) -> bytes:
    """A pickle that shows that it was opened."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(canary),)

    return pickle.dumps(Bomb())


# --- who reads ---


def command(*args: str) -> Callable[[Sandbox], str]:
    """The output of a headway command. It is never a traceback: that would be an exception here."""

    def read(box: Sandbox) -> str:
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            status = main([each.format(run=box.run, storage=box.storage) for each in args])
        text = told.getvalue()
        assert status == 0 or text.strip(), f"{args} failed and did not say why"
        return text

    return read


def library(box: Sandbox) -> str:
    """What a notebook would look at. A clear sentence is an answer."""
    answers = []
    looks: list[Callable[[train.Result], object]] = [
        lambda result: (result.state, result.error),
        lambda result: result.metrics,
        lambda result: result.metrics_dataframe,
        lambda result: result.checkpoint,
        lambda result: result.checkpoint and result.checkpoint.to_dict(),
        lambda result: result.checkpoint and result.checkpoint.get_metadata(),
        lambda result: result.best_checkpoints,
        lambda result: result.get_best_checkpoint("loss", "min"),
        lambda result: result.config,
        repr,
    ]
    for look in looks:
        try:
            found = look(train.Result.from_path(box.run))
            answers.append(found if look is repr else "")
        except HeadwayError as error:
            answers.append(sentence(error))
    return "".join(answers)


def restore(box: Sandbox) -> str:
    try:
        train.DataParallelTrainer.can_restore(box.run)
        train.DataParallelTrainer.restore(box.run, learn)
    except HeadwayError as error:
        return sentence(error)
    return ""


def resume(box: Sandbox) -> str:
    """As a fit() of the same name begins."""
    try:
        opened = open_run(box.run, "auto")
    except HeadwayError as error:
        return sentence(error)
    try:
        if opened.recovered.kept:
            with contextlib.suppress(HeadwayError):
                Checkpoint(opened.recovered.kept[-1].path).proven_by(opened.key).to_dict()
        opened.note(NoticeEntry(event="seen"))
        opened.record(b'{"attempt": 9, "first_seq": 9}\n')
        opened.append_data(DataStatsLine(attempt=9, rank=0, datasets={}))
        opened.describe(Opening(function="learn"))
        opened.differences(Opening())
        return "".join(sentence_of(note) for note in opened.recovered.notes)
    finally:
        opened.close()


def sentence(error: HeadwayError) -> str:
    """The text of the error, as the command line would show it."""
    return sentence_of(str(error))


def sentence_of(text: str) -> str:
    assert not (found := FORBIDDEN.search(text)), f"{found} in {text!a}"
    assert 0 < len(text) < 2000, f"no clear sentence: {text[:200]!r}"
    return ""


READERS: dict[str, Callable[[Sandbox], str]] = {
    "ls": command("ls", "{storage}"),
    "show": command("show", "{run}"),
    "why": command("why", "{run}", "--all"),
    "ckpt ls": command("ckpt", "ls", "{run}"),
    "ckpt verify": command("ckpt", "verify", "{run}"),
    "ckpt why": command("ckpt", "why", "{run}"),
    "library": library,
    "restore": restore,
    "resume": resume,  # the last one: it may change the run
}
FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def judge(box: Sandbox, good: Path, name: str, change: Change, readers: dict[str, Any] = READERS) -> None:
    """Make the case, run every reader on it, and record what went wrong."""
    durable_fs.remove(box.run)
    shutil.copytree(good, box.run, symlinks=True)
    change(box.run)
    before = box.state()
    for reader, read in readers.items():
        try:
            with limited(PATIENCE_S):
                text = read(box)
        except Hangs:
            box.seen.append(f"{name}: {reader} hangs")
            continue
        except BaseException as error:
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            code = where.tb_frame.f_code if where is not None else None
            spot = f"{Path(code.co_filename).name}:{where.tb_lineno}" if code and where else "?"
            box.seen.append(f"{name}: {reader} raised {type(error).__name__}: {str(error)[:100]!a} ({spot})")
            continue
        if found := FORBIDDEN.search(text):
            box.seen.append(f"{name}: {reader} lets {found[0]!a} through: {text[max(0, found.start() - 60) :][:120]!a}")
        if reader == "ls" and not re.search(r"^neighbour +FAILED", text, re.MULTILINE):
            box.seen.append(f"{name}: ls does not show the good run: {text[:300]!a}")
    if box.canary.exists():
        box.seen.append(f"{name}: something was executed")
        box.canary.rmdir()
    if (after := box.state()) != before:
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        box.seen.append(f"{name}: written outside: {sorted(changed)}")


def report_of(box: Sandbox) -> str:
    return f"{len(box.seen)} wrong:\n" + "\n".join(box.seen)


# --- files that are none, or hold what they should not ---


def gone(path: Path) -> None:
    path.unlink()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{here}/{path.name}")  # its path may be longer than a socket's
        finally:
            os.close(here)


def replaced_by(target: str) -> Change:
    """A link: to a device, to itself, to nowhere, to the user's own files."""

    def change(path: Path) -> None:
        outside = next(parent / "outside" for parent in path.parents if (parent / "outside").is_dir())
        path.unlink()
        path.symlink_to(target.format(self=path.name, outside=outside))

    return change


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def content(data: bytes) -> Change:
    return lambda path: path.write_bytes(data)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 31)


def tail(data: bytes) -> Change:
    """What was there, and then this."""

    def change(path: Path) -> None:
        with path.open("ab") as file:
            file.write(data)

    return change


def unreadable(path: Path) -> None:
    path.chmod(0)


DEEP = b"[" * 200_000 + b"]" * 200_000
FILE_CHANGES: dict[str, Change] = {
    "gone": gone,
    "a pipe": fifo,
    "a socket": unix_socket,
    "a folder": folder,
    "endless zeros": replaced_by("/dev/zero"),
    "a terminal": replaced_by("/dev/tty"),
    "a link to itself": replaced_by("{self}"),
    "a link to nowhere": replaced_by("{outside}/new"),
    "a link outside": replaced_by("{outside}/text"),
    "a link to a folder": replaced_by("{outside}/precious"),
    "empty": content(b""),
    "zeros": content(bytes(5000)),
    "no text": content(b"\xff\xfe{\x80\x81\n"),
    "null": content(b"null\n"),
    "a number": content(b"3\n"),
    "not a number": content(b"NaN\n"),
    "too large a number": content(b"9" * 6000 + b"\n"),
    "a string": content(b'"text"\n'),
    "a lone surrogate": content(b'"\\ud800"\n'),
    "a list": content(b"[1, 2]\n"),
    "an empty object": content(b"{}\n"),
    "the right format alone": content(b'{"format": 1}\n'),
    "a format of the future": content(b'{"format": 99}\n'),
    "deep": content(DEEP + b"\n"),
    "deep objects": content(b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n"),
    "escapes": content(json.dumps({"format": ESCAPES}).encode() + b"\n"),
    "escapes of its own": content(ESCAPES.encode() + b"\n"),
    "unreadable": unreadable,
    "two gigabytes": sparse,
    "a deep line more": tail(DEEP + b"\n"),
    "a torn line more": tail(b'{"event": "end", "st'),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_what_it_should_be(name: str, good: Path, sandbox: Sandbox) -> None:
    kinds = FILE_CHANGES if name.endswith((".json", ".jsonl")) else dict(list(FILE_CHANGES.items())[:12])
    for what, change in kinds.items():
        judge(sandbox, good, f"{name} is {what}", lambda run, change=change: change(run / name))
    assert not sandbox.seen, report_of(sandbox)


# --- JSON of the right form, with one value that is not what it should be ---

MISSING = object()


def nested(depth: int) -> Any:
    """JSON reads up to some 900 levels; recursive Python code overflows the stack earlier."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


VALUES: dict[str, Any] = {
    "missing": MISSING,
    "null": None,
    "true": True,
    "a negative number": -1,
    "zero": 0,
    "a fraction": 0.5,
    "an enormous integer": 10**4000,
    "a large number": 10**18,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "a path outside": "../../../outside/precious",
    "an absolute path": "/proc/self/environ",
    "escapes": ESCAPES,
    "a lone surrogate": "\ud800",
    "a zero byte": "a\0b",
    "a long text": "x" * 1_000_000,
    "an empty text": "",
    "an empty list": [],
    "a list of lists": [[[[]]]],
    "an empty object": {},
    "an object of escapes": {ESCAPES: ESCAPES},
    "a nested object": {"a": {"b": {"c": [{"d": None}]}}},
    "a very deep object": nested(450),
    "the largest number": 1 << 62,
}
EVERY_VALUE = bool(os.environ.get("HEADWAY_TEST_EVERY_VALUE"))  # takes minutes
Path_ = tuple[str | int, ...]


def paths_in(value: Any, above: Path_ = ()) -> Iterator[Path_]:
    """Of everything in there; of long lists only the first items."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in items:
        yield (*above, key)
        yield from paths_in(item, (*above, key))


def with_value(value: Any, path: Path_, new: Any) -> Any:
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    if new is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = new
    return value


@contextlib.contextmanager
def unlimited() -> Iterator[None]:
    """Writes values that no reader could handle."""
    digits, depth = sys.get_int_max_str_digits(), sys.getrecursionlimit()
    sys.set_int_max_str_digits(0)
    sys.setrecursionlimit(10_000)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(digits)
        sys.setrecursionlimit(depth)


def as_json(value: Any) -> bytes:
    with unlimited():
        return json.dumps(value).encode()


def seal(value: Any) -> bytes:
    """A manifest with a corrected checksum, which any author of one can compute."""
    with unlimited():
        return json.dumps(_sealed(value), indent=1).encode() + b"\n"


def wrong_values(text: bytes) -> Iterator[tuple[str, Any]]:
    """Every value in there once replaced by something else; which, goes round and round."""
    value, kinds = json.loads(text), list(VALUES.items())
    for number, path in enumerate(paths_in(value)):
        chosen = kinds if EVERY_VALUE else [kinds[7 * number % len(kinds)]]
        for kind, new in chosen:
            yield f"{'.'.join(map(str, path))} is {kind}", with_value(value, path, new)


def readers(*names: str) -> dict[str, Callable[[Sandbox], str]]:
    return {name: READERS[name] for name in names}


@pytest.mark.parametrize(
    ("name", "write", "who"),
    [
        ("run.json", as_json, readers("ls", "show", "library", "restore", "resume")),
        (f"{CHECKPOINT}/.manifest.json", seal, readers("ls", "show", "ckpt ls", "ckpt verify", "library", "resume")),
        (f"{CHECKPOINT}/.validation.json", as_json, readers("ls", "ckpt ls", "library", "resume")),
        (f"{CHECKPOINT}/dict.json", as_json, readers("library", "resume")),
        (f"{BUNDLE}/failure.json", as_json, readers("ls", "why")),
    ],
)
def test_a_value_that_is_not_what_it_should_be(
    name: str, write: Callable[[Any], bytes], who: dict[str, Any], good: Path, sandbox: Sandbox
) -> None:
    for what, value in wrong_values((good / name).read_bytes()):
        judge(sandbox, good, f"{name}: {what}", lambda run, value=value: (run / name).write_bytes(write(value)), who)
    assert not sandbox.seen, report_of(sandbox)


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl"])
def test_a_line_with_a_value_that_is_not_what_it_should_be(name: str, good: Path, sandbox: Sandbox) -> None:
    lines = (good / name).read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        before, after = b"".join(lines[:number]), b"".join(lines[number + 1 :])
        for what, value in wrong_values(line):
            data = before + as_json(value) + b"\n" + after
            name_of = f"{name}, line {number + 1}: {what}"
            judge(
                sandbox,
                good,
                name_of,
                lambda run, data=data: (run / name).write_bytes(data),
                readers("ls", "show", "why", "library", "ckpt why", "resume"),
            )
    assert not sandbox.seen, report_of(sandbox)


# --- directories that are none ---


def to(target: str) -> Change:
    """A link in the place of a directory."""

    def change(path: Path) -> None:
        shutil.rmtree(path)
        path.symlink_to(target.format(self=path.name, outside=outside_of(path)))

    return change


def outside_of(path: Path) -> Path:
    return next(parent / "outside" for parent in path.parents if (parent / "outside").is_dir())


def file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("text")


def pipe_instead(path: Path) -> None:
    shutil.rmtree(path)
    os.mkfifo(path)


def emptied(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def crowded(path: Path) -> None:
    """Names and kinds of everything, beside what belongs there."""
    for number, name in enumerate(NAMES):
        with contextlib.suppress(OSError, ValueError):
            (path / name).mkdir()
        with contextlib.suppress(OSError, ValueError):
            (path / f"{name}.json").symlink_to(["/dev/zero", outside_of(path), "nowhere"][number % 3])
    os.mkfifo(path / "pipe")
    os.mkfifo(path / layout.MANIFEST) if not (path / layout.MANIFEST).exists() else None
    (path / "loop").symlink_to(".")


NAMES = [
    ESCAPES,
    "\x1b]0;title\x07.manifest.json",
    os.fsdecode(b"caf\xe9"),
    "checkpoint_\u00b2",
    "checkpoint_\u0661",
    "checkpoint_99999999999999999999",
    "attempt-\u0661",
    "attempt-99999999999999999999",
    "attempt-002-stall-1",
    "[bold red]",
    "-rf",
    "..\\..\\x",
    "x" * 250,
]
FOLDER_CHANGES: dict[str, Change] = {
    "gone": shutil.rmtree,
    "a file": file_instead,
    "a pipe": pipe_instead,
    "empty": emptied,
    "crowded": crowded,
    "a link to itself": to("{self}"),
    "a link to nowhere": to("{outside}/new"),
    "a link to a file": to("{outside}/text"),
    "a link outside": to("{outside}/precious"),
    "unreadable": unreadable,
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_directory_that_is_none(name: str, good: Path, sandbox: Sandbox) -> None:
    for what, change in FOLDER_CHANGES.items():
        judge(sandbox, good, f"{name} is {what}", lambda run, change=change: change(run / name))
    assert not sandbox.seen, report_of(sandbox)


def test_a_run_that_is_none(good: Path, sandbox: Sandbox) -> None:
    for what, change in FOLDER_CHANGES.items():
        judge(sandbox, good, f"the run is {what}", change)
    assert not sandbox.seen, report_of(sandbox)


def test_a_run_with_any_name_is_listed_in_plain_text(good: Path, sandbox: Sandbox) -> None:
    for name in NAMES:
        hostile = sandbox.storage / name
        shutil.copytree(good, hostile)
        box = Sandbox(sandbox.storage, sandbox.outside)
        for reader in ("show", "why", "ckpt"):
            args = ["ls"] if reader == "ckpt" else []
            text = command(reader, *args, str(hostile).replace("{", "{{").replace("}", "}}"))(box)
            assert not FORBIDDEN.search(text), f"{reader} of {name!a}: {text!a}"
        text = command("ls", "{storage}")(box)
        assert not FORBIDDEN.search(text)
        assert text.count("FAILED") == 2, text
        shutil.rmtree(hostile)


# --- what lies in staging when a run is opened ---


def stage_files(run: Path, rank: int = 0, world_size: int = 1, **fields: Any) -> Path:
    """A save that looks complete; returns its directory."""
    place = run / "checkpoints" / ".staging" / f"7.7.rank-{rank}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "model").write_text("weights")
    note = {**json.loads(Note(world_size, {}).to_json()), **fields}
    place.with_name(f"{place.name}.json").write_text(json.dumps(note))
    return place


def stage_manifest(run: Path, folder: str = "7.7.rank-0", **fields: Any) -> Path:
    """A save that looks committed but for its name."""
    place = run / "checkpoints" / ".staging" / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "model").write_text("weights")
    content = json.loads((run / CHECKPOINT / ".manifest.json").read_bytes())
    digest = hashlib.sha256(b"weights").hexdigest()
    content |= {"name": "checkpoint_000007", "seq": 7, "files": {"model": {"size": 7, "sha256": digest}}, **fields}
    (place / ".manifest.json").write_bytes(seal(content))
    return place


def slot_is_a_link(run: Path) -> None:
    place = stage_files(run)
    shutil.rmtree(place)
    place.symlink_to(outside_of(run) / "precious")


def slot_of_another_rank_is_a_link(run: Path) -> None:
    stage_files(run, 0, 2)
    place = stage_files(run, 1, 2)
    shutil.rmtree(place)
    place.symlink_to(outside_of(run) / "precious")


def link_on_the_way_of_another_ranks_file(run: Path) -> None:
    first, second = stage_files(run, 0, 2), stage_files(run, 1, 2)
    (first / "sub").symlink_to(outside_of(run) / "precious")
    (second / "sub").mkdir()
    (second / "sub" / "file").write_text("evil")
    (second / "sub" / "new").write_text("evil")


def adopted_folder_is_a_link(run: Path) -> None:
    stage_files(run, adopted="mine", name="mine")
    (run / "checkpoints" / "mine").symlink_to(outside_of(run) / "precious")


def adopted_folder_has_links(run: Path) -> None:
    stage_files(run, adopted="mine", name="mine")
    (run / "checkpoints" / "mine").mkdir()
    (run / "checkpoints" / "mine" / "theirs").symlink_to(outside_of(run) / "text")


def committed_folder_is_a_link(run: Path) -> None:
    place = stage_manifest(run)
    shutil.move(place, outside_of(run) / "precious" / "moved")
    place.symlink_to(outside_of(run) / "precious" / "moved")


def committed_files_are_links(run: Path) -> None:
    place = stage_manifest(run)
    (place / "model").unlink()
    (place / "model").symlink_to(outside_of(run) / "text")


def committed_under_the_name_of_a_link(run: Path) -> None:
    stage_manifest(run)
    (run / "checkpoints" / "checkpoint_000007").symlink_to(outside_of(run) / "new")


def saved_under_the_name_of_a_link(run: Path) -> None:
    stage_files(run, name="mine")
    (run / "checkpoints" / "mine").symlink_to(outside_of(run) / "new")


def temporary_names_are_links(run: Path) -> None:
    for name in ("run.json.new", f"{CHECKPOINT}/.validation.json.new", f"{CHECKPOINT}/.metadata.json.new"):
        (run / name).symlink_to(outside_of(run) / "text")
    for name in (".attempt-001.new", "attempt-002", ".attempt-002.new"):
        (run / "failures" / name).symlink_to(outside_of(run) / "precious")


def pipes_in_a_save(run: Path) -> None:
    place = stage_files(run)
    os.mkfifo(place / "pipe")
    os.mkfifo(run / "checkpoints" / ".staging" / "7.8.rank-0.json")
    (run / "checkpoints" / ".staging" / "7.8.rank-0").mkdir()


def names_of_many_digits(run: Path) -> None:
    staging = run / "checkpoints" / ".staging"
    for name in ("\u0661.2.rank-0", "007.7.rank-0", f"{'9' * 60}.{'9' * 60}.rank-{'9' * 60}", "7.7.rank-99999999"):
        (staging / name).mkdir(parents=True, exist_ok=True)
        (staging / name / "model").write_text("weights")
        (staging / f"{name}.json").write_bytes(Note(1, {}).to_json())


def foreign_handoffs(run: Path) -> None:
    staging = run / "checkpoints" / ".staging"
    staging.mkdir(exist_ok=True)
    content = {
        "format": 1,
        "attempt": 7,
        "seq": 7,
        "rank": 0,
        "source": str(outside_of(run)),
        "aside": str(outside_of(run) / "precious"),
        "boot": durable_fs.boot_id(),
        "note": json.loads(Note(1, {}).to_json()),
        "complete": True,
        "upload": None,
    }
    for number, signature in enumerate(["", None, "0" * 64, 3]):
        text = json.dumps({**content, "seq": number})
        (staging / f"7.{number}.rank-0.handoff").write_text(json.dumps([text, signature]))
    (staging / "7.9.rank-0.handoff").write_bytes(DEEP)
    os.mkfifo(staging / "7.10.rank-0.handoff")


OUTSIDE = [
    "..",
    ".",
    "../../../outside/x",
    "{outside}/x",
    "a/b",
    "",
    ".staging",
    ".hidden",
    "a\0b",
    "x" * 5000,
    "a\\b",
]
STAGING_CHANGES: dict[str, Change] = {
    **{
        made.__name__.replace("_", " "): made
        for made in (
            slot_is_a_link,
            slot_of_another_rank_is_a_link,
            link_on_the_way_of_another_ranks_file,
            adopted_folder_is_a_link,
            adopted_folder_has_links,
            committed_folder_is_a_link,
            committed_files_are_links,
            committed_under_the_name_of_a_link,
            saved_under_the_name_of_a_link,
            temporary_names_are_links,
            pipes_in_a_save,
            names_of_many_digits,
            foreign_handoffs,
        )
    },
    **{
        f"a {kind} that {what} {name!a:.40}": lambda run, make=make, field=field, name=name: make(
            run, **{field: name.format(outside=outside_of(run))}
        )
        for kind, make, field, what in (
            ("note", stage_files, "name", "calls its checkpoint"),
            ("note", stage_files, "adopted", "adopts"),
            ("manifest", stage_manifest, "name", "calls its checkpoint"),
        )
        for name in OUTSIDE
    },
    **{
        f"a manifest of a file {name!a:.40}": lambda run, name=name: stage_manifest(
            run, files={name.format(outside=outside_of(run)): {"size": 14, "sha256": "0" * 64}}
        )
        for name in OUTSIDE
    },
}


def test_files_in_staging_move_and_write_nothing_outside(good: Path, sandbox: Sandbox) -> None:
    for what, change in STAGING_CHANGES.items():
        judge(sandbox, good, what, change, readers("ls", "resume", "ls", "ckpt verify"))
    assert not sandbox.seen, report_of(sandbox)


def test_a_checkpoint_that_is_a_link_is_not_written_through(good: Path, sandbox: Sandbox) -> None:
    """Neither what is learnt of it, nor its end."""
    shutil.copytree(good, sandbox.run)
    shutil.move(sandbox.run / CHECKPOINT, sandbox.outside / "moved")
    (sandbox.run / CHECKPOINT).symlink_to(sandbox.outside / "moved")
    before = sandbox.state()
    opened = open_run(sandbox.run, "must")
    try:
        for saved in opened.recovered.kept:
            opened.backend.note_validation(saved.path, ValidationRecord(status=Status.VALIDATED))
            opened.backend.discard(saved.path)
    finally:
        opened.close()
    assert sandbox.state() == before


# --- pickles of strangers ---


def bombs(run: Path) -> None:
    """In the place of everything that is pickled, with all checksums put right."""
    data = bomb(outside_of(run) / "executed")
    packed = {"pickle": base64.b64encode(data).decode(), "signature": "0" * 64}
    (run / BUNDLE / "task.pkl").write_bytes(data)
    (run / CHECKPOINT / "pickled.pkl").write_bytes(data)
    (run / CHECKPOINT / ".validation.json").write_text(
        json.dumps({"status": Status.PENDING_VALIDATION, "kwargs": packed})
    )
    content = json.loads((run / CHECKPOINT / ".manifest.json").read_bytes())
    content["files"]["pickled.pkl"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (run / CHECKPOINT / ".manifest.json").write_bytes(seal(content))


def bombs_without_a_manifest(run: Path) -> None:
    bombs(run)
    (run / CHECKPOINT / ".manifest.json").unlink()


def bombs_of_another_run(run: Path) -> None:
    """It claims to be the user's run; its id is, its signatures are not."""
    bombs(run)
    content = json.loads((run / "run.json").read_bytes())
    (run / "run.json").write_text(json.dumps({**content, "id": "another"}))


def scene_of_a_stranger(run: Path) -> None:
    """The function is the user's, but not the modules that are imported before it is called."""
    (run / "evil.py").write_text(f"import os; os.mkdir({str(outside_of(run) / 'executed')!r})")
    content = json.loads((run / BUNDLE / "failure.json").read_bytes())
    content["scene"] |= {"sys_path": [str(run), *content["scene"]["sys_path"]], "preload": ["evil"]}
    (run / BUNDLE / "failure.json").write_text(json.dumps(content))


def open_pickles(box: Sandbox) -> str:
    """Every command that a user might run, without trust."""
    for ask in (
        lambda: train.Checkpoint(box.run / CHECKPOINT).to_dict(),
        lambda: train.Result.from_path(box.run).checkpoint.to_dict(),
        lambda: train.Checkpoint.from_directory(box.run / CHECKPOINT).to_dict(),
        lambda: unpack(read_validation(box.run / CHECKPOINT).kwargs, user_key()),
    ):
        with contextlib.suppress(HeadwayError, AttributeError):
            ask()
    return ""


def test_no_pickle_is_opened_that_is_not_proven_to_be_ours(good: Path, sandbox: Sandbox) -> None:
    everybody = {**READERS, "replay": command("replay", "{run}"), "pickles": open_pickles}
    for change in (bombs, bombs_without_a_manifest, bombs_of_another_run, scene_of_a_stranger):
        judge(sandbox, good, change.__name__, change, {"replay": everybody["replay"], **everybody})
    assert not sandbox.seen, report_of(sandbox)


def test_what_is_ours_is_opened(good: Path, sandbox: Sandbox) -> None:
    """Also after a move: a signature covers the contents, not the path."""
    shutil.copytree(good, sandbox.run)
    assert train.Result.from_path(sandbox.run).checkpoint.to_dict()["step"] == 1
    assert type(train.Checkpoint(sandbox.run / CHECKPOINT).to_dict()["odd"]).__name__ == "Odd"


def test_a_run_that_starts_from_pickles_of_the_users_other_run_opens_them(good: Path, sandbox: Sandbox) -> None:
    def look() -> str:
        checkpoint = train.get_checkpoint()
        assert checkpoint is not None
        return type(checkpoint.to_dict()["odd"]).__name__

    result = train.DataParallelTrainer(
        look,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="another", storage_path=sandbox.storage),
        resume_from_checkpoint=train.Checkpoint(good / CHECKPOINT),
    ).fit()
    assert result.return_value == "Odd"


def reported(place: Path, storage: Path, *, first: bool) -> train.Checkpoint:
    """What a run makes of a directory that its function reports, or begins with and reports again."""

    def report(config: dict[str, Any]) -> None:
        given = train.get_checkpoint() if first else train.Checkpoint.from_directory(place)
        train.report({}, checkpoint=given)

    result = train.DataParallelTrainer(
        report,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="reported", storage_path=storage),
        resume_from_checkpoint=train.Checkpoint(place) if first else None,
    ).fit()
    assert result.checkpoint is not None
    return result.checkpoint


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("change", [bombs, bombs_without_a_manifest])
def test_a_run_that_reports_pickles_of_somebody_else_does_not_prove_their_origin(
    change: Change, first: bool, good: Path, sandbox: Sandbox
) -> None:
    shutil.copytree(good, sandbox.run)
    change(sandbox.run)
    (sandbox.run / CHECKPOINT / ".validation.json").unlink()
    checkpoint = reported(sandbox.run / CHECKPOINT, sandbox.storage, first=first)
    with pytest.raises(train.StorageError, match="it is not proven that your own run wrote them"):
        checkpoint.to_dict()
    assert not sandbox.canary.exists()


def test_pickles_of_somebody_else_that_appear_after_the_check_are_not_proven(
    good: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a reported directory adds them between its check and its copy."""
    place, check = sandbox.outside / "reported", Checkpoint.own_pickles
    train.Checkpoint.from_dict({"step": 1}).to_directory(place)

    def check_too_early(checkpoint: Checkpoint) -> dict[str, str] | None:
        found = check(checkpoint)
        if not (sandbox.storage / "run").exists():
            shutil.copytree(good, sandbox.run)
            bombs_without_a_manifest(sandbox.run)
            shutil.copytree(sandbox.run / CHECKPOINT, place, dirs_exist_ok=True)
            (place / ".validation.json").unlink()
        return found

    monkeypatch.setattr(Checkpoint, "own_pickles", check_too_early)
    checkpoint = reported(place, sandbox.storage, first=False)
    with pytest.raises(train.StorageError, match="it is not proven that your own run wrote them"):
        checkpoint.to_dict()
    assert not sandbox.canary.exists()


@pytest.mark.parametrize("first", [False, True])
def test_a_run_that_reports_its_users_own_pickles_proves_their_origin(
    first: bool, good: Path, sandbox: Sandbox, tmp_path: Path
) -> None:
    """Also those of a checkpoint that was written as plain files, or copied from a run."""
    written = train.Checkpoint.from_dict({"odd": Odd()}).to_directory(tmp_path / "written")
    copied = train.Checkpoint(good / CHECKPOINT).to_directory(tmp_path / "copied")
    for number, place in enumerate([Path(written), Path(copied), good / CHECKPOINT]):
        found = reported(place, sandbox.storage / str(number), first=first).to_dict()
        assert type(found["odd"]).__name__ == "Odd"


# --- the same in a store ---


LOCKS = [b"", b"null", b"[]", DEEP, b'{"owner": 3}', b'{"pid": "x"}', b'{"time": "x"}', b'{"time": 1e999}']


def test_a_store_with_anything_in_it_is_read_in_plain_text(good: Path, sandbox: Sandbox) -> None:
    """Locks, notes, manifests, failures; nothing that is fetched leaves the directory that it is fetched to."""
    import pyarrow.fs

    filesystem = pyarrow.fs.SubTreeFileSystem(str(sandbox.storage), pyarrow.fs.LocalFileSystem())

    def read(box: Sandbox) -> str:
        for look in (
            lambda result: repr(result),
            lambda result: result.checkpoint and result.checkpoint.to_dict(),
            lambda result: result._record.failures(),
        ):
            with contextlib.suppress(HeadwayError):
                look(train.Result.from_path("run", storage_filesystem=filesystem))
        return ""

    for data in LOCKS:
        judge(
            sandbox,
            good,
            f"a lock {data[:20]!r}",
            lambda run, data=data: (run / ".lock").write_bytes(data),
            {"store": read},
        )
    for name in ("run.json", "events.jsonl", f"{CHECKPOINT}/.manifest.json", f"{CHECKPOINT}/.validation.json"):
        for what in ("gone", "empty", "no text", "null", "a list", "deep", "escapes", "too large a number"):
            change = FILE_CHANGES[what]
            judge(sandbox, good, f"{name} is {what}", lambda run, n=name, c=change: c(run / n), {"store": read})
    judge(sandbox, good, "pickles", bombs, {"store": read})
    assert not sandbox.seen, report_of(sandbox)


def test_copies_of_a_store_are_never_made_in_a_directory_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name = f"headway-copies-{os.getuid()}"
    (tmp_path / "theirs").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "theirs")
    (tmp_path / f"{name}-2").mkdir()
    (tmp_path / f"{name}-2").chmod(0o777)
    assert download_cache._copies() == tmp_path / f"{name}-3"


# --- what is written of secrets, and who may read it ---


@dataclasses.dataclass
class Login:
    user: str
    passphrase: str


def test_secrets_are_not_stored_and_other_users_cannot_read_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: dict[str, Any]) -> None:
        def connect(url: str, pwd: str) -> None:
            raise ConnectionError(f"{url} refuses: password={pwd}")

        train.report({"x": 1})
        connect(config["url"], config["pwd"])

    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key=S3cret-argv", "--token", "S3cret-flag"])
    monkeypatch.setenv("PGPASSWORD", "S3cret-env")
    config = {
        "login": Login("me", "S3cret-field"),
        "nested": [{"aws_access_key_id": "S3cret-id"}, {"header": {"Cookie": "S3cret-cookie"}}],
        "url": "postgres://me:S3cret-url@db/x",
        "pwd": "S3cret-pwd",
        "jwt": "S3cret-jwt",
    }
    before = os.umask(0)
    try:
        trainer = train.DataParallelTrainer(
            fail,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(1),
            run_config=train.RunConfig(name="run", storage_path=tmp_path),
        )
        with pytest.raises(train.TrainingFailedError):
            trainer.fit()
    finally:
        os.umask(before)
    run = tmp_path / "run"
    found = [run, *run.rglob("*")]
    told = {
        path.name: secrets
        for path in found
        if path.is_file() and path.name != "task.pkl"  # the function itself, as it was packed
        if (secrets := set(re.findall(rb"S3cret-\w+", path.read_bytes())))
    }
    assert not told
    assert "S3cret" not in command("show", str(run))(Sandbox(tmp_path, tmp_path))
    assert "S3cret" not in command("why", str(run))(Sandbox(tmp_path, tmp_path))
    assert run.stat().st_mode & 0o777 == 0o700
    readable = [path.name for path in found if path.is_file() and path.stat().st_mode & 0o077 and path.name != ".lock"]
    assert not readable
    with pytest.raises(train.ConfigError, match=r"pass train_loop_config to restore\(\) again"):
        train.DataParallelTrainer.restore(run, fail)


def test_other_users_cannot_read_or_write_what_a_run_saves(tmp_path: Path) -> None:
    """Also not after ``chmod -R g+rX``, by which a run is shared: it gives the group no right to write."""

    def save() -> None:
        (tmp_path / "mine" / "below").mkdir(parents=True)
        (tmp_path / "mine" / "below" / "weights").write_text("weights")
        train.report({}, train.Checkpoint.from_directory(tmp_path / "mine"))
        train.report({}, train.Checkpoint.from_dict({"step": 1}))
        raise ValueError

    before = os.umask(0)
    try:
        trainer = train.DataParallelTrainer(
            save,
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(name="run", storage_path=tmp_path / "runs"),
        )
        with pytest.raises(train.TrainingFailedError):
            trainer.fit()
    finally:
        os.umask(before)
    found = [path for path in (tmp_path / "runs" / "run").rglob("*") if path.name != ".lock"]
    assert {"weights", "dict.json", "logs", "failures"} <= {path.name for path in found}
    assert not [str(path) for path in found if path.stat().st_mode & 0o077]


def test_a_directory_of_copies_that_somebody_makes_meanwhile_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and the creation."""
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/copies/checkpoint/file", b"weights")
    precious = tmp_path / "precious"
    precious.write_text("the user's own")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    look, store = download_cache._copies, open_store("memory://copies/checkpoint")

    def look_too_early() -> Path:
        found = look()
        if not found.exists() and not list(tmp_path.glob("headway-copies-*")):
            place = found / hashlib.sha256(store.identity.encode()).hexdigest()[:24]
            place.mkdir(parents=True)
            (place / "making").symlink_to(precious)
            found.chmod(0o777)
        return found

    monkeypatch.setattr(download_cache, "_copies", look_too_early)
    with download_cache.copy_of(store) as folder:
        assert folder.parent.parent.name.endswith("-2")
        assert (folder / "file").read_bytes() == b"weights"
    assert precious.read_text() == "the user's own"


def test_replay_opens_nothing_that_an_unproven_failure_names(good: Path, sandbox: Sandbox) -> None:
    """An address in there would be connected to."""
    shutil.copytree(good, sandbox.run)
    summary = json.loads((sandbox.run / BUNDLE / "failure.json").read_text())
    summary["checkpoint"] = "ftp://127.0.0.1:9/checkpoint"
    (sandbox.run / BUNDLE / "failure.json").write_text(json.dumps(summary))
    assert "it is not proven that your own run wrote" in command("replay", "{run}")(sandbox)


@pytest.mark.parametrize("moment", range(5))
def test_replay_uses_the_failure_that_it_has_verified(
    moment: int, good: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user replaces failure.json between two reads, and back."""
    shutil.copytree(good, sandbox.run)
    read, reads = failure_bundle.read_json, itertools.count()

    def read_while_it_is_replaced(path: Path) -> Any:
        content = read(path)
        if next(reads) == moment:
            content["scene"] |= {"preload": ["evil"], "sys_path": [str(sandbox.outside)]}
        return content

    monkeypatch.setattr(failure_bundle, "read_json", read_while_it_is_replaced)
    with contextlib.suppress(train.StorageError):
        found = replay.find(RunReader.at(sandbox.run))
        assert "evil" not in found.scene.preload


@pytest.mark.parametrize("name", [f"{BUNDLE}/task.pkl", f"{CHECKPOINT}/pickled.pkl"])
def test_a_pickle_of_terabytes_is_one_sentence(name: str, good: Path, sandbox: Sandbox) -> None:
    """It consists of holes, and takes no room on the stranger's disk."""
    shutil.copytree(good, sandbox.run)
    with (sandbox.run / name).open("r+b") as file:
        file.truncate(1 << 43)
    manifest = sandbox.run / CHECKPOINT / ".manifest.json"
    content = json.loads(manifest.read_bytes())
    content["files"]["pickled.pkl"]["size"] = (sandbox.run / CHECKPOINT / "pickled.pkl").stat().st_size
    manifest.write_bytes(seal(content))
    if name.startswith(BUNDLE):
        assert "task.pkl does not fit into the memory" in command("replay", "{run}")(sandbox)
    else:
        with pytest.raises(train.StorageError, match="it is not proven that your own run wrote them"):
            train.Result.from_path(sandbox.run).checkpoint.to_dict()


def test_a_copy_by_hard_links_is_not_written_through(good: Path, sandbox: Sandbox) -> None:
    """As backups are made (``cp -al``): what continues in one must not change the other."""
    shutil.copytree(good, sandbox.outside / "backup")
    (sandbox.outside / "backup" / "run.json.new").write_text("of a program that was killed")
    before = sandbox.state()
    shutil.copytree(sandbox.outside / "backup", sandbox.run, copy_function=os.link)
    train.DataParallelTrainer(
        lambda: print("more"),
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(name="run", storage_path=sandbox.storage),
    ).fit()
    assert "[r0] more\n" in command("logs", "{run}")(sandbox)
    assert sandbox.state() == before


def test_a_name_that_no_file_can_have_is_one_sentence(sandbox: Sandbox) -> None:
    for args in (["show", "x" * 300], ["rm", "--yes", "x" * 300], ["ls", "x" * 300]):
        assert "File name too long" in command(*args)(sandbox)


def test_an_error_is_plain_text_whatever_it_quotes(good: Path, sandbox: Sandbox) -> None:
    """Python prints it as it is, where no one catches it: the text of a lock, the names of files."""
    shutil.copytree(good, sandbox.run)
    (sandbox.run / ".lock").write_text(ESCAPES)
    (sandbox.storage / ESCAPES.replace("/", "")).write_text("no Parquet")
    with (sandbox.run / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(train.StorageError, match="is open in") as held:
            open_run(sandbox.run, "must")
    with pytest.raises(train.DataError) as unreadable:
        headway.data.read_parquet(sandbox.storage / ESCAPES.replace("/", "")).count()
    for error in (held, unreadable):
        assert not FORBIDDEN.search(str(error.value))


def test_a_log_that_is_a_link_to_nowhere_is_one_sentence(good: Path, sandbox: Sandbox) -> None:
    shutil.copytree(good, sandbox.run)
    replaced_by("{outside}/new")(sandbox.run / "logs" / "rank-0.out")
    assert "rank-0.out was removed, or is a broken link" in command("logs", "{run}")(sandbox)


def test_a_log_that_is_a_hole_of_terabytes_is_skipped(good: Path, sandbox: Sandbox) -> None:
    shutil.copytree(good, sandbox.run)
    with (sandbox.run / "logs" / "rank-0.out").open("r+b") as file:
        file.truncate(1 << 42)
        file.seek(0, os.SEEK_END)
        file.write(b"the last line\n")
    with limited(PATIENCE_S):
        text = command("logs", "{run}")(sandbox)
    assert "a line of output" in text
    assert "[r0] the last line" in text.replace("\\x00", "")
    assert len(text) < 1 << 20


def test_a_run_whose_id_or_path_is_no_text_can_be_asked_to_stop(tmp_path: Path) -> None:
    with pytest.raises(control_socket.ControlError, match="cannot be reached"):
        control_socket.ask("\ud800", str(tmp_path / "\udcff"), "stop")
    stopped = threading.Event()
    with control_socket.ControlSocket("\ud800", str(tmp_path / "\udcff"), {"stop": stopped.set}):
        control_socket.ask("\ud800", str(tmp_path / "\udcff"), "stop")[1].close()
    assert stopped.is_set()


def test_shards_that_are_no_files_of_the_checkpoint_are_not_read(tmp_path: Path) -> None:
    """torch unpickles them; a pipe or a linked directory has no checksum that could be compared."""
    shards, elsewhere = tmp_path / "shards", tmp_path / "elsewhere"
    for place in (shards, elsewhere):
        place.mkdir()
    os.mkfifo(shards / ".metadata")
    with pytest.raises(train.StorageError, match=r"\.metadata is not a regular file"):
        ShardedReader(shards, Proof(tmp_path))
    (shards / ".metadata").unlink()
    (shards / "linked").symlink_to(elsewhere)
    with pytest.raises(train.StorageError, match="linked is not a regular file"):
        ShardedReader(shards, Proof(tmp_path))


@pytest.fixture
def shards(tmp_path: Path) -> tuple[Path, Proof]:
    """A sharded checkpoint with a pickled value next to its tensors, as older versions wrote it."""
    folder = tmp_path / "checkpoint" / "shards"
    saved = {"weight": torch.ones(3), "lr": 0.1}
    torch.distributed.checkpoint.save(saved, storage_writer=FileSystemWriter(folder), no_dist=True)
    return folder, Proof(
        folder.parent, {path.relative_to(folder.parent).as_posix(): checksum(path) for path in folder.iterdir()}
    )


def load_shards(reader: ShardedReader) -> dict[str, Any]:
    state = {"weight": torch.zeros(3), "lr": 0.0}
    torch.distributed.checkpoint.load(state, storage_reader=reader, planner=_Planner(reader), no_dist=True)
    return state


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_metadata_of_shards_that_is_replaced_after_its_check_is_not_opened(
    shards: tuple[Path, Proof], tmp_path: Path
) -> None:
    folder, proof = shards
    reader = ShardedReader(folder, proof)
    (folder / ".metadata").write_bytes(bomb(tmp_path / "executed"))
    assert load_shards(reader)["weight"].tolist() == [1, 1, 1]
    with pytest.raises(train.StorageError, match=r"\.metadata has changed since it was committed"):
        ShardedReader(folder, proof)
    assert not (tmp_path / "executed").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_value_between_shards_that_is_replaced_after_its_check_is_not_opened(
    shards: tuple[Path, Proof], tmp_path: Path
) -> None:
    folder, proof = shards
    assert load_shards(ShardedReader(folder, proof))["lr"] == 0.1
    reader = ShardedReader(folder, proof)
    metadata = reader.read_metadata()
    place = next(stored for index, stored in metadata.storage_data.items() if index.fqn == "lr")
    with (folder / place.relative_path).open("r+b") as file:
        file.seek(place.offset)
        file.write(bomb(tmp_path / "executed").ljust(place.length, b"\0"))
    with pytest.raises(CheckpointException, match="changed while it was read"):
        load_shards(reader)
    with pytest.raises(train.StorageError, match="has changed since it was committed"):
        ShardedReader(folder, proof)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["checkpoints", CHECKPOINT])
def test_a_directory_that_may_not_be_read_is_one_sentence(
    name: str, good: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions would not stop root, so the calls are made to fail."""
    shutil.copytree(good, sandbox.run)
    refused, listdir, stat = sandbox.run / name, os.listdir, os.stat

    def list_unless_refused(path: Any = ".") -> Any:
        if Path(path) == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    def stat_unless_refused(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(path, int) and refused in Path(os.fsdecode(path)).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "listdir", list_unless_refused)
    monkeypatch.setattr(os, "stat", stat_unless_refused)
    for reader in ("show", "ckpt ls", "ckpt why", *(["ckpt verify"] if name == "checkpoints" else [])):
        assert "cannot be read: Permission denied" in READERS[reader](sandbox)


# --- a run that resumes in such a directory ---


def resealed(change: Callable[[dict[str, Any]], object]) -> Change:
    """Its checkpoint, with another manifest."""

    def changed(run: Path) -> None:
        content = json.loads((run / CHECKPOINT / ".manifest.json").read_bytes())
        change(content)
        (run / CHECKPOINT / ".manifest.json").write_bytes(seal(content))

    return changed


def event(**fields: Any) -> Change:
    return lambda run: tail(as_json({"time": 1.0, **fields}) + b"\n")(run / "events.jsonl")


def called(name: str, manifest: str | None = None) -> Change:
    """A checkpoint of this name more: without a manifest, with this one, or as good as the other ("")."""

    def made(run: Path) -> None:
        place = run / "checkpoints" / name
        shutil.copytree(run / CHECKPOINT, place) if manifest == "" else place.mkdir()
        if manifest:
            (place / ".manifest.json").write_text(manifest)

    return made


LARGEST = 1 << 62
GOING_ON: dict[str, Change] = {
    "a number of twenty digits in a name": called("checkpoint_99999999999999999999"),
    "the largest number in a name": called(f"checkpoint_{LARGEST}"),
    "a date in a name": called("checkpoint_20261119060512123456", ""),
    "as many digits as a name can have": called(f"checkpoint_{'9' * 240}"),
    "a long name": called("x" * 255, ""),
    "a long name, and it is damaged": called("x" * 255, "{}"),
    "the largest number of an attempt": event(event="state", state="RUNNING", attempt=LARGEST),
    "an attempt beyond the largest": event(event="state", state="RUNNING", attempt=LARGEST + 1),
    "a checkpoint of the largest attempt": resealed(lambda manifest: manifest.update(attempt=LARGEST)),
    "a checkpoint of the largest report": resealed(lambda manifest: manifest.update(seq=LARGEST)),
    "a checkpoint of the largest number": resealed(lambda manifest: manifest.update(number=LARGEST)),
    "a file with a path that is too long": resealed(
        lambda manifest: manifest["files"].update({"a/" * 2040 + "b": {"size": 1, "sha256": "0" * 64}})
    ),
    "hundreds of files that are not there": resealed(
        lambda manifest: manifest["files"].update({str(n): {"size": 1, "sha256": "0" * 64} for n in range(500)})
    ),
    "a name of a million letters": resealed(lambda manifest: manifest.update(name="../" + "x" * 1_000_000)),
    "a deep config": lambda run: (run / "run.json").write_bytes(
        as_json(with_value(json.loads((run / "run.json").read_bytes()), ("openings", 0, "scaling_config"), nested(450)))
    ),
    "a long config": lambda run: (run / "run.json").write_bytes(
        as_json(
            with_value(
                json.loads((run / "run.json").read_bytes()), ("openings", 0, "scaling_config"), {"x": "y" * 10**6}
            )
        )
    ),
}


def learn_more(config: dict[str, Any]) -> None:
    for step in range(2):
        train.report({"more": step}, train.Checkpoint.from_dict({"more": step}))


def continue_run(box: Sandbox) -> str:
    """Once more under the same name, and what it has saved is there, also for the time after that."""
    for _ in range(2):
        try:
            result = train.DataParallelTrainer(
                learn_more,
                scaling_config=train.ScalingConfig(num_workers=0),
                run_config=train.RunConfig(name=box.run.name, storage_path=box.storage),
            ).fit()
        except HeadwayError as error:
            return sentence(error)
        kept = [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints[-2:]]
        assert kept == [{"more": 0}, {"more": 1}], f"not there any more: {kept}"
        assert result.state == "FINISHED"
        assert result.metrics == {"more": 1}
    return ""


@pytest.mark.parametrize("name", GOING_ON)
def test_a_run_saves_in_such_a_directory(
    name: str, good: Path, sandbox: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    everybody = {**READERS, "continue": continue_run}
    judge(sandbox, good, name, GOING_ON[name], {each: everybody[each] for each in everybody if each != "resume"})
    assert not sandbox.seen, report_of(sandbox)
    told = capfd.readouterr().err
    assert all(len(line) < 2000 for line in told.splitlines())


@pytest.mark.parametrize("name", ["x" * 250, "checkpoint_" + "9" * 240])
def test_a_checkpoint_with_a_long_name_is_removed(name: str, good: Path, sandbox: Sandbox) -> None:
    shutil.copytree(good, sandbox.run)
    called(name, "")(sandbox.run)
    assert f"{name} removed" in command("ckpt", "rm", "{run}", name, "--force")(sandbox)
    assert [each.name for each in sandbox.run.glob("checkpoints/[!.]*")] == ["checkpoint_000000"]
    assert not list(sandbox.run.glob("checkpoints/.staging/*"))


@pytest.mark.parametrize(
    "cursor",
    [5, {}, {"position": 5}, {"position": {}}, {"positions": [5]}, {"positions": 5}, {"position": {"files": "x"}}],
)
def test_a_place_in_a_dataset_that_is_none_is_one_sentence(cursor: Any, good: Path, sandbox: Sandbox) -> None:
    shutil.copytree(good, sandbox.run)
    resealed(lambda manifest: manifest["cursor"].update(datasets={"train": cursor}))(sandbox.run)
    with pytest.raises(train.StorageError, match="checkpoint_000000 is damaged: its position in dataset train"):
        train.DataParallelTrainer(
            learn,
            scaling_config=train.ScalingConfig(num_workers=1),
            run_config=train.RunConfig(name="run", storage_path=sandbox.storage),
            datasets={"train": headway.data.range(8)},
        ).fit()


def test_a_stall_that_the_journal_says_nothing_of_is_explained(good: Path, sandbox: Sandbox) -> None:
    shutil.copytree(good, sandbox.run)
    summary = json.loads((sandbox.run / BUNDLE / "failure.json").read_bytes())
    del summary["failures"]
    (sandbox.run / BUNDLE / "failure.json").write_text(json.dumps(summary))
    (sandbox.run / "events.jsonl").write_text(json.dumps({"event": "stall", "time": summary["time"] + 1}) + "\n")
    assert "attempt 1 stalled" in command("why", "{run}")(sandbox)
