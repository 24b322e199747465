"""Benchmarks of plog, a file per kernel or layer; the engine is a parameter of each.

asv drops PYTHONPATH. The checkout comes last on the path, so that kernels built
in place are found but an installed plog, as asv makes one per commit, goes first.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
