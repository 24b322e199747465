"""Messages of many partitions to objects and back; moved by what the written functions do."""

import importlib
import sys

from plog._reference import codec as reference
from plog.protocol import codec as compiled
from plog.protocol import decoders, encoders
from plog.protocol.messages import fetch, list_offsets, metadata, produce

from . import common

ENGINES = {"compiled": compiled, "reference": reference}
FAMILIES = (fetch, list_offsets, metadata, produce)


def message_class(name):
    (found,) = {getattr(module, name) for module in FAMILIES if hasattr(module, name)}
    return found


class Message:
    params = (list(ENGINES), list(common.MESSAGES))
    param_names = ("engine", "message")

    def setup(self, engine, message):
        self.engine = ENGINES[engine]
        name, self.version, self.data = common.MESSAGES[message]
        self.cls = message_class(name)
        # The first use compiles; what is measured is every later one.
        self.message, end = self.engine.decode(self.cls, self.version, self.data)
        assert end == len(self.data)
        assert self.engine.encode(self.message, self.version) == self.data

    def time_decode(self, engine, message):
        self.engine.decode(self.cls, self.version, self.data)

    def time_encode(self, engine, message):
        self.engine.encode(self.message, self.version)


class FirstUse:
    """What the first message of each API and version costs."""

    params = (list(common.MESSAGES),)
    param_names = ("message",)

    def setup(self, message):
        name, self.version, _ = common.MESSAGES[message]
        self.cls = message_class(name)

    def time_compile_decoder(self, message):
        decoders.compile_decoder(self.cls, self.version)

    def time_compile_encoder(self, message):
        encoders.compile_encoder(self.cls, self.version)


class Declare:
    """What a start pays for the declarations of one family."""

    params = (["produce", "fetch", "replication", "topics"],)
    param_names = ("family",)

    def setup(self, family):
        self.name = f"plog.protocol.messages.{family}"
        self.kept = importlib.import_module(self.name)

    def time_import(self, family):
        del sys.modules[self.name]
        importlib.import_module(self.name)

    def teardown(self, family):
        sys.modules[self.name] = self.kept
