"""Records of `benchmarks/synthetic_records.py`."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).parents[1] / "benchmarks" / "synthetic_records.py"
_SPEC = importlib.util.spec_from_file_location("synthetic_records", _PATH)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)

record, records = _MODULE.record, _MODULE.records
