"""One request of a consumer in a fetch session: what is read, and what of it is told."""

from plog._native import fetch_sessions as native
from plog._reference import fetch_sessions as reference

from . import common

ENGINES = {"native": native, "reference": reference}
NO_ID = bytes(16)


class FetchSessions:
    params = (common.ENGINES, [6, 200])
    param_names = ("engine", "partitions")

    def setup(self, engine, partitions):
        self.table = ENGINES[engine].SessionCache(1000)
        names = [(b"flights", NO_ID, index) for index in range(partitions)]
        asked = [(*name, 0, 1 << 20, 0, 0, 0) for name in names]
        _, self.session_id, self.epoch = self.table.begin(0, 0, asked, [], by_id=False, now_ms=0)
        self.moved = asked[:6]
        self.facts = [(*name, False, False, False, 7, 0) for name in names]

    def time_request(self, engine, partitions):
        _, _, self.epoch = self.table.begin(
            self.session_id, self.epoch, self.moved, [], by_id=False, now_ms=0
        )
        self.table.partitions(self.session_id, self.epoch)
        self.table.tell(self.session_id, self.epoch, self.facts)
