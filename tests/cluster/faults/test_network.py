"""Cuts in one direction lose just what goes in that direction, until they are taken back."""

from __future__ import annotations

import socket

import pytest

from . import network
from .network import Link, Network, Way

PATIENCE_S = 60.0


def bound(made: Network, namespace: str, address: str) -> socket.socket:
    """Return a socket in a namespace."""
    with made.entered(namespace):
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind((address, 0))
    found.settimeout(PATIENCE_S)
    return found


@pytest.mark.parametrize("way", Way)
def test_cut_one_way(way: Way) -> None:
    with network.network() as made:
        hub = bound(made, made.hub, f"{Link.CLIENTS.network}.254")
        broker = bound(made, made.brokers[0], Link.CLIENTS.address(0))
        sender, receiver = (broker, hub) if way is Way.FROM_BROKER else (hub, broker)
        with hub, broker:
            made.cut_one_way(0, way, Link.CLIENTS)
            sender.sendto(b"lost", receiver.getsockname())
            receiver.sendto(b"the other way", sender.getsockname())
            assert sender.recv(100) == b"the other way"
            made.cut_one_way(0, way, Link.CLIENTS, is_cut=False)
            sender.sendto(b"later", receiver.getsockname())
            assert receiver.recv(100) == b"later"


def test_cut_one_way_ends_though_another_has_ended_it() -> None:
    with network.network() as made:
        made.cut_one_way(0, Way.FROM_BROKER, Link.BROKERS)
        made.cut_one_way(1, Way.TO_BROKER, Link.BROKERS)
        made.cut_one_way(0, Way.FROM_BROKER, Link.BROKERS, is_cut=False)
        made.cut_one_way(1, Way.TO_BROKER, Link.BROKERS, is_cut=False)
