"""What commands leave in a folder, without what may differ between two equal runs."""

import contextlib
import hashlib
import json
from pathlib import Path

# Of records, points of curves and analyses.
VARYING_FIELDS = {
    *("seconds", "data_wait_seconds", "tokens_per_second", "examples_per_second", "peak_memory"),
    *("date", "device", "git_commit", "sha256"),
}
# Curves of TensorBoard and locks; the page that `arena` writes contains times.
IGNORED_FOLDERS, IGNORED_SUFFIXES = {"tensorboard"}, {".lock"}


def snapshot(folder, ignored=()):
    """Return the reproducible content of every file below a folder, by relative path."""
    return {
        str(path.relative_to(folder)): content_of(path)
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
        and path.suffix not in IGNORED_SUFFIXES
        and path.name not in ignored
        and not IGNORED_FOLDERS.intersection(path.relative_to(folder).parts)
    }


def content_of(path):
    content = path.read_bytes()
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):  # damaged by the test
            content = json.dumps(reproducible(json.loads(content)), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:12]


def reproducible(value):
    """Return parsed JSON without the fields that may differ."""
    if isinstance(value, list):
        return [reproducible(x) for x in value if not is_alarm_about_time(x)]
    if isinstance(value, dict):
        return {k: reproducible(x) for k, x in value.items() if k not in VARYING_FIELDS}
    return value


def is_alarm_about_time(value):
    return isinstance(value, dict) and value.get("kind") == "waiting"


def differences(found, expected):
    """Return the paths that two snapshots do not share."""
    return sorted(k for k in {*found, *expected} if found.get(k) != expected.get(k))
