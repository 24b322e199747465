"""The broker's keys about its own log lines: their format, and which ones there are."""

from __future__ import annotations

from plog.runtime.loggers import LEVELS, is_logger, unknown_logger
from plog.settings.keys import STRING, ConfigType, Kind, Settings, key


def _level(text: str) -> str:
    level = text.upper()
    if level not in LEVELS:
        raise ValueError(f"{text!r} is not a log level: use one of {', '.join(LEVELS)}")
    return level


def _levels_of_loggers(text: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for item in text.split(",") if text else ():
        logger, equals, level = (part.strip() for part in item.partition("="))
        if not equals:
            raise ValueError(f"{item.strip()!r} is not LOGGER=LEVEL")
        if not is_logger(logger):
            raise ValueError(unknown_logger(logger))
        if logger in found:
            raise ValueError(f"logger {logger!r} is named twice")
        found[logger] = _level(level)
    return tuple(found.items())


LEVEL = Kind(ConfigType.STRING, _level, str)
LEVELS_BY_LOGGER = Kind(
    ConfigType.LIST,
    _levels_of_loggers,
    lambda levels: ",".join(f"{logger}={level}" for logger, level in levels),
)


class BrokerLogKeys(Settings):
    """The broker's own log lines."""

    log_format = key(
        "log.format",
        STRING,
        "Format of log lines on stderr: text, or json with one object per line (`time`, `level`, "
        "`logger`, `message`, and `exception` if there is one). This key is plog's own.",
        default="text",
        values=("text", "json"),
    )
    log_level = key(
        "log.level",
        LEVEL,
        "Level of the root logger: FATAL, ERROR, WARN, INFO, DEBUG or TRACE. "
        "`plog configs set broker-logger ID root=LEVEL` changes it while the broker runs. "
        "This key is plog's own.",
        default="INFO",
    )
    log_levels = key(
        "log.levels",
        LEVELS_BY_LOGGER,
        "Levels of single loggers, as LOGGER=LEVEL separated by commas: "
        "`plog.storage=DEBUG,plog.network=WARN`. A level also applies to the loggers below. "
        "`plog configs describe broker-logger ID` lists the loggers of a broker, and "
        "`plog configs set` changes levels while it runs. "
        "This key is plog's own.",
        default=(),
    )
