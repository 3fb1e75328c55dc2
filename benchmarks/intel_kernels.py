"""Speed of torch on an AMD processor with the kernels that MKL keeps for processors of Intel.

    python benchmarks/intel_kernels.py --out benchmarks/results/intel-kernels-cpu.json

MKL asks a function of its own whether the processor is Intel's. A preloaded library that answers
yes, compiled here by `cc`, makes it choose kernels for the vectors that the processor has. Of
processes with and without the library in turns, each measures the rate of a large matrix product in
float32, and the median training step of an encoder of base width with local attention.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch
from timing import environment, matmul_rate, time_call, write_record

from longspan.models import LongspanConfig, LongspanForMaskedLM

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
TOKENS, VOCABULARY, STEPS = 2_048, 8_192, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--times", type=int, default=3, help="processes of each kind")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure()))
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "intel.so"
        compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{library}"]
        subprocess.run(compiler, input=SOURCE, text=True, check=True)
        rows = [
            {"preloaded": preloaded, **run({"LD_PRELOAD": f"{library}"} if preloaded else {})}
            for _ in range(args.times)
            for preloaded in (False, True)
        ]
    write_record({"environment": environment(torch.device("cpu")), "rows": rows}, args.out)


def run(variables: dict[str, str]) -> dict[str, float]:
    """Return what a process with these variables of the environment measures."""
    command = [sys.executable, __file__, "--here"]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def measure() -> dict[str, float]:
    """Return operations per second of a product, and seconds of a training step."""
    torch.manual_seed(0)
    config = LongspanConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        num_hidden_layers=2,
        num_attention_heads=12,
        intermediate_size=3_072,
        max_position_embeddings=TOKENS,
        attention="local",
    )
    model = LongspanForMaskedLM(config).train()
    ids = torch.randint(VOCABULARY, (1, TOKENS))
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=labels).loss.backward()

    device = torch.device("cpu")
    step()
    seconds = median(time_call(step, device) for _ in range(STEPS))
    return {"flops_per_second": matmul_rate(torch.float32, device), "seconds": seconds}


if __name__ == "__main__":
    main()
