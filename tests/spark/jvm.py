"""How tests start Spark's JVMs.

An archive of the loaded classes (class data sharing) halves the processor time of a start, about
4 s. It is not used: to write it takes 50 s in each new checkout, and a run starts a dozen JVMs.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests are short: the best code and parallel collection cost more than they save."""
