"""`plog server`: read the properties, start the broker, stop it on SIGTERM."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("properties", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one key, over what the file says. May be given many times.",
)
def command(properties: Path | None, overrides: tuple[str, ...]) -> None:
    """Run a broker with the settings of a PROPERTIES file (Kafka's server.properties syntax).

    Without a file every key has its default: one broker on 127.0.0.1:9092. SIGTERM or Ctrl-C stop
    it cleanly. Log lines go to stderr.
    """
    from plog import broker
    from plog.settings import load

    broker.log_to_stderr()  # before the file is read: keys without effect are warned of
    try:
        settings = load(properties, list(overrides))
    except OSError as fault:
        # The file of the command line, so not a case for a traceback.
        raise click.FileError(str(properties), fault.strerror) from fault
    broker.run(settings)
