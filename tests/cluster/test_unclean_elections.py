"""Unclean elections that are allowed while brokers run: the controller hears of it, once."""

from __future__ import annotations

import pytest

from plog.cluster.unclean_elections import UncleanElections
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings

KEY = "unclean.leader.election.enable"


@pytest.fixture
def settings() -> DynamicSettings:
    return DynamicSettings(BrokerSettings())


@pytest.fixture
def heard(settings: DynamicSettings) -> list[str | None]:
    heard: list[str | None] = []
    UncleanElections(settings, heard.append)
    return heard


def test_topic_that_allows_them_is_reported_once(
    settings: DynamicSettings, heard: list[str | None]
) -> None:
    settings.apply_topic("a", {"retention.ms": "5"})
    settings.apply_topic("a", {KEY: "true"})
    settings.apply_topic("a", {KEY: "true", "retention.ms": "5"})
    settings.apply_topic("b", {KEY: "false"})
    assert heard == ["a"]
    settings.apply_topic("a", {})
    settings.apply_topic("a", {KEY: "true"})
    assert heard == ["a", "a"]


def test_default_that_allows_them_is_reported_once(
    settings: DynamicSettings, heard: list[str | None]
) -> None:
    for configs in ({}, {KEY: "true"}, {KEY: "true", "num.partitions": "3"}, {}, {KEY: "true"}):
        settings.apply_cluster_default(configs)
    assert heard == [None, None]
