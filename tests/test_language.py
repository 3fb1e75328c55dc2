"""Rules for docstrings and for the words of strings in the source."""

import ast
import functools
import re
from pathlib import Path

import pytest

import longspan

SOURCE = Path(longspan.__file__).parent
CLAUSE = re.compile(r"(What|Whatever|Whether|Which|Who|Whoever|Whom|Whose|How|Where|Why|When)\b")
# Everyday phrases used in place of terms of the field.
HOUSE_WORDS = re.compile(
    r"\b(half[- ]done|goes on|go on with|is at it|dealt out|whoever|everyone|in words|"
    r"as asked|was told|is told|are told|knobs?|stands beside|set aside|shared out)\b",
    re.IGNORECASE,
)
# Properties are nouns; functions and methods are not.
ARTICLE = re.compile(r"(The|A|An|All|Every|Each|Some|As|Of|For|With|Here)\b")
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def trees():
    """Return the syntax trees of all files by name."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
    }


def documented(tree):
    nodes = (node for node in ast.walk(tree) if isinstance(node, DEFINITIONS))
    return [(node, text) for node in nodes if (text := ast.get_docstring(node))]


def is_property(node):
    names = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
    return bool(names & {"property", "cached_property"})


def clauses(tree):
    """Return docstrings that open with a noun clause."""
    return [
        text
        for node, text in documented(tree)
        if CLAUSE.match(text) and not is_whether_property(node)
    ]


def is_whether_property(node):
    """Return True for a property documented as "Whether ..."."""
    is_function = isinstance(node, ast.FunctionDef)
    return is_function and is_property(node) and ast.get_docstring(node).startswith("Whether")


def without_verb(tree):
    """Return docstrings of functions that open with a noun phrase."""
    functions = (x for x in documented(tree) if isinstance(x[0], ast.FunctionDef))
    return [text for node, text in functions if ARTICLE.match(text) and not is_property(node)]


def house_words(tree):
    """Return words in strings that the field does not use."""
    texts = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return [found[0] for text in texts if (found := HOUSE_WORDS.search(text))]


@pytest.mark.parametrize("rule", [clauses, without_verb, house_words])
def test_source_follows_rule(rule):
    found = {file: rule(tree) for file, tree in trees().items()}
    assert not {file: violated for file, violated in found.items() if violated}


def test_rules_detect_violations_only():
    clause = ast.parse('def f():\n    """What a run was told."""')
    assert clauses(clause)
    assert house_words(clause)
    assert without_verb(ast.parse('def f():\n    """The number of runs."""'))
    flag = 'class C:\n    @property\n    def f(self):\n        """Whether it is."""'
    assert not clauses(ast.parse(flag))
    assert not without_verb(ast.parse('def f():\n    """Return the number of runs."""'))
