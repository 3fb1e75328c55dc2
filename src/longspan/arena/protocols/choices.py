"""Choices of protocols: values that sources leave open or on which they disagree, with reasons."""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from longspan.arena.protocols.toml_tables import check_fields, check_list, check_table, naming
from longspan.errors import OptionError, check_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """Value that the sources leave open, or on which they disagree, with the reason for it.

    Attributes:
        tasks: tasks of the protocol that it concerns.
        field: dotted name, such as training.steps; mechanism.MECHANISM.OPTION for an option.
        source: origin of the value.
        instead: other values and their origins; empty where the other sources are silent.
        why: reason for the choice.
    """

    tasks: tuple[str, ...]
    field: str
    source: str
    instead: tuple[tuple[Any, str], ...] = ()
    why: str

    def describe(self, value: Any) -> str:
        """Return the value, alternatives and reason as one line."""
        alternatives = f"; not {self.alternatives}" if self.instead else ""
        return f"{value} ({self.source}){alternatives}: {self.why}"

    @property
    def alternatives(self) -> str:
        """Other values, with their sources, as one line."""
        by_source: dict[str, list[str]] = {}
        for value, source in self.instead:
            by_source.setdefault(source, []).append(str(value))
        return "; not ".join(f"{' or '.join(x)} ({source})" for source, x in by_source.items())


def read_choices(tables: Iterable[Any], tasks: Collection[str]) -> list[Choice]:
    """Return the choices of a file, one for each field.

    Args:
        tables: tables `choices` of the file.
        tasks: tasks of the file.

    Raises:
        UnknownNameError: there is no such field or task; the message suggests near names.
        OptionError: a table lacks a field.
    """
    choices = []
    for number, table in enumerate(tables, start=1):
        with naming(f"choices {number}"):
            check_fields(
                check_table(table),
                ("fields", "tasks", "source", "instead", "why"),
                "field of a choice",
            )
            if missing := [x for x in ("fields", "source", "why") if not table.get(x)]:
                raise OptionError(f"requires {', '.join(missing)}; set them")
            for task in check_list(table.get("tasks", []), str, "tasks"):
                check_name(task, tasks, "task of this file")
            fields = check_list(table["fields"], str, "fields")
            for other in check_list(table.get("instead", []), dict, "instead"):
                check_fields(other, ("value", "source", *fields), "field of an alternative")
                if "source" not in other:
                    raise OptionError(f"instead requires source, got {other!r:.60}")
            # The value of an alternative is named by the field, or plain if there is one field.
            alternatives = [
                {**dict.fromkeys(fields, x["value"]), **x} if "value" in x else x
                for x in table.get("instead", ())
            ]
            choices += [
                Choice(
                    tasks=tuple(table.get("tasks", tasks)),
                    field=field,
                    source=table["source"],
                    instead=tuple((x[field], x["source"]) for x in alternatives if field in x),
                    why=table["why"],
                )
                for field in fields
            ]
    return choices
