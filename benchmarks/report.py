"""What does ``report()`` cost? Two workers report metrics as fast as they can; Ray Train beside them.

    python benchmarks/report.py [--count 100000] [--ray-count 8]

The first hundred reports are a run of their own, so that memory is compared between a warm process and the same
process after ``count`` more.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile

from common import at_least, at_most, program, publish, run


def main() -> int:
    parser = argparse.ArgumentParser(description="What does report() cost?")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--ray-count", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _, marks, output = run([sys.executable, program("report_headway"), folder, str(args.count)], 300)
        if "rows" not in marks:
            print(output, file=sys.stderr)
            return 1
        rays = None
        if args.ray_count and importlib.util.find_spec("ray"):
            _, ray_marks, _ = run([sys.executable, program("report_ray"), folder, str(args.ray_count)], 180)
            rays = min(ray_marks.get("rate", []), default=None)
    # The last two values of each are those of the long run, one per worker.
    ours = {
        "reports/s per worker": min(marks["rate"][-2:]),
        "p50 us": max(marks["p50_us"][-2:]),
        "p99 us": max(marks["p99_us"][-2:]),
        "worker memory growth MiB": max(marks["worker_growth_mib"][-2:]),
        "driver memory growth MiB": marks["driver_growth_mib"][0],
        "rows in metrics_dataframe": int(marks["rows"][0]),
    }
    claims = {
        "p50 <= 50 us": at_most(50, ours["p50 us"]),
        "p99 <= 2 ms": at_most(2000, ours["p99 us"]),
        ">= 5,000 reports/s per worker": at_least(5000, ours["reports/s per worker"]),
        "worker memory grows by <= 16 MiB": at_most(16, ours["worker memory growth MiB"]),
        "driver memory grows by <= 32 MiB": at_most(32, ours["driver memory growth MiB"]),
        "none is lost": ours["rows in metrics_dataframe"] == args.count + 1,
    }
    return publish("report", {"headway": ours, "ray train": {"reports/s per worker": rays}}, claims)


if __name__ == "__main__":
    sys.exit(main())
