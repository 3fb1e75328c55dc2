"""Plant one bug at a time in a copy of the source and run the attention tests against it.

    python tests/mutants.py            all of tests/mutants/*.txt
    python tests/mutants.py nystrom    bugs whose file or description contains the word
    python tests/mutants.py --missing  bugs that the page lacks

Prints a table, using all cores, and writes its rows to docs/development/mutants.md, where others
stay. Exits with 1 if a bug survives or its text is not in the source. Requires `fork`
(Linux, macOS), so that torch is loaded once.
"""

import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import hypothesis  # noqa: F401  imported once, before forking
import pytest
import torch

ROOT = Path(__file__).parents[1]
ATTENTION = ROOT / "tests" / "attention"
PAGE = ROOT / "docs" / "development" / "mutants.md"
HEAD = """# Bugs that the tests catch

`make mutants` plants each of these bugs (`tests/mutants/*.txt`) in a copy of the source, one at a
time, runs the attention tests named with it, and writes this table; `tests/mutants.py WORD` does so
for some of them. The last column is the first test that fails. The list includes bugs reported for
public implementations of these mechanisms.

| file | planted bug | caught by |
|---|---|---|
"""
GROUPS = {
    "contract": ("test_contract.py", "test_contract_traits.py"),
    "state": ("test_contract_state.py",),
}


class Mutant(NamedTuple):
    file: str
    description: str
    tests: tuple[str, ...]
    only: str
    changes: list[tuple[str, str]]


def parse_mutants(text: str) -> list[Mutant]:
    """Parse the bugs of one file."""
    found = []
    for part in re.split(r"^# ", text, flags=re.MULTILINE)[1:]:
        header, _, body = part.partition("\n")
        file, description, tests, *only = header.split(" | ")
        files = [name for word in tests.split() for name in GROUPS.get(word, (word,))]
        pairs = re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", body, re.MULTILINE)
        changes = [tuple(strip_markers(side) for side in pair) for pair in pairs]
        found.append(Mutant(file, description, tuple(files), "".join(only), changes))
    return found


def strip_markers(side: str) -> str:
    return "\n".join(line[2:] for line in side.splitlines())


def plant(mutant: Mutant, folder: Path) -> Path:
    """Copy the source and plant the bug."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "longspan" / "attention" / f"{mutant.file}.py"
    text = path.read_text()
    for old, new in mutant.changes:
        if old not in text:
            raise LookupError(f"{mutant.file}: {old!r} is not in the source; update tests/mutants")
        text = text.replace(old, new, 1)
    path.write_text(text)
    return source


def run_in_child(source: Path, arguments: list[str], log: Path) -> int:
    """Run pytest on the planted source in a child process; return its exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 70
    try:
        with log.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os.environ["PYTHONPATH"] = str(source)
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(source / "hypothesis")
        sys.path.insert(0, str(source))
        sys.dont_write_bytecode = True
        status = int(pytest.main(arguments))
        sys.stdout.flush()
    finally:
        os._exit(status)


def find_failing_test(mutant: Mutant, folder: Path) -> str | None:
    """Return the first test that fails on the planted source, or None."""
    arguments = ["-x", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
    arguments += ["-k", mutant.only] if mutant.only else []
    # Fixtures of other folders are not needed.
    arguments += [f"--confcutdir={ATTENTION}"]
    arguments += [f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}"]
    log = folder / "log"
    status = run_in_child(
        plant(mutant, folder), [*arguments, *(str(ATTENTION / name) for name in mutant.tests)], log
    )
    if status == pytest.ExitCode.OK:
        return None
    found = re.search(r"^(?:FAILED|ERROR) \S*?(\w+)\.py(?:::(\w+))?", log.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{mutant.description}: pytest exited with {status}:\n{log.read_text()}")
    return "::".join(name for name in found.groups() if name)


def table_row(mutant: Mutant) -> tuple[bool, str]:
    """Test one mutant; return True if a test failed, and the table row."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            test = find_failing_test(mutant, Path(folder))
        except LookupError as error:
            return False, f"STALE {error}"
    return test is not None, f"| {mutant.file} | {mutant.description} | {test or '**survived**'} |"


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    files = sorted((Path(__file__).parent / "mutants").glob("*.txt"))
    mutants = [mutant for file in files for mutant in parse_mutants(file.read_text())]
    if words == ["--missing"]:
        chosen = [m for m in mutants if page_key(m) not in page_rows()]
    else:
        chosen = [m for m in mutants if all(word in f"{m.file} {m.description}" for word in words)]
    start, lines, survived = time.monotonic(), [], 0
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for caught, line in pool.imap(table_row, chosen):
            survived += not caught
            lines.append(line)
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    minutes = (time.monotonic() - start) / 60
    sys.stdout.write(f"\n{len(chosen)} bugs, {survived} survived, {minutes:.1f} minutes\n")
    write_page(mutants, lines)
    return 1 if survived else 0


def write_page(mutants: list[Mutant], lines: list[str]) -> None:
    """Write the given rows to the page, and keep its rows of other bugs that still exist."""
    known = page_rows() | {row_key(line): line for line in lines if line[:2] == "| "}
    keys = [page_key(mutant) for mutant in mutants]
    rows = [known[key] for key in keys if key in known]
    survived, missing = sum("**survived**" in row for row in rows), len(keys) - len(rows)
    end = f"{len(rows)} bugs, {survived} survived" + (f"; {missing} not run yet" if missing else "")
    PAGE.write_text(HEAD + "\n".join(rows) + f"\n\n{end}.\n")


def page_rows() -> dict[str, str]:
    lines = PAGE.read_text().splitlines()
    return {row_key(line): line for line in lines if line[:2] == "| "}


def page_key(mutant: Mutant) -> str:
    return f"| {mutant.file} | {mutant.description} |"


def row_key(line: str) -> str:
    return line[: line.rindex("|", 0, line.rindex("|")) + 1]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
