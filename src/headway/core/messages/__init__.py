"""The messages between workers and their controller, the same for every engine.

    worker                                         controller
      │── Ready ────────────────────────────────────▶│  the process runs, on this host, with these devices
      │◀───────────────────────────────────── Start ─│  your ranks, your function, where to resume
      │── Report, Report, … ────────────────────────▶│  metrics, perhaps with files in staging
      │── SaveStarted, FilesStaged ─────────────────▶│  files are being staged; the late ones are staged now
      │◀────── CheckpointCommitted | FilesDiscarded ─│  the checkpoint is durable; your files for it came too late
      │── UploadRequest ────────────────────────────▶│  (object stores) where do these files go, which are mine?
      │◀─────────────────────────────── UploadGrant ─│
      │── AutosaveEnabled ──────────────────────────▶│  my state can be saved in any report
      │◀───────────────────────── RequestNextReport ─│  which report comes next? wait after it
      │── NextReport ───────────────────────────────▶│
      │◀────────────────────────────── SaveAtReport ─│  save in this report, and perhaps stop
      │── Heartbeat ────────────────────────────────▶│  my progress, now and then
      │◀───────────────────────────── RequestStacks ─│
      │── StackDump ────────────────────────────────▶│
      │── PreemptionNotice ─────────────────────────▶│  I received SIGTERM
      │◀───────────────────────── PreemptionWarning ─│  these ranks will be preempted
      │── BarrierArrival ───────────────────────────▶│
      │◀──────────────────────────── BarrierRelease ─│  all ranks are there
      │── BatchCount ───────────────────────────────▶│  the batches of an epoch that I have
      │◀────────────────────────── CommonBatchCount ─│  the batches that every rank has
      │── DataStats ────────────────────────────────▶│  statistics of my data pipelines, now and then
      │── CheckpointQuery ──────────────────────────▶│
      │◀──────────────────────────── CheckpointList ─│
      │── FunctionReturned | FunctionFailed ────────▶│
      │◀─────────────────────────────── ExitAllowed ─│  all functions have returned
      │── WorkerIdle ───────────────────────────────▶│  (persistent workers) to the engine: I wait for another Start
      ╳── WorkerExited ─────────────────────────────▶│  from the engine: exactly one per worker, and its last

A process that validates a checkpoint sends Ready, receives RunValidation, and answers ValidationReturned or
FunctionFailed.

User objects travel inside as opaque cloudpickle bytes. Metrics travel as the JSON text that is written to
``metrics.jsonl``, so that the controller moves them without parsing.

A new message is a class in :mod:`to_worker <headway.core.messages.to_worker>` or
:mod:`to_controller <headway.core.messages.to_controller>` and a member of the union at the end of that module; the wire
format follows from the union, and mypy names the handlers that lack a case for it.
"""

from headway.core.messages.inbox_events import *  # noqa: F403 (a message is named in one place only)
from headway.core.messages.to_controller import *  # noqa: F403
from headway.core.messages.to_worker import *  # noqa: F403
from headway.core.messages.worker_setup import *  # noqa: F403
