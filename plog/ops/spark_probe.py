"""What a Python tells of itself, asked as Spark asks it: run there with -c, it prints JSON.

`spark_doctor` sends this file's text to Pythons of any release, with plog or without, so that it
imports nothing but the standard library and does without new syntax.
"""

import importlib
import json
import os
import pkgutil
import sys


def imported(name: str) -> dict:  # type: ignore[type-arg]
    """Import a module; return its version and place, or why that fails."""
    try:
        module = importlib.import_module(name)
    except BaseException as fault:  # noqa: BLE001 - a module may raise anything, or exit
        return {"error": "%s: %s" % (type(fault).__name__, fault)}  # noqa: UP031
    file = getattr(module, "__file__", None)
    if file is None:  # a namespace package: whatever folder has the name
        return {"error": "%s is a folder, and no package" % next(iter(module.__path__))}  # noqa: UP031
    return {"version": str(getattr(module, "__version__", "")), "file": file}


def tell() -> dict:  # type: ignore[type-arg]
    """Return what Spark's search would come upon."""
    found = {name: imported(name) for name in ("pyspark", "pyarrow", "plog")}
    # As pyspark/sql/worker/lookup_data_sources.py: one that fails ends the search.
    sources = [one.name for one in pkgutil.iter_modules() if one.name.startswith("pyspark_")]
    return {
        "executable": sys.executable,
        "python": list(sys.version_info[:3]),
        "modules": found,
        "sources": {name: imported(name) for name in sources},
    }


if __name__ == "__main__":
    # What modules print goes elsewhere.
    answer = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(tell())
    os.write(answer, text.encode("ascii"))
