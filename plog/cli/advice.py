"""The advice that commands add to the text of an error."""

from __future__ import annotations

from plog.errors import (
    GroupIdNotFound,
    PlogError,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)


def explain(fault: PlogError) -> str:
    """Return an error's text, with advice where plog has some."""
    from plog.client.connection import BrokerUnreachable

    text = str(fault)
    if isinstance(fault, BrokerUnreachable):
        text += (
            " (is a broker running there? start one with `plog server`,"
            " wait until it has started, or name another address with --bootstrap-server)"
        )
    elif isinstance(fault, UnknownTopicOrPartition):
        text += " (`plog topics list` lists the topics)"
    elif isinstance(fault, GroupIdNotFound):
        text += " (`plog groups list` lists the groups)"
    elif isinstance(fault, TransactionalIdNotFound):
        text += " (`plog transactions list --all` lists the transactional ids)"
    return text
