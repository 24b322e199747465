"""Settings: `server.properties` and what changes it while the broker runs, one declaration per key.

`load` makes a `BrokerSettings`; `dynamic.DynamicSettings` holds the current
ones. Documentation is generated from the declarations (``docs/settings.md``).
"""

from plog.settings.definitions import BrokerSettings, GroupSettings, TopicSettings
from plog.settings.server_properties import load

__all__ = ["BrokerSettings", "GroupSettings", "TopicSettings", "load"]
