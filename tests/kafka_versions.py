"""The APIs of Kafka's brokers, and the page that lists those that plog does not support.

`tests/compat/test_kafka_versions.py` compares the lists here with releases of Kafka's own client.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "SKIPPED.md"


class Api(NamedTuple):
    """An API as Kafka 4.4's brokers support it."""

    name: str
    lowest: int
    highest: int
    unstable: int | None = None
    """A higher version, which brokers offer only with unstable.api.versions.enable."""


class Row(NamedTuple):
    """An API in the page's table of Kafka 4.4."""

    name: str
    key: int
    kafka: str
    plog: str


# The versions of a 3.9 broker in ZooKeeper mode: key, lowest and highest version.
KAFKA_3_9 = {
    0: (0, 11),
    1: (0, 17),
    2: (0, 9),
    3: (0, 12),
    4: (0, 7),
    5: (0, 4),
    6: (0, 8),
    7: (0, 3),
    8: (0, 9),
    9: (0, 9),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 5),
    16: (0, 5),
    17: (0, 1),
    18: (0, 4),
    19: (0, 7),
    20: (0, 6),
    21: (0, 2),
    22: (0, 5),
    23: (0, 4),
    24: (0, 5),
    25: (0, 4),
    26: (0, 4),
    27: (0, 1),
    28: (0, 4),
    29: (0, 3),
    30: (0, 3),
    31: (0, 3),
    32: (0, 4),
    33: (0, 2),
    34: (0, 2),
    35: (0, 4),
    36: (0, 2),
    37: (0, 3),
    38: (0, 3),
    39: (0, 2),
    40: (0, 2),
    41: (0, 3),
    42: (0, 2),
    43: (0, 2),
    44: (0, 1),
    45: (0, 0),
    46: (0, 0),
    47: (0, 0),
    48: (0, 1),
    49: (0, 1),
    50: (0, 0),
    51: (0, 0),
    56: (0, 3),
    57: (0, 1),
    58: (0, 0),
    60: (0, 1),
    61: (0, 0),
    65: (0, 0),
    66: (0, 1),
    67: (0, 0),
    68: (0, 0),
    69: (0, 0),
}

