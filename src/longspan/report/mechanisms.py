"""Registered mechanisms: families for colors and groups, traits for filters, sources for links.

Mechanisms need torch and reports do not, which read the stored catalog.
"""

import functools
import importlib.metadata
import re
from typing import Any

from longspan.report.leaderboard.values import Row
from longspan.stored_catalog import read_catalog

OTHER = "other"  # family of a mechanism that the registry lacks
UNKNOWN = "not recorded"  # trait of a mechanism that the registry lacks
_DIRTY = "-dirty"  # suffix of the commit of a changed working tree
Link = tuple[str, str | None]  # text and address; None for an address that is unknown


@functools.cache
def read_traits() -> dict[str, dict[str, Any]]:
    """Read the traits of the registered mechanisms by name, in the order of the taxonomy.

    Each has its family (Tay et al. 2022, Efficient Transformers: A Survey), the growth of its
    cost, whether it is causal and supports cross-attention, and its paper, or "unpublished".
    """
    rows = read_catalog()["mechanisms"].items()
    return {name: {**row, "cost": row["cost"].partition(";")[0]} for name, row in rows}


@functools.cache
def families() -> tuple[str, ...]:
    """Return every family in the order of the taxonomy, `OTHER` last."""
    return (*dict.fromkeys(traits["family"] for traits in read_traits().values()), OTHER)


def family_of(mechanism: str) -> str:
    """Return the family of a mechanism."""
    traits = read_traits().get(mechanism)
    return traits["family"] if traits else OTHER


def row_traits(row: Row) -> dict[str, str]:
    """Return the traits that a row can be filtered by; a reference row has none."""
    if row.reference is not None:
        return {}
    registered_traits = read_traits().get(row.mechanism, {})
    words = {True: "yes", False: "no"}
    traits = {name: registered_traits.get(name, UNKNOWN) for name in ("cost", "causal", "cross")}
    return {"family": row.family or UNKNOWN} | {x: words.get(y, y) for x, y in traits.items()}


def row_links(row: Row) -> tuple[Link, ...]:
    """Return the sources of a row.

    Pages and commits have an address where the package names the addresses of the project
    (`Documentation` and `Repository` of `[project.urls]`). A registered mechanism without a
    documentation site has no page; a commit without a repository is text.
    """
    links: list[Link] = []
    traits = read_traits().get(row.mechanism)
    if traits and (address := re.search(r"https?://\S+", traits["paper"])):
        links.append(("paper", address[0]))
    if traits and (site := _project_url("documentation")):
        links.append(("page", f"{site}/mechanisms/{row.mechanism}/"))
    commits = {run.git_commit for cell in row.cells for run in cell.runs if run.git_commit}
    return (*links, *(_commit_link(commit) for commit in sorted(commits)))


def _commit_link(commit: str) -> Link:
    repository, name = _project_url("repository"), commit.removesuffix(_DIRTY)
    text = name[:7] + (" changed" if name != commit else "")
    is_hash = re.fullmatch(r"[0-9a-f]{7,40}", name) is not None
    return text, f"{repository}/commit/{name}" if repository and is_hash else None


@functools.cache
def _project_url(name: str) -> str | None:
    """Return an address of the project by its name in the package's metadata."""
    try:
        urls = importlib.metadata.metadata("longspan").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    pairs = (url.split(",", 1) for url in urls)
    addresses = {label.strip().lower(): address.strip() for label, address in pairs}
    return addresses[name].rstrip("/") if name in addresses else None
