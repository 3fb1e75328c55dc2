"""Corpora: rate of tokenizing against the bare `tokenizers` library, memory, and data wait.

    python benchmarks/corpora.py --out benchmarks/results/corpora-cpu.json --text FOLDER

The corpus is a folder of text files of `--megabytes` in all. They are the text files of `--text`,
repeated with a number in front of each copy, or random words. A tokenizer is trained on them. Each
figure is measured in a new process. *Bare* is `encode_batch_fast` of the tokenizers library on the
same texts in memory, in batches of the same size, with nothing read or kept. *Tokenizing* is the
build of the data set: reading, checking the sha256 of every document, tokenizing, writing, and the
checksums of rows and files. *Import* is the pass before, which reads and splits the documents. Bare
and tokenizing alternate; the ratio is that of their medians. Memory is the growth over the process
after imports. The corpus of a tenth shows whether it grows with the corpus.
"""

import argparse
import dataclasses
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from loading import MemoryMonitor, without_evaluation
from timing import environment, write_record

from longspan.data.corpora import tokenizing
from longspan.data.corpora.imports import CorpusRequest, import_corpus, load_corpus_tokenizer
from longspan.data.corpora.survey import read_documents
from longspan.data.sources.documents import CorpusSource
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.data.tokenizer_training import train_tokenizer
from longspan.data.word_pieces import load_word_pieces
from longspan.memory import keep_freed_memory
from longspan.tasks import build, configure, register_imported

WHOLE, TENTH = "corpus", "corpus_of_a_tenth"
VOCAB_SIZE, TRAINED_ON = 8_192, 8_000_000  # ids, characters
FILE_BYTES = 100_000
RANDOM_WORDS = 20_000


def write_texts(folder: Path, megabytes: float, texts: Path | None) -> None:
    """Write text files of a given size in all."""
    folder.mkdir(parents=True)
    left, source = int(megabytes * 1e6), read_texts(texts) if texts else random_texts()
    for number in itertools.count():
        content = f"Copy {number}. {next(source)}".encode()[:left]
        (folder / f"{number:06}.txt").write_bytes(content.decode(errors="ignore").encode())
        left -= len(content)
        if left <= 0:
            return


def read_texts(folder: Path):
    """Yield the text files of a folder, again and again, in pieces."""
    report = ReadingReport(skip_bad=True)
    while True:
        for _, document in read_documents([CorpusSource(path=str(folder))], FileFormat(), report):
            text = "".join(document.parts)
            for first in range(0, len(text), FILE_BYTES):
                yield text[first : first + FILE_BYTES]


