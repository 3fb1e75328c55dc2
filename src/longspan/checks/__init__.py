"""Whether records can be believed: rules over one record, and over many beside each other.

For records that others contribute. A rule is a small function that yields what it finds wrong;
`check` reads files and applies every rule. Nothing here needs torch: whether a record keeps to the
recipe of its protocol is `arena.protocols.conformity`, which is handed to `check` as one more rule.
"""

from longspan.checks.across import ACROSS
from longspan.checks.base import Checked, Fault, Filed, Finding, Rule, printable
from longspan.checks.reading import RULES, check

__all__ = ["ACROSS", "RULES", "Checked", "Fault", "Filed", "Finding", "Rule", "check", "printable"]
