"""Throughput of the ListOps generator on one core, at the parameters of Long Range Arena.

    python benchmarks/listops_generation.py [seconds]

Prints one JSON object. Seconds are CPU time of the process. They include the removal of duplicates
and exclude compilation.
"""

import json
import platform
import sys
import time

import numba
import numpy

from longspan.tasks.lra.generators.listops import Grammar, generate

LRA = Grammar(max_depth=10, max_args=10, min_length=500, max_length=2000)
COUNT = 20_000


def main() -> None:
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    start = time.perf_counter()
    generate(LRA, 1, seed=0, workers=1)
    compile_seconds = time.perf_counter() - start
    samples, tokens, rounds = 0, 0, 0
    start = time.process_time()
    while (seconds := time.process_time() - start) < limit:
        rounds += 1
        examples = generate(LRA, COUNT, seed=rounds, workers=1)
        samples += len(examples)
        tokens += len(examples.tokens.values)
    print(
        json.dumps(
            {
                "samples_per_second_per_core": round(samples / seconds),
                "tokens_per_second_per_core": round(tokens / seconds),
                "samples": samples,
                "cpu_seconds": round(seconds, 3),
                "compile_seconds": round(compile_seconds, 3),
                "machine": platform.machine(),
                "python": platform.python_version(),
                "numpy": numpy.__version__,
                "numba": numba.__version__,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
