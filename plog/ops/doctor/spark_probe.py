"""Reports, as JSON, what Spark would find in a Python. The module `spark` runs it there with -c.

The Python may be of any release, with plog or without. So this file imports only the standard
library and uses no new syntax.
"""

import importlib
import json
import os
import pkgutil
import sys


def imported(name: str) -> dict:  # type: ignore[type-arg]
    """Import a module; return its version and file, or the error."""
    try:
        module = importlib.import_module(name)
    except BaseException as fault:  # noqa: BLE001 - a module may raise anything, or exit
        return {"error": "%s: %s" % (type(fault).__name__, fault)}  # noqa: UP031
    file = getattr(module, "__file__", None)
    if file is None:  # a namespace package: any folder of that name
        return {"error": "%s is a folder, not a package" % next(iter(module.__path__))}  # noqa: UP031
    return {"version": str(getattr(module, "__version__", "")), "file": file}


def report() -> dict:  # type: ignore[type-arg]
    """Return the modules that Spark's search would find."""
    found = {name: imported(name) for name in ("pyspark", "pyarrow", "plog")}
    # Like pyspark/sql/worker/lookup_data_sources.py: a failing import ends the search.
    sources = [one.name for one in pkgutil.iter_modules() if one.name.startswith("pyspark_")]
    return {
        "executable": sys.executable,
        "python": list(sys.version_info[:3]),
        "modules": found,
        "sources": {name: imported(name) for name in sources},
    }


if __name__ == "__main__":
    # Output of the imported modules goes to stderr.
    stdout = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(report())
    os.write(stdout, text.encode("ascii"))
