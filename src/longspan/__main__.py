"""The command line: `longspan` and `python -m longspan`."""

import sys

EXTRAS = {"datasets": "hub", "ray": "ray"}  # extras of optional packages; of others: arena


def main() -> None:
    """Run a command, or say which extra of the package it needs."""
    try:
        from longspan.cli import main as run

        run()
    except ModuleNotFoundError as error:
        package = (error.name or "longspan").partition(".")[0]
        # A missing module of the package itself is a broken installation: its traceback says where.
        if package == "longspan" or "--debug" in sys.argv:
            raise
        extra = EXTRAS.get(package, "arena")
        sys.stderr.write(
            f"error: the package {package} is not installed; commands need more than torch: "
            f"pip install 'longspan[{extra}]'\n"
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
