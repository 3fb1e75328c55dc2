"""Random command lines over the real options: mostly plausible, partly nonsense.

No size is large: estimates of sizes that cannot be meant have tests of their own.
"""

import json

import tiny

ODD = (
    *("", " ", "-", "--", "-1", "0", "1", "2", "1.5", "1e3", "nan", "inf", "true", "null", "None"),
    *("[]", "{}", "[1,", '"', "'", "=", "a=b", ",", "a,b", "*", ".", "x" * 400),
    *(
        "ß",
        "日本語",
        "\u0661",
        "\ufeff",
        "a\nb",
        "\x1b[31m",
        "\udcff",
        "[/red]",
        "%s",
        "{0}",
        "$HOME",
    ),
    "[" * 3000,
)
NAMES = {
    "mechanism": ("local", "full", "bigbird", "performer", "linformer", "reformr"),
    "task": ("listops", "copying", "image", "text", "path_x", "listop"),
    "protocol": ("smoke", "lra-small", "lra-paper", "quik"),
    "split": ("train", "validation", "test", "tst"),
    "format": ("terminal", "markdown", "csv", "json", "latex", "cvs"),
    "section": ("leaderboard", "cost", "slices", "significance", "scores", "curve"),
    "figure": ("svg", "png", "both", "gif"),
    "list": ("mechanisms", "tasks", "protocols", "mechanism"),
}
# Options whose values are drawn from NAMES.
NAMED = {
    **{"mechanism": "mechanism", "--mechanisms": "mechanism", "task": "task", "--tasks": "task"},
    **{"--protocol": "protocol", "--split": "split", "--format": "format", "--section": "section"},
    **{"--figure-format": "figure", "what": "list", "name": "mechanism"},
}
TEXTS = {
    "--budget": (
        "steps",
        "seconds=1",
        "flops=1e9",
        "memory=1GiB",
        "memory=-1",
        "flops=",
        "hours=1",
    ),
    "--seeds": ("0", "0,1", "1,1", "-1", "x"),
    "--select": ("mean", "best-run", "men"),
    "--device": ("cpu", "cpu", "cpu", "tpu"),
    "--parallel": ("ddp", "fsdp", "context", "/dev/zero"),
    "--grid": ("training.learning_rate=0.1,0.2", "mechanism.window=2", "training.steps", "x=1"),
}
FIELDS = (
    *("training.steps", "training.batch_size", "training.learning_rate", "training.precision"),
    *("training.schedule", "training.adam_betas", "training.max_grad_norm", "model.hidden_size"),
    *("model.num_attention_heads", "model.pooling", "model.norm", "model.position"),
    *("mechanism.window", "mechanism.backend", "mechanism.features", "task.length", "task.train"),
    *("task.max_depth", "task.source", "train.steps", "model", "", "."),
)
VALUES = (
    *("0", "-1", "1", "2", "3", "8", "1.5", '"8"', "true", "null", "[]", "[0.9,0.99]", "{}", "cls"),
    *("bf16", "linear", "pre", "torch", "reference", "release", "NaN", "1e999", "", "x" * 300),
)
# Ray starts a cluster, workers start processes, and tracebacks are the purpose of --debug.
LEFT_OUT = {"--ray", "--cpus-per-run", "--gpus-per-run", "--workers", "--debug", "--measure"}
# No folder outside the working directory: the tests may run as root.
PATHS = (
    "absent",
    "absent/deep",
    "text.txt",
    "text.txt/deep",
    ".",
    "",
    "ü",
    "x" * 300,
    "a\nb",
    "\udcff",
)


def leaves(command, path=()):
    """Yield the names and parameters of every command of the real command line."""
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path, [x for x in command.params if not LEFT_OUT.intersection(x.opts)]


class Grammar:
    """Draws command lines; the same seed gives the same lines."""

    def __init__(self, command, draw, paths):
        """Draw from the leaves of a command; `paths` are files and folders that exist."""
        self.commands = sorted(leaves(command), key=lambda leaf: leaf[0])
        self.draw, self.paths = draw, paths

    def line(self):
        """Return one command line."""
        path, parameters = self.draw.choice(self.commands)
        arguments = [*path]
        for parameter in parameters:
            is_argument = not parameter.opts[0].startswith("-")
            if is_argument and (parameter.required or self.draw.random() < 0.7):
                arguments.append(self.value(parameter.opts[0]))
            elif not is_argument and self.draw.random() < 0.25:
                arguments += self.option(parameter)
        arguments += self.bounds(path, arguments)
        if self.draw.random() < 0.1:
            arguments.insert(self.draw.randrange(len(arguments) + 1), self.draw.choice(ODD))
        return arguments

    def option(self, parameter):
        name = parameter.opts[0]
        if parameter.is_flag:
            return [name]
        times = self.draw.choice((1, 1, 2)) if parameter.multiple else 1
        return [part for _ in range(times) for part in (name, self.value(name))]

    def value(self, name):
        draw = self.draw
        if draw.random() < 0.15:
            return draw.choice(ODD)
        if name == "--set":
            return f"{draw.choice(FIELDS)}={draw.choice(VALUES)}"
        if name in NAMED:
            return draw.choice(NAMES[NAMED[name]])
        if name in TEXTS:
            return draw.choice(TEXTS[name])
        if name in ("--seed", "--row", "--count", "--samples", "--rollout", "--token"):
            return draw.choice(("0", "1", "3", "39", "40", "-1", "x"))
        return draw.choice((*self.paths, *self.paths, *PATHS))

    def bounds(self, path, arguments):
        """Return options that keep a command small: tiny runs and data, a folder to write to."""
        added = []
        if path in (("arena",), ("train",)):
            named = {x.partition("=")[0] for x in arguments}
            changes = {k: x for k, x in tiny.CHANGES.items() if k not in named}
            changes |= {} if "training.steps" in named else {"training.steps": 2}
            added += [
                part for k, x in changes.items() for part in ("--set", f"{k}={json.dumps(x)}")
            ]
            added += ["--dry-run"] if path == ("arena",) else []
        if path in (("data", "build"), ("data", "import")):
            sizes = {"train": 20, "validation": 10, "test": 10}
            added += [part for k, x in sizes.items() for part in ("--set", f"{k}={x}")]
        return added
