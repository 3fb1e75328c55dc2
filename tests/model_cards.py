"""Code of the model cards of exported folders."""

import re


def code_of(folder):
    """Return the code of a card, which loads the folder."""
    text = (folder / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return code.replace("FOLDER OR NAME ON THE HUB", str(folder))
