"""Throughput of the Pathfinder generator on one core, at the settings of Long Range Arena.

    python benchmarks/pathfinder_generation.py [seconds for each resolution]

Prints one JSON object. Seconds are CPU time of the process and exclude compilation and tables. The
original generator makes 10 images of 32 x 32 per second and core.
"""

import json
import platform
import sys
import time

import numba
import numpy

from longspan.tasks.lra.generators.pathfinder import RESOLUTIONS, generate, lra_settings

ORIGINAL = 10  # images of 32 x 32 per second and core
COUNT = 256


def measure(resolution: int, limit: float) -> dict[str, float]:
    settings = lra_settings(resolution)
    start = time.perf_counter()
    generate(settings, range(len(settings.margins) * 8), seed=0, workers=1)
    start_seconds = time.perf_counter() - start
    images = 0
    start = time.process_time()
    while (seconds := time.process_time() - start) < limit:
        generate(settings, range(images, images + COUNT), seed=1, workers=1)
        images += COUNT
    return {
        "resolution": resolution,
        "images_per_second_per_core": round(images / seconds, 1),
        "pixels_per_second_per_core": round(images * resolution**2 / seconds),
        "minutes_for_200000_on_two_cores": round(200_000 * seconds / images / 120, 1),
        "images": images,
        "cpu_seconds": round(seconds, 3),
        "start_seconds": round(start_seconds, 3),
    }


def main() -> None:
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    rows = [measure(resolution, limit) for resolution in RESOLUTIONS]
    print(
        json.dumps(
            {
                "rows": rows,
                "times_the_original_at_32": round(rows[0]["images_per_second_per_core"] / ORIGINAL),
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
