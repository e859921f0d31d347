"""Traces of torch's profiler in a worker, in a form that can be reported."""

from __future__ import annotations

import base64
import gzip
import os
import tempfile
import time
from typing import Any

from headway.worker.session import current

TRACES = "_pytorch_profiler_traces"  # (file name, content) pairs; the content is compressed and in base64


class TorchWorkerProfiler:
    """The collector of traces from ``torch.profiler.profile(on_trace_ready=profiler.trace_handler)``.

    ``train.report(..., **profiler.get_and_clear_profile_traces())`` sends them to the driver, where a
    ``TorchTensorboardProfilerCallback`` writes them to disk.
    """

    def __init__(self, trace_dir: str | None = None) -> None:
        self._trace_dir = trace_dir
        self._traces: list[tuple[str, str]] = []

    def trace_handler(self, profile: Any) -> None:
        """Collect a trace; to be passed as ``on_trace_ready``."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profile.export_chrome_trace(path)
            with open(path, "rb") as file:
                data = file.read()
        rank = current("TorchWorkerProfiler.trace_handler").rank
        name = f"worker_{rank}_{len(self._traces)}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
        compressed = gzip.compress(data)
        if self._trace_dir is not None:
            os.makedirs(self._trace_dir, exist_ok=True)
            with open(os.path.join(self._trace_dir, name), "wb") as file:
                file.write(compressed)
        self._traces.append((name, base64.b64encode(compressed).decode()))

    def get_and_clear_profile_traces(self) -> dict[str, Any]:
        """Return the traces collected since the last call, to be reported with the metrics."""
        traces, self._traces = self._traces, []
        return {TRACES: [list(trace) for trace in traces]}
