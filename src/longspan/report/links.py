"""Sources of a row: the paper of its mechanism, the mechanism's page, the commit of its runs."""

import functools
import importlib.metadata
import re

from longspan.report.leaderboard.values import Row
from longspan.report.traits import read_traits

Link = tuple[str, str | None]  # text and address; None for an address that is unknown
DIRTY = "-dirty"  # suffix of the commit of a changed working tree


def row_links(row: Row) -> tuple[Link, ...]:
    """Return the sources of a row.

    Pages and commits have an address where the package names the addresses of the project
    (`Documentation` and `Repository` of `[project.urls]`). A registered mechanism without a
    documentation site has no page; a commit without a repository is text.
    """
    links: list[Link] = []
    traits = read_traits().get(row.mechanism)
    if traits and (address := re.search(r"https?://\S+", traits.paper or "")):
        links.append(("paper", address[0]))
    if traits and (site := _project_url("documentation")):
        links.append(("page", f"{site}/mechanisms/{row.mechanism}/"))
    commits = {run.git_commit for cell in row.cells if cell for run in cell.runs if run.git_commit}
    return (*links, *(_commit_link(commit) for commit in sorted(commits)))


def _commit_link(commit: str) -> Link:
    repository, name = _project_url("repository"), commit.removesuffix(DIRTY)
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
