"""Compiled codec against interpreter, for every message at every version."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plog._reference import codec as reference
from plog.errors import InvalidRequest, MalformedBytes, UnsupportedVersion
from plog.protocol import codec
from plog.protocol.schema import Field, Struct
from tests.agreement.harness import outcome
from tests.protocol.instances import MESSAGES, VERSIONS, name_of, sample, strategy

each_version = pytest.mark.parametrize(("cls", "version"), VERSIONS, ids=name_of)
OTHER = {
    "int8": 5,
    "int16": 5,
    "uint16": 5,
    "int32": 5,
    "int64": 5,
    "string": "set",
    "uuid": uuid.UUID(int=5),
}
"""Values that are no field's default."""
SIZED = ("string", "bytes", "records", "array")
UNFIT = {
    # In flexible versions, too: Kafka keeps strings below 2**15 bytes, whatever a varint can say.
    "string": ("\u00e9" * 16384, "\ud800"),
    "int8": (128, -129, None),
    "int16": (2**15, -(2**15) - 1),
    "uint16": (-1, 2**16),
    "int32": (2**31, -(2**31) - 1, "1"),
    "int64": (2**63, None),
}

few = settings(max_examples=4, print_blob=True, suppress_health_check=list(HealthCheck))


def places(cls: type[Struct], version: int) -> Iterator[tuple[Struct, Struct, Field]]:
    """Yield each field of a message and the structures in it; put its value back afterwards."""
    message = sample(cls, version, random.Random(f"{cls.__name__} {version}"))
    for held in list(structures(message)):
        for f in held.fields:
            value = getattr(held, f.name)
            yield message, held, f
            setattr(held, f.name, value)


def structures(held: Any) -> Iterator[Struct]:
    """Yield a structure and those inside it, but for defaults, which are shared."""
    yield held
    for f in held.fields:
        value = getattr(held, f.name)
        if f.struct is not None and value is not None and value != f.default():
            for inner in value if f.kind == "array" else [value]:
                yield from structures(inner)


@each_version
@few
@given(data=st.data())
def test_message_comes_back_whole_and_both_engines_write_the_same(cls, version, data):
    message = data.draw(strategy(cls, version))
    wire = codec.encode(message, version)
    assert wire == reference.encode(message, version)
    assert codec.encode(message, version, head=b"head") == b"head" + wire
    for decode in (codec.decode, reference.decode):
        assert decode(cls, version, wire) == (message, len(wire))


@each_version
def test_every_prefix_is_refused_alike_and_a_tail_is_left_alone(cls, version):
    rng = random.Random(f"{cls.__name__} {version}")
    message = sample(cls, version, rng)
    wire = codec.encode(message, version)
    for cut in range(len(wire)):
        compiled = outcome(codec.decode, cls, version, wire[:cut])
        assert compiled[:2] == ("error", InvalidRequest)
        assert compiled == outcome(reference.decode, cls, version, wire[:cut])
    for data in (b"head" + wire + b"tail", memoryview(b"head" + wire), bytearray(b"head" + wire)):
        for decode in (codec.decode, reference.decode):
            assert decode(cls, version, data, 4) == (message, 4 + len(wire))


@each_version
def test_field_the_version_lacks_is_dropped_if_ignorable_and_refused_otherwise(cls, version):
    for message, held, f in places(cls, version):
        if version in f.versions or f.kind in ("array", "struct"):
            continue
        blank = codec.encode(message, version)
        setattr(held, f.name, not f.fallback if f.kind == "bool" else OTHER[f.kind])
        if f.ignorable:
            assert codec.encode(message, version) == blank == reference.encode(message, version)
        else:
            found = outcome(codec.encode, message, version)
            assert found[:2] == ("error", UnsupportedVersion)
            assert f.name in found[2]
            assert found == outcome(reference.encode, message, version)


@each_version
def test_null_where_the_version_has_none_is_refused(cls, version):
    for message, held, f in places(cls, version):
        if version not in f.versions or version in f.nullable or f.kind not in SIZED:
            continue
        setattr(held, f.name, None)
        found = outcome(codec.encode, message, version)
        assert found[:2] == ("error", UnsupportedVersion)
        assert found == outcome(reference.encode, message, version)


@each_version
def test_value_that_does_not_fit_its_type_is_refused(cls, version):
    for message, held, f in places(cls, version):
        if version not in f.versions or f.kind not in UNFIT:
            continue
        for unfit in UNFIT[f.kind]:
            setattr(held, f.name, unfit)
            found = outcome(codec.encode, message, version)
            assert found[:2] == ("error", MalformedBytes)
            assert f"{f.name} cannot hold" in found[2]
            assert found == outcome(reference.encode, message, version)


@pytest.mark.parametrize("cls", MESSAGES, ids=name_of)
@pytest.mark.parametrize("engine", [codec, reference], ids=["compiled", "reference"])
def test_version_that_is_not_declared_is_refused(engine, cls):
    message = sample(cls, cls.api.versions.high, random.Random(0))
    for version in (-1, cls.api.versions.high + 1):
        with pytest.raises(UnsupportedVersion, match="has no version"):
            engine.encode(message, version)
        with pytest.raises(InvalidRequest, match="has no version"):
            engine.decode(cls, version, b"\0" * 64)


def test_request_and_response_of_an_api_have_the_same_versions():
    for cls in MESSAGES:
        (peer,) = (other for other in MESSAGES if other.api.key == cls.api.key and other is not cls)
        assert peer.api == cls.api


def test_text_of_a_compiled_function_is_kept():
    assert issubclass(MESSAGES[0], Struct)
    assert "def encode(" in codec.encoder(MESSAGES[0], 0).__source__  # type: ignore[attr-defined]
