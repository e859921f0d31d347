"""What does a save cost the training? 256 MiB in every mode, beside torch.save and cp of the same file; and Ray Train.

    python benchmarks/save.py [--mib 256] [--rounds 7]

One worker with one CPU thread, so that there is a core for whoever else has work to do, as there is beside a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile

from common import at_least, at_most, median, program, publish, run


def main() -> int:
    parser = argparse.ArgumentParser(description="What does a save cost the training?")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ray-rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="saves-") as folder:
        command = [sys.executable, program("save_headway"), folder, str(args.mib), str(args.rounds)]
        _, marks, output = run(command, 500)
        if "steps_during_save" not in marks:
            print(output, file=sys.stderr)
            return 1
    rays: dict[str, float | None] = {}
    if args.ray_rounds and importlib.util.find_spec("ray"):
        with tempfile.TemporaryDirectory(prefix="saves-") as folder:
            command = [sys.executable, program("save_ray"), folder, str(args.mib), str(args.ray_rounds)]
            _, theirs, _ = run(command, 240)
            rays = {name: median(values) for name, values in theirs.items()}
    ratios = {
        "sync / cp": median(_ratios(marks, "sync", "cp")),
        "rename / cp": median(_ratios(marks, "rename", "cp")),
        "async / torch.save": median(_ratios(marks, "async", "save")),
        "steps/s during an async save": median(marks["steps_during_save"]),
    }
    seconds = {name: median(values) for name, values in marks.items() if name.endswith("_s")}
    claims = {
        "sync <= 1.2 x cp": at_most(1.2, ratios["sync / cp"]),
        "rename <= 0.05 x cp": at_most(0.05, ratios["rename / cp"]),
        "async <= 0.1 x torch.save": at_most(0.1, ratios["async / torch.save"]),
        "steps/s during an async save >= 0.9 of normal": at_least(0.9, ratios["steps/s during an async save"]),
    }
    return publish("save", {"seconds (median)": seconds, "ratios": ratios, "ray train, seconds": rays}, claims)


def _ratios(marks: dict[str, list[float]], mode: str, beside: str) -> list[float]:
    return [a / b for a, b in zip(marks[f"{mode}_blocked_s"], marks[f"{mode}_{beside}_s"], strict=True)]


if __name__ == "__main__":
    sys.exit(main())
