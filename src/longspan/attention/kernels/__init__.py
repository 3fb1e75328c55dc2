"""Other bodies of mechanisms, one file each; optional packages are imported only here."""
