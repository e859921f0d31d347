"""Run directories that strangers have made, or that are damaged: nothing of them is executed, nothing is written
outside, nothing hangs, and whoever reads them hears one clear sentence.

One good run is made. Each case is a copy of it with one thing changed: a file is replaced by something that is no file,
or holds what it should not; one value of its JSON is replaced; names are turned into paths; pickles into bombs. Then
everything that reads run directories reads it, in this process.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import headway.data
from headway import train
from headway.cli import main
from headway.core.errors import HeadwayError
from headway.storage import layout
from headway.storage.manifest import _sealed
from headway.storage.opening import open_run
from headway.storage.record import Record

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
    """A storage directory with the hostile run and a good one beside it, and what lies outside of it."""

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
        """What lies outside, to see whether anything of it was touched."""
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
    """A command of ours; what it says. It is never a traceback: that would be an exception here."""

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
            answers.append(str(look(train.Result.from_path(box.run)))[:0])
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
                opened.recovered.kept[-1].checkpoint().proven_by(opened.key).to_dict()
        opened.note("seen")
        opened.record(b'{"attempt": 9, "first_seq": 9}\n')
        opened.append_data(b"{}\n")
        opened.describe({"function": "learn"})
        opened.differences({})
        return "".join(sentence_of(note) for note in opened.recovered.notes)
    finally:
        opened.close()


def sentence(error: HeadwayError) -> str:
    """What the error says, which the command line would show."""
    return sentence_of(str(error))


def sentence_of(text: str) -> str:
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
    """Make the case, have everybody read it, and note what went wrong."""
    shutil.rmtree(box.run, ignore_errors=True)
    box.run.unlink(missing_ok=True) if box.run.is_symlink() or box.run.exists() else None
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
    for what, change in FILE_CHANGES.items():
        judge(sandbox, good, f"{name} is {what}", lambda run, change=change: change(run / name))
    assert not sandbox.seen, report_of(sandbox)


# --- JSON of the right form, with one value that is not what it should be ---

MISSING = object()
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


def as_json(value: Any) -> bytes:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value).encode()
    finally:
        sys.set_int_max_str_digits(limit)


def seal(value: Any) -> bytes:
    """A manifest with its checksum put right: whoever makes one can do that."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(_sealed(value), indent=1).encode() + b"\n"
    finally:
        sys.set_int_max_str_digits(limit)


def wrong_values(text: bytes) -> Iterator[tuple[str, Any]]:
    """Every value in there once replaced by something else; which, goes round and round."""
    value, kinds = json.loads(text), list(VALUES.items())
    for number, path in enumerate(paths_in(value)):
        chosen = kinds if EVERY_VALUE else [kinds[(2 * number + step) % len(kinds)] for step in (0, 1)]
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
