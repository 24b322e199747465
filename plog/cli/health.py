"""`plog health`: ask a broker on this host whether it is healthy, as a container does."""

from __future__ import annotations

from collections.abc import Mapping

import click

from plog.cli.output import say
from plog.cli.properties import takes_properties


@click.command()
@takes_properties
@click.option("--ready", is_flag=True, help="Ask whether it accepts clients.")
def command(
    properties: str | None,
    overrides: tuple[str, ...],
    environment: Mapping[str, str] | None,
    ready: bool,
) -> None:
    """Ask the broker with a PROPERTIES file whether it is healthy.

    It asks the broker on this host: /healthz at `metrics.listener`, or with --ready /ready. Without
    that listener, it connects as a client does. PROPERTIES, --env and --override determine the
    addresses; PLOG_BOOTSTRAP_SERVER has no effect. Exit status 1 means that the broker is not
    healthy. Use it as the health check of a container:

    \b
      plog health --env /etc/plog/server.properties
    """
    from plog.errors import PlogError
    from plog.ops.health_client import ask_listener, ask_page
    from plog.ops.pages.paths import HEALTH, READY
    from plog.settings.server_properties import read

    settings, _ = read(properties, overrides, environment)
    page = settings.metrics_listener
    try:
        if page is None:
            say(ask_listener(settings.parsed_listeners()[0]))
        else:
            say(ask_page(page, READY if ready else HEALTH))
    except (PlogError, OSError) as error:
        raise click.ClickException(str(error)) from error
