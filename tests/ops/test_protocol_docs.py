"""docs/protocol.md is what the declarations say."""

from pathlib import Path

from plog.ops import protocol_docs
from plog.protocol.messages.fetch import FetchRequest

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_page_is_what_the_declarations_say():
    assert PAGE.read_text(encoding="utf-8") == protocol_docs.page(), (
        "run: python -m plog.ops.protocol_docs docs/protocol.md"
    )


def test_every_field_has_its_line():
    page = protocol_docs.page()
    section = page.split("### FetchRequest\n")[1].split("\n### ")[0]
    for f in FetchRequest.fields:
        assert f"| `{f.name}` |" in section
        assert f.about.split(".")[0] in section
    assert "`topics.partitions.replica_directory_id` | uuid | 17+ tag 0 | zero |" in section
    assert "`cluster_id` | string? | 12+ tag 0 | null |" in section
