"""Names the brokers of a state by what they are, so that states that differ by names are one."""

from __future__ import annotations

from itertools import permutations

from tests.cluster.replication.model import BROKERS, EVERY, MEMBERS, NONE, Lead, Replica, State

NAMES = list(permutations(BROKERS))
RENAMED = {
    names: [sum(1 << names[one] for one in MEMBERS[mask]) for mask in range(EVERY + 1)]
    for names in NAMES
}


def canonical(state: State) -> State:
    """Return the state with its brokers named by what they are.

    States that differ by names only become one, except where brokers are alike: that costs time.
    """
    marks = [
        (
            state.leader == broker,
            state.isr >> broker & 1,
            state.alive >> broker & 1,
            replica.epoch,
            replica.log,
            NONE if replica.lead is None else replica.lead.hw,
            tuple((leader == broker, members >> broker & 1) for leader, members in state.orders),
            tuple(
                sorted(
                    (
                        other.epoch,
                        other.lead.positions[broker],
                        other.lead.isr >> broker & 1,
                        other.lead.current >> broker & 1,
                        other.lead.proposed >> broker & 1 if other.lead.proposed != NONE else NONE,
                    )
                    for other in state.replicas
                    if other.lead is not None and other is not replica
                )
            ),
        )
        for broker, replica in enumerate(state.replicas)
    ]
    order = sorted(BROKERS, key=marks.__getitem__)
    if order == list(BROKERS):
        return state
    names = [0, 0, 0]
    for new, old in enumerate(order):
        names[old] = new
    return _renamed(state, tuple(names), order)


def _renamed(state: State, names: tuple[int, ...], order: list[int]) -> State:
    masks = RENAMED[names]

    def renamed(replica: Replica) -> Replica:
        if replica.lead is None:
            return replica
        hw, written, proposed, asked, positions, current = replica.lead
        lead = Lead(
            hw,
            masks[written],
            proposed if proposed == NONE else masks[proposed],
            asked,
            tuple(positions[old] for old in order),
            masks[current],
        )
        return Replica(replica.epoch, replica.log, lead, replica.waits)

    return State(
        state.leader if state.leader < 0 else names[state.leader],
        masks[state.isr],
        masks[state.alive],
        tuple(
            (leader if leader < 0 else names[leader], masks[members])
            for leader, members in state.orders
        ),
        state.made,
        state.acked,
        tuple(renamed(state.replicas[old]) for old in order),
    )
