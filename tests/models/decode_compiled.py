"""Decode with a compiled step, without the shape checks of the tests, and print the graphs.

    python decode_compiled.py step|model BACKEND NAME ...

Prints, for each mechanism, the number of graphs after each token, as JSON. Compiled and plain steps
must agree.
"""

import json
import sys

import torch
from torch._dynamo.utils import counters

from longspan.attention import MECHANISMS, build
from longspan.models import LongspanConfig, LongspanForCausalLM

HEADS, HEAD_DIM, PROMPT, TOKENS = 2, 8, 7, 94


def steps_of_mechanism(name):
    """Return a step (input, state) to (output, state), and its inputs."""
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 256}
    attention = build(name, causal=True, **sizes, **MECHANISMS[name].small_options)
    parts = torch.randn(TOKENS, 3, 1, HEADS, 1, HEAD_DIM).unbind()
    prompt = torch.randn(3, 1, HEADS, PROMPT, HEAD_DIM)
    return lambda qkv, cache: attention.step(*qkv, cache), [prompt, *parts]


def steps_of_model(name):
    config = LongspanConfig(
        vocab_size=60,
        hidden_size=HEADS * HEAD_DIM,
        num_hidden_layers=1,
        max_position_embeddings=256,
        attention=name,
        attention_options=dict(MECHANISMS[name].small_options),
        position="auto" if MECHANISMS[name].traits.carries_positions else "rotary",
    )
    model = LongspanForCausalLM(config).eval()

    def step(ids, state):
        mask = torch.ones_like(ids)  # as `generate` passes it
        output = model(ids, attention_mask=mask, cache=state, use_cache=True)
        return output.logits, output.cache

    return step, torch.randint(1, 60, (2, PROMPT + TOKENS)).split([PROMPT] + [1] * TOKENS, 1)


def count_graphs(step, parts, backend):
    """Return the number of graphs after each token that follows the prompt."""
    torch.compiler.reset()
    counters.clear()
    compiled, counts = torch.compile(step, backend=backend, fullgraph=True), []
    state = expected = step(parts[0], None)[1]
    for part in parts[1:]:
        out, state = compiled(part, state)
        own, expected = step(part, expected)
        torch.testing.assert_close(out, own, rtol=1e-4, atol=1e-4)
        counts.append(counters["stats"]["unique_graphs"])
    return counts


@torch.no_grad()
def main():
    kind, backend, *names = sys.argv[1:]
    torch.manual_seed(0)
    make = {"step": steps_of_mechanism, "model": steps_of_model}[kind]
    # A limit would end the recompilations, and the graphs.
    with torch._dynamo.config.patch(recompile_limit=1000):
        found = {name: count_graphs(*make(name), backend) for name in names}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
