"""Options of mechanisms are in use: recipes name them, or conversions of checkpoints set them."""

import ast
import tomllib
from importlib import resources
from pathlib import Path

import longspan
from longspan.attention import MECHANISMS, options_of

FAMILIES = Path(longspan.__file__).parent / "models" / "conversion" / "families"


def tables(tasks):
    """Return the tables of tasks; a list of their names has none."""
    return tasks.values() if isinstance(tasks, dict) else ()


def recipe_options():
    """Return mechanisms and options that recipes name, held-out evaluation included."""
    options = set()
    for path in (resources.files("longspan") / "recipes").iterdir():
        recipe = tomllib.loads(path.read_text()) if path.name.endswith(".toml") else {}
        for table in (recipe, *tables(recipe.get("tasks"))):
            for part in ("mechanisms", "evaluation"):
                for mechanism, values in table.get(part, {}).items():
                    options |= {(mechanism, x) for x in values}
        for row in recipe.get("rows", {}).values():
            for changes in (row, *tables(row.get("tasks"))):
                for part in ("options", "evaluation"):
                    mechanism = row.get("mechanism", "full")
                    options |= {(mechanism, x) for x in changes.get(part, {})}
    return options


def converted_options():
    """Return the strings that are keys in the conversions of checkpoints."""
    nodes = [x for path in FAMILIES.glob("*.py") for x in ast.walk(ast.parse(path.read_text()))]
    keys = {key for node in nodes if isinstance(node, ast.Dict) for key in node.keys}
    keys |= {x.slice for x in nodes if isinstance(x, ast.Subscript)}
    return {x.value for x in keys if isinstance(x, ast.Constant)}


def test_every_option_is_named_by_a_recipe_or_set_by_a_conversion():
    recipes, converted = recipe_options(), converted_options()
    unused = [
        f"{mechanism}.{option}"
        for mechanism in MECHANISMS
        for option in options_of(mechanism)
        if (mechanism, option) not in recipes and option not in converted and option != "seed"
    ]
    assert not unused, f"no recipe names {unused}; add a row to mechanism-ablations, or drop it"
