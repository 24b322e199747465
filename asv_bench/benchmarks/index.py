"""Lookup and check over 100,000 entries, an index of 400 MB of log.

The reference unpacks all entries for one lookup; its figure is no measure of bisection.
"""

from plog._native import index as native
from plog._reference import index as reference

from . import common

ENGINES = {"native": native, "reference": reference}


class Index:
    params = (common.ENGINES,)
    param_names = ("engine",)

    def setup(self, engine):
        self.engine = ENGINES[engine]

    def time_lookup_offset(self, engine):
        self.engine.lookup_offset(common.OFFSET_INDEX, 0, 1_234_567)

    def time_lookup_time(self, engine):
        self.engine.lookup_time(common.TIME_INDEX, 0, 1_357_012_345_678)

    def time_check_offset_index(self, engine):
        self.engine.check_offset_index(common.OFFSET_INDEX, 0)

    def time_check_time_index(self, engine):
        self.engine.check_time_index(common.TIME_INDEX, 0)
