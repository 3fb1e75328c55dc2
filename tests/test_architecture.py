"""Architecture rules: import layers, sizes, and forbidden names and calls."""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

import longspan
from longspan.attention import MECHANISMS

SOURCE = Path(longspan.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = Path(__file__).parent

# Lowest layer first. A file imports from its own layer and from lower ones.
LAYERS = (
    (
        *("bounds", "config", "metrics", "shapes", "errors", "files", "temporaries", "memory"),
        *("results", "space", "entry_points", "processes", "wording", "words", "launch"),
        "stored_catalog",
    ),
    ("attention",),
    ("nn",),
    ("models", "interop"),
    ("data",),
    ("tokenizers",),
    ("tasks",),
    ("training",),
    ("arena",),
    ("bench",),
    ("validation",),
    ("analysis",),
    ("report",),
    ("publishing",),
    ("catalog",),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

MECHANISM_LINES, FUNCTION_LINES, NESTING = 420, 40, 3
# Chart specifications and lists of command line options are declarations. So are the arguments of
# transformers' models, which a head has and passes on.
LONGER_FUNCTIONS = {
    "cli/benching.py": 50,
    "cli/converting.py": 50,
    "cli/finetuning.py": 50,
    "models/model.py": 50,
    "report/charts/intervals.py": 50,
}
# Mechanism names that are also everyday words: a schedule may be linear, a stem a convolution.
EVERYDAY = {"full", "local", "linear", "convolution"}
# CIFAR-10 is published as pickles; this file reads them without executing foreign code.
MAY_IMPORT_PICKLE = ("tasks/lra/restricted_pickle.py",)
# Files of the system, and the functions that open the files of users.
MAY_OPEN_FILES = (
    *("files.py", "temporaries.py", "space.py", "bench/machine.py"),
    *("arena/executors/worker_pool.py", "cli/streams.py"),
)
READING = ("read_text", "read_bytes", "open")
# Readers of libraries, each with a path: `check_file` must have seen the path.
LIBRARY_READERS = ("gzip.open", "load_file", "pa.input_stream", "zipfile.is_zipfile")
# A family of long checkpoints has its own mechanism.
MAY_NAME_MECHANISMS = (*("attention/", "tasks/", "models/conversion/families/"),)
# Parts of one mechanism whose file would otherwise have more than 540 lines.
SINGLE_USER_OPS = {
    "block_pairs": "sinkhorn",
    "block_lists": "bigbird",
    "block_sorting": "sinkhorn",
    "chunk_pieces": "reformer",
    "factorized_rows": "sparse_transformer",
}
COMPOUND = (ast.For, ast.While, ast.If, ast.Try, ast.Match)


@functools.cache
def trees():
    """Return the syntax trees of all files by name."""
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in FILES}


def violations(check):
    """Return the violations of a rule by file; `check` takes a file and its tree."""
    found = {file: list(check(file, tree)) for file, tree in sorted(trees().items())}
    return {file: violated for file, violated in found.items() if violated}


def layer_of(file):
    return file.partition("/")[0].removesuffix(".py")


def imported_names(tree):
    """Yield lines and full names of longspan imports, at module level or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, n) for n in names if n.split(".")[0] == "longspan")


def wrong_imports(file, tree):
    if file == "__init__.py":
        allowed = ("attention", "interop", "models")
        return [n for _, n in imported_names(tree) if n.split(".")[1] not in allowed]
    rank = RANK[layer_of(file)]
    parts = [(line, name, name.split(".")[1]) for line, name in imported_names(tree)]
    # Only the version may be imported from the package itself.
    parts = [x for x in parts if x[2] != "__version__"]
    return [f"line {line}: {name}" for line, name, part in parts if RANK.get(part, 99) > rank]


def test_files_import_from_lower_layers_only():
    parts = {layer_of(file) for file in trees()} - {"__init__"}
    assert parts == set(RANK), "give the new part a layer here"
    assert not violations(wrong_imports)


def functions(tree):
    return [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)]


def length_of(function):
    """Count the lines of a function without its docstring."""
    documented = ast.get_docstring(function, clean=False)
    first = function.body[0]
    documentation = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - documentation


def depth_of(node, depth=0):
    """Compute the nesting depth of compound statements; `elif` and `with` start no new level."""
    deepest = depth
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            inside = isinstance(child, COMPOUND)
            is_elif = field == "orelse" and isinstance(node, ast.If) and isinstance(child, ast.If)
            deepest = max(deepest, depth_of(child, depth + (inside and not is_elif)))
    return deepest


def oversized(file, tree):
    """Yield a mechanism's file, and functions, if they are too long or too deeply nested."""
    lines = len((SOURCE / file).read_text().splitlines())
    registers = any("register(" in ast.unparse(d) for d in decorators(tree))
    if registers and lines > MECHANISM_LINES:
        yield f"{lines} lines"
    allowed = LONGER_FUNCTIONS.get(file, FUNCTION_LINES)
    for function in functions(tree):
        if length_of(function) > allowed:
            yield f"{function.name}: {length_of(function)} lines"
        if depth_of(function) > NESTING:
            yield f"{function.name}: {depth_of(function)} levels"


def test_files_and_functions_stay_within_size_limits():
    assert not violations(oversized)


def decorators(tree):
    classes = (x for x in ast.walk(tree) if isinstance(x, ast.ClassDef))
    return [decorator for x in classes for decorator in x.decorator_list]


def docstrings(tree):
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    documented = [x for x in ast.walk(tree) if isinstance(x, nodes) and ast.get_docstring(x)]
    return {id(x.body[0].value) for x in documented}


def strings(tree):
    skip = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skip:
            yield node


def named_mechanisms(tree):
    """Return mechanism names used as values; everyday words count in comparisons of mechanisms."""
    found = [x for x in strings(tree) if x.value in MECHANISMS and x.value not in EVERYDAY]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.match_case | ast.Subscript):
            text = ast.unparse(node)
            about = any(word in text for word in ("attention", "mechanism", "name"))
            found += [x for x in strings(node) if about and x.value in EVERYDAY]
    return [f"line {x.lineno}: {x.value!r}" for x in found]


