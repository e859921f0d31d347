"""The messages between workers and their controller, the same for every engine.

    worker                                         controller
      │── Ready ────────────────────────────────────▶│  my process is running, on this host, with these devices
      │◀───────────────────────────────────── Start ─│  your rank, your function, where to resume
      │── Report, Report, … ────────────────────────▶│  metrics, optionally with files in staging
      │── SaveStarted, FilesStaged ─────────────────▶│  files are being staged; the pending files are staged
      │◀────── CheckpointCommitted | FilesDiscarded ─│  the checkpoint is durable; your files are in no checkpoint
      │── UploadRequest ────────────────────────────▶│  (object stores) where do these files go, which do I upload?
      │◀─────────────────────────────── UploadGrant ─│
      │── AutosaveEnabled ──────────────────────────▶│  my state can be saved at any report
      │◀───────────────────────── RequestNextReport ─│  what is your next report? wait after it
      │── NextReport ───────────────────────────────▶│
      │◀────────────────────────────── SaveAtReport ─│  save at this report, and stop after it if asked to
      │── Heartbeat ────────────────────────────────▶│  my progress, at regular intervals
      │◀───────────────────────────── RequestStacks ─│
      │── StackDump ────────────────────────────────▶│
      │── PreemptionNotice ─────────────────────────▶│  I received SIGTERM
      │◀───────────────────────── PreemptionWarning ─│  these ranks will be preempted
      │── BarrierArrival ───────────────────────────▶│
      │◀──────────────────────────── BarrierRelease ─│  all ranks have arrived
      │── BatchCount ───────────────────────────────▶│  number of batches that I have in an epoch
      │◀────────────────────────── CommonBatchCount ─│  number of batches that every rank has
      │── DataStats ────────────────────────────────▶│  statistics of my data pipelines, at regular intervals
      │── CheckpointQuery ──────────────────────────▶│
      │◀──────────────────────────── CheckpointList ─│
      │── FunctionReturned | FunctionFailed ────────▶│
      │◀─────────────────────────────── ExitAllowed ─│  all functions have returned
      │── WorkerIdle ───────────────────────────────▶│  (persistent workers) to the engine: ready for another Start
      ╳── WorkerExited ─────────────────────────────▶│  from the engine: exactly one per worker, the last message

A process that validates a checkpoint sends Ready, receives RunValidation, and answers with ValidationReturned or
FunctionFailed.

Messages contain user objects as opaque cloudpickle bytes. They contain metrics as the JSON text that is written to
``metrics.jsonl``, so that the controller passes metrics on without parsing them.

A new message is a class in :mod:`to_worker <headway.core.messages.to_worker>` or
:mod:`to_controller <headway.core.messages.to_controller>` and a member of the union at the end of that module; the wire
format follows from the union, and mypy names the handlers that lack a case for it.
"""

from headway.core.messages.inbox_events import *  # noqa: F403 (each message's name is written in one module only)
from headway.core.messages.to_controller import *  # noqa: F403
from headway.core.messages.to_worker import *  # noqa: F403
from headway.core.messages.worker_setup import *  # noqa: F403
