"""Everything that only a GPU can tell, in one command of several parts.

    make gpu                                         # all parts, into runs/gpu
    PYTHONPATH=src python benchmarks/gpu_day.py --parts tests,layer
    PYTHONPATH=src python benchmarks/gpu_day.py --rehearse --out /tmp/rehearsal

Parts run one after another, each within its own limit of time, with its output in `PART.log`.
`parts.json` says how each ended; a finished part is not run again, and an unfinished one continues
where its command can (runs of the arena do). A part that fails does not stop the others. With
`--rehearse` every command has tiny sizes and runs on the CPU.
"""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATE = "parts.json"
DONE, FAILED, UNFINISHED = "done", "failed", "unfinished"
GRACE = 30.0  # seconds for a command to end after it was interrupted
PYTHON = sys.executable
LONGSPAN = (PYTHON, "-m", "longspan")


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the day.

    Attributes:
        name: name.
        limit: seconds after which it is interrupted.
        command: command on a GPU; `{out}` is the folder of the results.
        rehearsal: the same command with tiny sizes, on the CPU.
    """

    name: str
    limit: float
    command: tuple[str, ...]
    rehearsal: tuple[str, ...]


def bench(suite: str, *more: str) -> tuple[str, ...]:
    return (*LONGSPAN, "bench", suite, *more, "--runs", "{out}/runs")


def script(name: str, *more: str) -> tuple[str, ...]:
    return (PYTHON, f"benchmarks/{name}.py", *more, "--out", f"{{out}}/{name}.json")


def arena(*more: str) -> tuple[str, ...]:
    return (*LONGSPAN, "arena", *more, "--cache", "{out}/cache", "--runs", "{out}/runs")


TINY = (
    *("--device", "cpu", "--lengths", "32,64", "--hidden-size", "32", "--heads", "2"),
    *("--batch-size", "1", "--times", "1", "--mechanisms", "local"),
)
NARROW = ("--dtypes", "bfloat16")
GPU_TESTS = ("tests/attention", "tests/models", "tests/test_memory.py")
TINY_RUN = (
    *("--protocol", "quick", "--tasks", "recall", "--mechanisms", "local", "--device", "cpu"),
    *("--set", "training.steps=2", "--set", "training.evaluate_every=1"),
)
PARTS = (
    Part(
        "environment",
        60,
        (PYTHON, "benchmarks/gpu_environment.py", "--out", "{out}/environment.json"),
        (PYTHON, "benchmarks/gpu_environment.py", "--out", "{out}/environment.json"),
    ),
    Part(
        "tests",
        420,
        # Other tests need packages that a GPU machine may lack.
        (PYTHON, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-n", "8", *GPU_TESTS),
        (PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         "tests/test_space.py"),
    ),
    Part("quick", 400, arena("--protocol", "quick", "--workers", "6"), arena(*TINY_RUN)),
    Part(
        "kernels",
        500,
        script("linear_kernels", "--device", "cuda"),
        script("linear_kernels", *("--device", "cpu", "--lengths", "20", "--tokens", "20"),
               *("--widths", "8", "--dtypes", "float32", "--mechanisms", "linear", "--runs", "1")),
    ),
    Part(
        "recurrences",
        300,
        script("recurrence_kernels", "--device", "cuda"),
        script("recurrence_kernels", *("--device", "cpu", "--lengths", "20", "--tokens", "20"),
               *("--widths", "8", "--dtypes", "float32", "--rules", "ssd", "--runs", "1")),
    ),
    Part("layer", 300, bench("layer", *NARROW), bench("layer", *TINY)),
    Part("scaling", 500, bench("scaling", *NARROW), bench("scaling", *TINY)),
    Part("windows", 400, bench("windows", *NARROW), bench("windows", *TINY)),
    Part("lra-speed", 400, bench("lra-speed", *NARROW), bench("lra-speed", *TINY)),
    Part("decoding", 200, bench("decoding", *NARROW), bench("decoding", *TINY)),
    Part(
        "models",
        300,
        script("models", "--device", "cuda", "--dtypes", "bfloat16", "--lengths", "4096", "16384"),
        script("models", *("--layers", "1", "--lengths", "512", "--runs", "1"),
               *("--models", "NystromformerModel")),
    ),
    Part(
        "peers",
        400,
        script("peers", "--device", "cuda", *NARROW),
        script("peers", *("--peers", "linformer", "natten", "--lengths", "512", "--runs", "1")),
    ),
    Part(
        "arena",
        580,
        arena("--protocol", "lra-small", "--tasks", "listops", "--workers", "6"),
        arena(*TINY_RUN),
    ),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--parts", default=",".join(x.name for x in PARTS))
    parser.add_argument("--seconds", type=float, help="time for all parts together")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--archive", type=Path, help="also write the results as a .tar.gz")
    given = parser.parse_args()
    names = given.parts.split(",")
    if unknown := set(names) - {x.name for x in PARTS}:
        known = ", ".join(x.name for x in PARTS)
        parser.error(f"no parts {', '.join(sorted(unknown))}; there are {known}")
    states = run_parts([x for x in PARTS if x.name in names], given)
    if given.archive is not None:
        archive(given.out, given.archive)
    sys.exit(any(state != DONE for state in states.values()))


def run_parts(parts: list[Part], given: argparse.Namespace) -> dict[str, str]:
    """Run the parts that are not done; return how each ended."""
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    path, ends = out / STATE, time.monotonic() + (given.seconds or float("inf"))
    states = json.loads(path.read_text()) if path.exists() else {}
    for part in parts:
        left = ends - time.monotonic()
        chosen = part.rehearsal if given.rehearse else part.command
        command = [word.replace("{out}", str(out)) for word in chosen]
        # Another command is another part: a rehearsal, or that of an earlier version.
        if states.get(part.name, {}).get("command") != command:
            states.pop(part.name, None)
        if states.get(part.name, {}).get("state") != DONE and left > 0:
            states[part.name] = run_part(part, command, out, min(part.limit, left))
            path.write_text(json.dumps(states, indent=1) + "\n")
        print(part.name, states.get(part.name, {}).get("state", UNFINISHED), flush=True)
    return {x.name: states.get(x.name, {}).get("state", UNFINISHED) for x in parts}


def run_part(part: Part, command: list[str], out: Path, limit: float) -> dict[str, object]:
    """Run a command with its output in a file; interrupt it at its limit."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    with (out / f"{part.name}.log").open("a") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=heed_interrupts,
        )
        try:
            state = FAILED if process.wait(limit) else DONE
        except subprocess.TimeoutExpired:
            state = UNFINISHED
            stop(process)
    seconds = round(time.monotonic() - started, 1)
    return {"state": state, "code": process.returncode, "seconds": seconds, "command": command}


def heed_interrupts() -> None:
    """Restore the interrupt, which processes started in the background of a shell ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def stop(process: subprocess.Popen) -> None:
    """Interrupt a process, so that it saves what it can; kill it if it does not end."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def archive(folder: Path, path: Path) -> None:
    """Write records and logs as a compressed archive, without data and checkpoints."""
    kept = [x for x in sorted(folder.rglob("*")) if x.is_file()]
    with tarfile.open(path, "w:gz") as file:
        for one in kept:
            inside = one.relative_to(folder)
            if not {"cache", "work"} & set(inside.parts):
                file.add(one, arcname=str(inside))


if __name__ == "__main__":
    main()
