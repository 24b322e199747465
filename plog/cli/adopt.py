"""`plog adopt`: take over a Kafka broker's log directories, and give them back."""

from __future__ import annotations

import click

from plog.cli.output import confirm, json_option, print_json, print_rows, yes_option
from plog.cli.properties import zookeeper_option


@click.command()
@click.argument("properties", type=click.Path(dir_okay=False))
@zookeeper_option("ZooKeeper of the Kafka broker (its zookeeper.connect).")
@click.option(
    "--give-back",
    is_flag=True,
    help="Write plog's topics and configs back to ZooKeeper, for a Kafka broker.",
)
@json_option
@yes_option
def command(properties: str, zookeeper: str, give_back: bool, as_json: bool, yes: bool) -> None:
    """Take over a stopped Kafka broker: import its topics' configs from ZooKeeper.

    PROPERTIES is the file that plog will run with. Its log.dirs and broker.id must be those of the
    Kafka broker. Records stay in place. Afterwards, start plog:

    \b
      plog adopt --zookeeper zk1:2181/kafka /etc/plog/server.properties
      plog server /etc/plog/server.properties

    Without this step, plog serves the same records but has no topic configs, and turns off
    retention for those topics. You can run it again: topics that plog already knows keep their
    configs. Nothing is imported if a topic has replicas on other brokers.

    After --give-back, a Kafka broker can continue where plog stopped. plog does not start on these
    directories until you run `plog adopt` again.
    """
    from plog.ops import adoption
    from plog.settings.server_properties import read

    settings, _ = read(properties)
    if give_back:
        question = (
            f"Overwrite the topics and configs in ZooKeeper {zookeeper} with plog's? plog then"
            " does not start on its log directories."
        )
        confirm(question, "Not given back.", yes=yes)
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
