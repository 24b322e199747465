"""`plog man`: write the manual pages of plog's commands."""

from __future__ import annotations

from pathlib import Path

import click

from plog.cli.output import json_option, print_done


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@json_option
def command(directory: Path, as_json: bool) -> None:
    """Write the manual pages of plog's commands to DIRECTORY.

    There is a page for plog and one for each command, made from --help. The package for Debian has
    them. Elsewhere, `man` finds them in a directory of its search path:

    \b
      plog man ~/.local/share/man/man1
      man plog
      man plog topics
    """
    from plog import __version__
    from plog.cli import COMMANDS, plog
    from plog.cli.manual_pages import manual_pages
    from plog.types import counted

    count = 0
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in manual_pages(plog, COMMANDS, __version__):
            (directory / name).write_text(text, encoding="utf-8")
            count += 1
    except OSError as fault:
        raise click.FileError(str(fault.filename), fault.strerror) from fault
    print_done(
        f"Wrote {counted(count, 'page')} to {directory}.",
        {"directory": str(directory), "pages": count},
        as_json=as_json,
    )
