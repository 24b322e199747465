"""`plog adopt`: take over a Kafka broker's data directory, and give it back."""

from __future__ import annotations

import click

from plog.cli.output import json_option, print_json, print_rows


@click.command()
@click.argument("properties", type=click.Path(dir_okay=False))
@click.option(
    "--zookeeper",
    required=True,
    metavar="HOST:PORT[,...][/CHROOT]",
    help="As zookeeper.connect of the Kafka broker.",
)
@click.option(
    "--give-back",
    is_flag=True,
    help="The other way: write plog's topics and configs into ZooKeeper, for a Kafka broker.",
)
@json_option
def command(properties: str, zookeeper: str, give_back: bool, as_json: bool) -> None:
    """Take over what a Kafka broker's log directories do not hold: topics' configs, from ZooKeeper.

    PROPERTIES is the file that plog will run with; its log.dirs and broker.id are the Kafka
    broker's, which must be stopped. Records stay where they are. Then start plog:

    \b
      plog adopt --zookeeper zk1:2181/kafka /etc/plog/server.properties
      plog server /etc/plog/server.properties

    Without this, plog serves the same records, but finds topics by their directories alone: it
    knows no configs, and switches their retention off. May be done again: topics that plog knows
    keep their configs. Topics with a part on another broker are refused, and with them all.

    With --give-back, a Kafka broker can go on where plog has stopped; plog does not start there
    again before it has adopted once more.
    """
    from plog.ops import adoption
    from plog.settings.server_properties import read

    settings, _ = read(properties)
    carry = adoption.give_back if give_back else adoption.adopt
    carried = carry(settings, zookeeper)
    if as_json:
        print_json([{**one._asdict(), "configs": dict(one.configs)} for one in carried])
        return
    rows = [
        (
            one.topic,
            one.partitions,
            " ".join(f"{k}={v}" for k, v in one.configs.items()),
            one.remark,
        )
        for one in carried
    ]
    print_rows(rows, ("topic", "partitions", "configs", "remark"), as_json=False)
