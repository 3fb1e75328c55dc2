"""Protocols: recipes of the package and of users; importing the package registers the former."""

from longspan.arena.protocols.base import PROTOCOLS, Protocol, Recipe, get, register
from longspan.arena.protocols.choices import Choice
from longspan.arena.protocols.files import register_recipes

register_recipes()

__all__ = ["PROTOCOLS", "Choice", "Protocol", "Recipe", "get", "register"]