def test_shared_operations_have_several_users():
    """A part of one mechanism belongs in the file of that mechanism."""
    users = {path.stem: set() for path in (SOURCE / "attention/ops").glob("[!_]*.py")}
    for file, tree in trees().items():
        for _, name in imported_names(tree):
            if name.startswith("longspan.attention.ops."):
                users[name.split(".")[3]].add(Path(file).stem)
    single = {name: user for name, (user, *others) in users.items() if not others}
    assert single == SINGLE_USER_OPS


def test_no_code_depends_on_mechanism_names():
    found = violations(lambda _, tree: named_mechanisms(tree))
    assert not {file: x for file, x in found.items() if not file.startswith(MAY_NAME_MECHANISMS)}


def forbidden(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "hash", "torch.load"):
            yield f"line {node.lineno}: {ast.unparse(node.func)}("
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"line {node.lineno}: bare except"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
            yield from (f"line {node.lineno}: {n}" for n in names & {"pickle", "__future__"})


def test_print_pickle_and_hash_are_not_used():
    found = violations(lambda _, tree: forbidden(tree))
    for file in MAY_IMPORT_PICKLE:
        assert all(one.endswith(": pickle") for one in found.pop(file))
    assert not found


def fused_calls(tree):
    """Return uses of torch's fused attention, whose operands one file brings into a layout."""
    nodes = (x for x in ast.walk(tree) if isinstance(x, ast.Attribute))
    return [f"line {x.lineno}: {x.attr}" for x in nodes if "scaled_dot_product" in x.attr]


def test_one_file_calls_fused_attention():
    found = violations(lambda _, tree: fused_calls(tree))
    # The other file counts operations by the names of kernels.
    assert set(found) == {"attention/ops/fused.py", "bench/counting.py"}


def is_read(call):
    """Return whether a call opens a file for reading without `longspan.files`."""
    name, called = ast.unparse(call.func), call.func
    if name in LIBRARY_READERS:
        return not ast.unparse(call.args[0]).removeprefix("str(").startswith("check_file(")
    attribute = called.attr if isinstance(called, ast.Attribute) else name
    if attribute not in READING or "resources.files(" in name:
        return False
    # `open` of a task, an archive or an image has other arguments.
    modes = call.args[1:] if name == "open" else call.args
    mode = ast.literal_eval(modes[0]) if modes and isinstance(modes[0], ast.Constant) else None
    is_path = not any(x.arg == "fileobj" for x in call.keywords)
    return is_path and (not modes or (isinstance(mode, str) and mode.startswith("r")))


def opened_files(tree):
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [f"line {x.lineno}: {ast.unparse(x)}" for x in calls if is_read(x)]