def random_texts():
    """Yield texts of random words, frequent ones of a few letters."""
    draws = random.Random(0)
    words = [
        "".join(draws.choices("etaoinshrdlucmfwypvbgkqjxz", k=2 + i.bit_length() // 2))
        for i in range(RANDOM_WORDS)
    ]
    weights = [1 / (1 + i) for i in range(RANDOM_WORDS)]
    while True:
        yield " ".join(draws.choices(words, weights, k=FILE_BYTES // 6))


def prepare(folder: Path, megabytes: float, texts: Path | None) -> None:
    """Write the corpora and train the tokenizer."""
    write_texts(folder / WHOLE, megabytes, texts)
    write_texts(folder / TENTH, megabytes / 10, texts)
    sample, size = [], 0
    for path in sorted((folder / WHOLE).iterdir()):
        if size < TRAINED_ON:
            sample.append(path.read_text())
            size += len(sample[-1])
    train_tokenizer(sample, vocab_size=VOCAB_SIZE).save_pretrained(folder / "tokenizer")


def import_folder(folder: Path, name: str) -> dict:
    """Measure the import of a folder as a corpus."""
    request = CorpusRequest(paths=(str(folder / name),), tokenizer=str(folder / "tokenizer"))
    load_word_pieces(request.tokenizer)  # imports its libraries
    monitor, started = MemoryMonitor(), time.perf_counter()
    monitor.start()
    described = import_corpus(folder / "cache", name, request, lambda *progress: None)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "characters": sum(described.characters.values()),
        "growth": monitor.growth(),
    }


def measure_bare(folder: Path, name: str) -> dict:
    """Measure `encode_batch_fast` on all texts, in batches of the size that tokenizing has."""
    register_imported(folder / "cache")
    cls = type(build(name))
    tokenizer = load_corpus_tokenizer(cls.folder, cls.description)
    sources = [CorpusSource(**source) for source in cls.description.sources]
    documents = read_documents(sources, FileFormat(), ReadingReport(skip_bad=False))
    batches, size = [[]], 0
    for _, document in documents:
        for part in document.parts:
            batches[-1].append(part)
            size += len(part)
            if size >= tokenizing.BATCH:
                batches.append([])
                size = 0
    encode = tokenizer.fast.backend_tokenizer.encode_batch_fast
    tokens, seconds = 0, 0.0
    for batch in filter(None, batches):
        started = time.perf_counter()
        found = encode(batch, add_special_tokens=False)
        seconds += time.perf_counter() - started
        tokens += sum(map(len, found))
    return {"seconds": seconds, "tokens": tokens}


def measure_tokenizing(folder: Path, name: str) -> dict:
    """Measure the build of the data set of a corpus."""
    register_imported(folder / "cache")
    task = build(name)
    assert task.tokenizer  # imports its libraries
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        monitor, started = MemoryMonitor(), time.perf_counter()
        monitor.start()
        task.open(Path(cache))
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "tokens": sum(task.facts["tokens"].values()),
            "growth": monitor.growth(),
        }


PROBES = {"import": import_folder, "bare": measure_bare, "tokenizing": measure_tokenizing}


def run_probe(probe: str, folder: Path, name: str) -> dict:
    """Run a probe in a new process and return its measurements."""
    command = [sys.executable, __file__, "--probe", probe, str(folder), name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}: {probe} {found}", file=sys.stderr)
    return found


def measure_rates(folder: Path, rounds: int) -> dict:
    """Compare tokenizing with the bare library in alternating rounds."""
    imported = {name: run_probe("import", folder, name) for name in (WHOLE, TENTH)}
    found = {"bare": [], "tokenizing": []}
    for _ in range(rounds):
        for probe, measured in found.items():
            measured.append(run_probe(probe, folder, WHOLE))
    small = run_probe("tokenizing", folder, TENTH)
    seconds = {name: statistics.median(x["seconds"] for x in y) for name, y in found.items()}
    return {
        "characters": imported[WHOLE]["characters"],
        "tokens": found["tokenizing"][0]["tokens"],
        "rounds": rounds,
        "seconds": {**seconds, "import": imported[WHOLE]["seconds"]},
        "share_of_bare_rate": seconds["bare"] / seconds["tokenizing"],
        "growth": {
            "import": imported[WHOLE]["growth"],
            "import_of_a_tenth": imported[TENTH]["growth"],
            "tokenizing": found["tokenizing"][-1]["growth"],
            "tokenizing_of_a_tenth": small["growth"],
        },
    }


def measure_data_wait(folder: Path, mechanism: str, length: int, steps: int) -> dict:
    """Measure the share of training time spent waiting for batches of a corpus."""
    # Imported here because the probes measure memory without them.
    from longspan.arena import get, make_model
    from longspan.training import fit

    register_imported(folder / "cache")
    made = get("lra-small").experiment("listops", mechanism, 0)
    task = configure(TENTH, {"length": length, "pack": "stream"})
    made = dataclasses.replace(made, config=dataclasses.replace(made.config, task=task))
    opened = build(TENTH, task.options)
    opened.open(folder / "cache")
    batch_size = max(1, 8_192 // length)
    training = dataclasses.replace(
        made.config.training,
        batch_size=batch_size,
        steps=steps,
        evaluate_every=steps,
        checkpoint_every=steps,
        eval_batch_size=batch_size,
    )
    opened.batches = without_evaluation(opened)
    with tempfile.TemporaryDirectory() as runs:
        outcome = fit(
            make_model(made, opened), opened, training, seed=0, folder=Path(runs), device="cpu"
        )
    return {
        "mechanism": mechanism,
        "length": length,
        "batch": batch_size,
        "steps": steps,
        "tokens_per_second": outcome.tokens / outcome.seconds,
        "seconds_per_step": outcome.seconds / outcome.steps,
        "waiting_share": outcome.data_wait_seconds / outcome.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--folder", type=Path, help="folder for the temporary files")
    parser.add_argument("--text", type=Path, help="folder of text files; random words without it")
    parser.add_argument("--megabytes", type=float, default=1_000, help="size of the corpus")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of bare and tokenizing")
    parser.add_argument("--steps", type=int, default=20, help="training steps of the data wait")
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        probe, folder, name = args.probe
        print(json.dumps(PROBES[probe](Path(folder), name)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        prepare(Path(folder), args.megabytes, args.text)
        keep_freed_memory()
        rates = measure_rates(Path(folder), args.rounds)
        waits = [
            measure_data_wait(Path(folder), mechanism, length, args.steps)
            for mechanism in ("full", "linear", "local")
            for length in (512, 4_096)
        ]
    record = {
        "environment": environment(torch.device("cpu")),
        "megabytes": args.megabytes,
        "text": "text files" if args.text else "random words",
        "rates": rates,
        "waiting": waits,
    }
    record["environment"]["load"] = round(os.getloadavg()[1], 1)
    write_record(record, args.out)


if __name__ == "__main__":
    main()