# The APIs of a 4.4 broker, by key.
KAFKA_4_4 = {
    0: Api("Produce", 3, 13),
    1: Api("Fetch", 4, 18),
    2: Api("ListOffsets", 1, 11),
    3: Api("Metadata", 0, 13),
    8: Api("OffsetCommit", 2, 10),
    9: Api("OffsetFetch", 1, 10),
    10: Api("FindCoordinator", 0, 6),
    11: Api("JoinGroup", 0, 9),
    12: Api("Heartbeat", 0, 4),
    13: Api("LeaveGroup", 0, 5),
    14: Api("SyncGroup", 0, 5),
    15: Api("DescribeGroups", 0, 6),
    16: Api("ListGroups", 0, 5),
    17: Api("SaslHandshake", 0, 1),
    18: Api("ApiVersions", 0, 5),
    19: Api("CreateTopics", 2, 7),
    20: Api("DeleteTopics", 1, 6),
    21: Api("DeleteRecords", 0, 2),
    22: Api("InitProducerId", 0, 5, 6),
    23: Api("OffsetForLeaderEpoch", 2, 4),
    24: Api("AddPartitionsToTxn", 0, 5),
    25: Api("AddOffsetsToTxn", 0, 4),
    26: Api("EndTxn", 0, 5),
    27: Api("WriteTxnMarkers", 1, 2),
    28: Api("TxnOffsetCommit", 0, 6),
    29: Api("DescribeAcls", 1, 3),
    30: Api("CreateAcls", 1, 3),
    31: Api("DeleteAcls", 1, 3),
    32: Api("DescribeConfigs", 1, 4),
    33: Api("AlterConfigs", 0, 2),
    34: Api("AlterReplicaLogDirs", 1, 2),
    35: Api("DescribeLogDirs", 1, 5),
    36: Api("SaslAuthenticate", 0, 2),
    37: Api("CreatePartitions", 0, 3),
    38: Api("CreateDelegationToken", 1, 3),
    39: Api("RenewDelegationToken", 1, 2),
    40: Api("ExpireDelegationToken", 1, 2),
    41: Api("DescribeDelegationToken", 1, 3),
    42: Api("DeleteGroups", 0, 3),
    43: Api("ElectLeaders", 0, 2),
    44: Api("IncrementalAlterConfigs", 0, 1),
    45: Api("AlterPartitionReassignments", 0, 1),
    46: Api("ListPartitionReassignments", 0, 0),
    47: Api("OffsetDelete", 0, 0),
    48: Api("DescribeClientQuotas", 0, 1),
    49: Api("AlterClientQuotas", 0, 1),
    50: Api("DescribeUserScramCredentials", 0, 0),
    51: Api("AlterUserScramCredentials", 0, 0),
    55: Api("DescribeQuorum", 0, 2),
    57: Api("UpdateFeatures", 0, 2),
    60: Api("DescribeCluster", 0, 2),
    61: Api("DescribeProducers", 0, 0),
    64: Api("UnregisterBroker", 0, 0),
    65: Api("DescribeTransactions", 0, 0),
    66: Api("ListTransactions", 0, 2),
    68: Api("ConsumerGroupHeartbeat", 0, 1),
    69: Api("ConsumerGroupDescribe", 0, 1),
    71: Api("GetTelemetrySubscriptions", 0, 0),
    72: Api("PushTelemetry", 0, 0),
    74: Api("ListConfigResources", 0, 1),
    75: Api("DescribeTopicPartitions", 0, 0),
    76: Api("ShareGroupHeartbeat", 1, 1),
    77: Api("ShareGroupDescribe", 1, 1),
    78: Api("ShareFetch", 1, 2),
    79: Api("ShareAcknowledge", 1, 2),
    80: Api("AddRaftVoter", 0, 1),
    81: Api("RemoveRaftVoter", 0, 0),
    83: Api("InitializeShareGroupState", 0, 0),
    84: Api("ReadShareGroupState", 0, 0),
    85: Api("WriteShareGroupState", 0, 1),
    86: Api("DeleteShareGroupState", 0, 0),
    87: Api("ReadShareGroupStateSummary", 0, 1),
    88: Api("StreamsGroupHeartbeat", 0, 1),
    89: Api("StreamsGroupDescribe", 0, 1),
    90: Api("DescribeShareGroupOffsets", 0, 1),
    91: Api("AlterShareGroupOffsets", 0, 0),
    92: Api("DeleteShareGroupOffsets", 0, 0),
    93: Api("StreamsGroupTopologyDescriptionUpdate", 0, 0),
    94: Api("UnregisterController", 0, 0),
}

ENTRY = re.compile(r"- `(\w+) \((\d+)\)`(?: v(\d+)(?:-v?(\d+))?)?: \S.*")
ROW = re.compile(r"\| `(\w+) \((\d+)\)` \| ([^|]+) \| ([^|]+) \| [^|]{5,} \| [^|]{5,} \|")
TABLE = "## Kafka 4.4"


def table() -> list[Row]:
    """Return the rows of the page's table of Kafka 4.4."""
    _, _, rest = PAGE.read_text().partition(f"\n{TABLE}\n")
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    rows = []
    for line in lines:
        match = ROW.fullmatch(line)
        assert match is not None, f"not a row of the table: {line}"
        rows.append(Row(match[1], int(match[2]), match[3], match[4]))
    return rows


def skipped() -> dict[int, list[tuple[int, int] | None]]:
    """Return what the page lists: by key, ranges of versions, None for the whole API."""
    found: dict[int, list[tuple[int, int] | None]] = {}
    for line in PAGE.read_text().splitlines():
        if not line.startswith("- `"):
            continue
        match = ENTRY.fullmatch(line)
        assert match is not None, f"not of the form of an entry: {line}"
        _, key, low, high = match.groups()
        versions = None if low is None else (int(low), int(high or low))
        found.setdefault(int(key), []).append(versions)
    for row in table():
        if row.plog == "none":
            found.setdefault(row.key, []).append(None)
    return found


def highest_supported() -> dict[int, int]:
    """Return the highest version of each API that plog supports, as the page says."""
    listed = {row.key: row.plog for row in table()}
    absent = {key for key, versions in listed.items() if versions == "none"}
    return {
        key: int(listed.get(key, api.highest))
        for key, api in KAFKA_4_4.items()
        if key not in absent
    }


def names() -> dict[int, str]:
    """Return the name of each API that the page lists."""
    entries = map(ENTRY.fullmatch, PAGE.read_text().splitlines())
    listed = {int(match[2]): match[1] for match in entries if match is not None}
    return listed | {row.key: row.name for row in table()}