def test_files_of_users_are_opened_by_one_function():
    """A link to a device, or a FIFO, fills the memory or blocks: `longspan.files.open_file`."""
    found = violations(lambda _, tree: opened_files(tree))
    assert not {file: x for file, x in found.items() if file not in MAY_OPEN_FILES}


def test_files_of_tests_have_names_of_their_own():
    """A second file of a name is an import error where the first one was collected before."""
    names = Counter(x.name for x in TESTS.rglob("*.py") if x.name != "conftest.py")
    assert not [name for name, number in names.items() if number > 1]


def exact_comparisons(tree):
    """Yield the lines of comparisons whose tolerances are both zero."""
    zeros = {"rtol", "atol"}, {"rel", "abs"}
    for node in (x for x in ast.walk(tree) if isinstance(x, ast.Call)):
        named = {x.arg for x in node.keywords if ast.unparse(x.value) in ("0", "0.0")}
        if any(pair <= named for pair in zeros):
            yield f"line {node.lineno}"


def test_bitwise_equality_has_a_stated_contract():
    """Other processors round differently: see tests/exactness.py, which makes this comparison."""
    texts = {x: x.read_text() for x in (*TESTS.rglob("*.py"), *FILES) if x.name != "exactness.py"}
    named = {str(x): text for x, text in texts.items() if re.search(r"\b(atol|abs)\b", text)}
    found = {x: list(exact_comparisons(ast.parse(text))) for x, text in named.items()}
    assert not {x: lines for x, lines in found.items() if lines}


VIOLATIONS = {
    "path.open()": opened_files,
    "path.open('rb')": opened_files,
    "path.open(encoding='utf-8')": opened_files,
    "Path(name).read_text()": opened_files,
    "open(path)": opened_files,
    "open(path, 'rb')": opened_files,
    "load_file(path)": opened_files,
    "from longspan.models import x": lambda t: wrong_imports("attention/base.py", t),
    "def f():\n    import longspan.cli": lambda t: wrong_imports("report/tables.py", t),
    "from longspan.unheard import x": lambda t: wrong_imports("cli.py", t),
    "x = {'performer': 1}": named_mechanisms,
    "if config.attention == 'full': pass": named_mechanisms,
    "if mechanism in ('linear', 'local'): pass": named_mechanisms,
    "def f():\n    print(1)": lambda t: list(forbidden(t)),
    "F.scaled_dot_product_attention(q, k, v)": fused_calls,
    "import pickle": lambda t: list(forbidden(t)),
    "from pickle import loads": lambda t: list(forbidden(t)),
    "torch.load('x')": lambda t: list(forbidden(t)),
    "hash(x)": lambda t: list(forbidden(t)),
    "try:\n    f()\nexcept:\n    g()": lambda t: list(forbidden(t)),
    "assert_close(x, y, rtol=0, atol=0.0)": lambda t: list(exact_comparisons(t)),
    "x == approx(y, rel=0, abs=0)": lambda t: list(exact_comparisons(t)),
}
ALLOWED = {
    "path.open('wb')": opened_files,
    "open(path, 'w')": opened_files,
    "task.open(cache, data)": opened_files,
    "Image.open(io.BytesIO(content))": opened_files,
    "tarfile.open(fileobj=io.BytesIO(content))": opened_files,
    "load_file(check_file(path))": opened_files,
    "resources.files('longspan').joinpath(name).read_text()": opened_files,
    "from longspan.errors import x": lambda t: wrong_imports("attention/base.py", t),
    "if config.schedule == 'linear': pass": named_mechanisms,
    "attention: str = 'full'": named_mechanisms,
    "assert_close(x, y, rtol=0, atol=1e-12)": lambda t: list(exact_comparisons(t)),
}


@pytest.mark.parametrize("code", [*VIOLATIONS, *ALLOWED])
def test_rules_detect_violations_only(code):
    check = VIOLATIONS.get(code) or ALLOWED[code]
    assert bool(check(ast.parse(code))) == (code in VIOLATIONS)


def test_length_and_nesting_are_measured():
    code = 'def f(x):\n    """One.\n\n    Two.\n    """\n    if x:\n        return 1\n'
    code += "    elif x is None:\n        for y in x:\n            y()\n"
    (function,) = functions(ast.parse(code))
    assert length_of(function) == 6
    assert depth_of(function) == 2
