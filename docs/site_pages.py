"""Pages of the site that are not files of this folder, and its navigation (a hook of mkdocs).

Pages of the repository's root, the notebooks and the examples become pages of the site, links
between files of the repository become links between pages, and an entry `folder/*` of the
navigation lists the pages of a folder, so that a new mechanism, task or recipe needs no entry.
"""

import ast
import json
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
# Files outside docs/ and their addresses on the site.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "results/README.md": "results.md",
}
# Pages whose sections, or whose table, are folded on the site; a link to a section opens it.
FOLDED = ("development/decisions.md", "development/mutants.md")
SIGNATURES = re.compile(r"<!-- signatures, .*?<!-- end -->\n", re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")


def on_config(config):
    """Replace each `folder/*` of the navigation by the pages of the folder."""
    for section in config.nav:
        for title, entry in section.items():
            if isinstance(entry, str) and entry.endswith("/*"):
                section[title] = pages_of(entry.removesuffix("/*"))
    return config


def pages_of(folder: str) -> list[str]:
    """Return the pages of a folder by name, its README first."""
    files = (ROOT / "docs" / folder).iterdir()
    paths = [path for path in files if path.suffix in (".md", ".ipynb", ".py")]
    names = {path.with_suffix(".md").name for path in paths}
    return [f"{folder}/{name}" for name in sorted(names, key=lambda x: (x != "README.md", x))]


def on_files(files, config):
    """Add the pages of the repository's root, and one for each notebook and example."""
    for source, page in OUTSIDE.items():
        if files.get_file_from_path(page) is None:
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=relink(text, source, page)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        page = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, page, content=notebook_page(path)))
    for path in sorted((ROOT / "docs" / "examples").glob("*.py")):
        page = f"examples/{path.stem}.md"
        files.append(File.generated(config, page, content=example_page(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Link to pages of the site where the file links to files of the repository."""
    if page.file.generated_by is not None:
        return markdown
    if page.file.src_uri.startswith("api/"):
        # The site has the docstrings themselves.
        markdown = SIGNATURES.sub("", markdown)
    return relink(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_page_content(html, page, config, files):
    """Fold what would make a page tens of thousands of pixels high: sections, or a long table."""
    if page.file.src_uri not in FOLDED:
        return html
    if "<h2" not in html:
        return re.sub(r"<table>.*</table>", r'<div class="tall">\g<0></div>', html, flags=re.DOTALL)
    head, *sections = re.split(r"(?=<h2 )", html)
    folded = (
        section.replace("</h2>", "</h2></summary>", 1).join(("<details><summary>", "</details>"))
        for section in sections
    )
    return head + "\n".join(folded)


def relink(text: str, source: str, page: str) -> str:
    """Translate the relative links of a repository file to links from a page of the site."""

    def translate(found: re.Match) -> str:
        start, target, end = found.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.endswith(".ipynb") or path.startswith("docs/examples/"):
            path = f"{path.rpartition('.')[0]}.md"
        address = OUTSIDE.get(path) or path.removeprefix("docs/")
        return start + posixpath.relpath(address, posixpath.dirname(page) or ".") + end

    return LINK.sub(translate, text)


def notebook_page(path: Path) -> str:
    """Render a notebook: text, code, and the outputs that are stored in it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [text for output in cell.get("outputs", []) if (text := output_text(output))]
    parts.append(f"The notebook itself: [{path.name}]({path.name}).")
    # The link to the file must stay a link to the file.
    return "\n\n".join(parts) + "\n"


def output_text(output: dict) -> str:
    """Render an output of a cell as Markdown: a picture, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![Output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"```text\n{text}\n```" if text else ""


def example_page(path: Path) -> str:
    """Render a script in the percent format: docstring and Markdown cells are text."""
    source = path.read_text(encoding="utf-8")
    parts = [str(ast.get_docstring(ast.parse(source)))]
    for cell in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        kind, _, text = cell.partition("\n")
        if "[markdown]" in kind:
            parts.append(re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE))
        else:
            parts.append(f"```python\n{text.strip()}\n```")
    parts.append(f"The whole script: `{path.relative_to(ROOT).as_posix()}`.")
    return "\n\n".join(parts) + "\n"
