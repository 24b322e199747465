"""The requests that are kept of real clients are those that they send today, and lack no API."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from plog._native.batch import check_batch
from plog._native.compression import GZIP, LZ4, SNAPPY, ZSTD
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.fetch import FetchRequest
from tests.compat.programs import FRANZ_GO, JAVA
from tests.compat.record_requests import (
    CLIENTS,
    LARGEST,
    MEMBER_ID,
    STANDS_FOR_ID,
    lines,
    record,
)
from tests.compat.requests import DIRECTORY, Request, all_kept, kept
from tests.served import SERVED

CODEC = 0x07
each_client = pytest.mark.parametrize("client", CLIENTS)


def kinds(requests: Iterable[Request]) -> set[tuple[str, int]]:
    return {(ApiKey(one.header.api_key).name, one.header.api_version) for one in requests}


def codecs(requests: Iterable[Request]) -> set[int]:
    return {check_batch(batch).attributes & CODEC for one in requests for batch in one.batches()}


@each_client
def test_client_sends_today_what_is_kept_of_it(client: str, tmp_path: Path) -> None:
    today = record(client, tmp_path)
    anew = f"python -m tests.compat.record_requests {client}"
    assert kinds(today) == kinds(kept(client)), anew
    assert codecs(today) == codecs(kept(client)), anew


@each_client
def test_kept_requests_are_whole_and_their_batches_right(client: str) -> None:
    requests = kept(client)
    assert lines(client, requests) == (DIRECTORY / f"{client}.txt").read_text("ascii")
    assert max(len(one.frame) for one in requests) <= LARGEST
    unread = [one for one in requests if one.message is None]
    assert all(one.header.api_key == ApiKey.API_VERSIONS for one in unread)
    assert codecs(requests) == {0, GZIP, SNAPPY, LZ4, ZSTD}


@pytest.mark.parametrize("client", [one.name for one in (*JAVA, FRANZ_GO)])
def test_sessions_are_opened_gone_on_with_and_ended(client: str) -> None:
    found = {
        (one.message.session_id != 0, one.message.session_epoch)
        for one in kept(client)
        if isinstance(one.message, FetchRequest)
    }
    assert found >= {(False, 0), (True, 1), (True, -1)}


def test_every_api_that_is_served_has_been_asked_for() -> None:
    asked = {one.header.api_key for one in all_kept()}
    # Nobody of these asks for features, and for what has configs; Kafka's tools do
    # (test_kafka_transaction_tools, test_kafka_group_configs).
    never = {ApiKey.UPDATE_FEATURES, ApiKey.LIST_CONFIG_RESOURCES}
    assert SERVED.keys() - asked == never


@pytest.mark.parametrize("client", sorted(set(CLIENTS) - {FRANZ_GO.name}))
def test_clients_have_been_in_groups_and_transactions(client: str) -> None:
    assert {name for name, _ in kinds(kept(client))} >= {
        "JOIN_GROUP",
        "SYNC_GROUP",
        "HEARTBEAT",
        "LEAVE_GROUP",
        "OFFSET_COMMIT",
        "OFFSET_FETCH",
        "TXN_OFFSET_COMMIT",
        "END_TXN",
        "DESCRIBE_GROUPS",
        "LIST_GROUPS",
    }
    # What is written joins by itself where each transaction has an epoch of its own (KIP-890).
    joins = {"ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN"} & {
        name for name, _ in kinds(kept(client))
    }
    assert len(joins) == (0 if client == JAVA[-1].name else 2)


def test_nothing_of_a_member_is_the_brokers_own() -> None:
    assert {match.group() for one in all_kept() for match in MEMBER_ID.finditer(one.frame)} == {
        STANDS_FOR_ID
    }
