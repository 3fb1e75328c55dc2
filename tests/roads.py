"""Commands as a user types them, in a folder where `longspan` is on the path."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def run_shell(folder, *arguments, timeout=1_200):
    """Run a command in a folder; return its output, or fail with the end of its errors."""
    command = folder / "bin" / "longspan"
    if not command.exists():
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m longspan "$@"\n')
        command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE),
        "LONGSPAN_CACHE": str(folder / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "200",  # tables fold names in fewer
    }
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
