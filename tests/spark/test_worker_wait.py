"""How long Spark waits for a stream's Python process, as the page states it; without Spark.

Reads the time from Spark's class file. It is a constant in the code there, and so no setting.
"""

from __future__ import annotations

import re
import struct
from zipfile import ZipFile

import pyspark

from tests.conftest import ROOT
from tests.spark.jvm import INSTALLED

FACTORY = "org/apache/spark/api/python/PythonWorkerFactory.class"
"""The class that starts a Python process for each source of a stream."""
SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4}
SIZES |= {15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
"""Bytes of a constant by its tag; a text, tag 1, has a length."""
TEXT, LONG, DOUBLE, STRING, METHOD, NAME_AND_TYPE = 1, 5, 6, 8, 10, 12
FIRST_CONSTANT = 10
LOAD_LONG_THEN_CALL = re.compile(rb"\x14(..)\xb6(..)", re.DOTALL)
"""ldc2_w and invokevirtual: a method is called with a constant as its last argument."""


class ClassFile:
    """The constants and the code of a compiled class."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self._constants: dict[int, tuple[int, bytes]] = {}
        (count,) = struct.unpack_from(">H", code, FIRST_CONSTANT - 2)
        at, index = FIRST_CONSTANT, 1
        while index < count:
            tag = code[at]
            size = 2 + struct.unpack_from(">H", code, at + 1)[0] if tag == TEXT else SIZES[tag]
            self._constants[index] = tag, code[at + 1 : at + 1 + size]
            at += 1 + size
            # A constant of eight bytes has two numbers.
            index += 2 if tag in (LONG, DOUBLE) else 1

    def tag(self, index: int) -> int:
        """Return the tag of a constant; 0 if there is none."""
        return self._constants.get(index, (0, b""))[0]

    def value(self, index: int) -> str:
        """Return a constant as text; a method is `class.name:type`."""
        tag, value = self._constants[index]
        if tag == TEXT:
            return value[2:].decode(errors="replace")
        if tag == LONG:
            return str(struct.unpack(">q", value)[0])
        parts = [self.value(part) for part in struct.unpack(f">{len(value) // 2}H", value)]
        return (":" if tag == NAME_AND_TYPE else ".").join(parts)

    def strings(self) -> list[str]:
        """Return the strings that the code uses."""
        return [self.value(index) for index in self._constants if self.tag(index) == STRING]

    def calls_with_a_long(self) -> list[tuple[str, int]]:
        """Return the methods that are called with a constant, and the constant."""
        pairs = [
            (struct.unpack(">H", long)[0], struct.unpack(">H", method)[0])
            for long, method in LOAD_LONG_THEN_CALL.findall(self.code)
        ]
        return [
            (self.value(method), int(self.value(long)))
            for long, method in pairs
            if (self.tag(long), self.tag(method)) == (LONG, METHOD)
        ]


def test_spark_waits_for_a_python_process_as_long_as_the_page_says() -> None:
    page = (ROOT / "docs" / "SPARK.md").read_text("utf-8")
    section = " ".join(page.partition("### A busy driver")[2].partition("\n#")[0].split())
    message, wait_s = re.findall(r"^`([^`]+)`.* waits (\d+) s for its connection", section)[0]
    (version,) = re.findall(r"No setting of Spark (\d+\.\d+) changes these", section)
    assert pyspark.__version__.startswith(f"{version}.")
    (jar,) = (INSTALLED / "jars").glob("spark-core_*.jar")
    with ZipFile(jar) as archive:
        factory = ClassFile(archive.read(FACTORY))
    assert f"{message}." in factory.strings()
    waits = [call for call in factory.calls_with_a_long() if "Selector.select:" in call[0]]
    assert waits == [("java/nio/channels/Selector.select:(J)I", int(wait_s) * 1000)]
