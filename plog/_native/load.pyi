from collections.abc import Iterable

def main(arguments: Iterable[object]) -> int:
    """Run `produce` or `fetch` with options of asv_bench/load/options.c; print figures as JSON.

    Ends the process with status 1 and a line on stderr where a server's answer makes no sense.
    """
