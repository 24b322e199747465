"""The page of settings is what the declarations say."""

from __future__ import annotations

from pathlib import Path

import pytest

from plog.settings import BrokerSettings, GroupSettings, TopicSettings
from plog.settings.docs import render, with_settings
from plog.settings.kafka_only import KAFKA_ONLY, KAFKA_ONLY_BY_REASON

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
SKIPPED = PAGE.with_name("SKIPPED.md")


def test_page_in_the_tree_is_the_one_the_declarations_make():
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m plog.settings.docs docs/settings.md"
    )


def test_section_of_what_is_skipped_is_the_one_the_declarations_make():
    page = SKIPPED.read_text(encoding="utf-8")
    assert page == with_settings(page), "run: python -m plog.settings.docs docs/settings.md"
    _, _, section = page.partition("\n## Settings\n")
    for name in KAFKA_ONLY:
        assert f"`{name}`" in section.partition("\n## ")[0]


def test_section_that_is_out_of_date_is_written_anew_and_nothing_else():
    page = SKIPPED.read_text(encoding="utf-8")
    (name, *_) = sorted(KAFKA_ONLY)
    old = page.replace(f"`{name}`", "`something.else`")
    assert old != page
    assert with_settings(old) == page
    with pytest.raises(ValueError, match="no section"):
        with_settings(page.replace("## Settings", "## Others"))


def test_every_key_without_effect_has_one_reason():
    names = [name for names in KAFKA_ONLY_BY_REASON.values() for name in names]
    assert len(names) == len(set(names)) == len(KAFKA_ONLY)
    assert all(KAFKA_ONLY_BY_REASON.values())


def test_every_key_has_its_heading():
    headings = {line for line in render().splitlines() if line.startswith("### ")}
    for name in [*BrokerSettings.KEYS, *TopicSettings.KEYS, *GroupSettings.KEYS]:
        assert f"### `{name}`" in headings


def about(name: str) -> list[str]:
    """What the page says at the first heading of a key, paragraph by paragraph."""
    (_, _, rest) = render().partition(f"### `{name}`\n")
    return rest.partition("\n#")[0].strip().split("\n\n")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("broker.id", "at least -1"),
        ("log.retention.ms", "-1, or at least 1"),
        ("retention.ms", "at least -1"),
        ("compression.gzip.level", "-1, or from 1 to 9"),
        ("log.cleaner.min.cleanable.ratio", "from 0 to 1"),
        ("message.timestamp.type", "one of `CreateTime`, `LogAppendTime`"),
        ("cleanup.policy", "any of `compact`, `delete`"),
        ("log.retention.bytes", "cluster-wide"),
    ],
)
def test_range_is_said_in_words_that_make_sense(name, values):
    assert about(name)[-1].split("; ")[2] == values


def test_key_without_effect_says_so_and_why():
    assert about("log.preallocate")[1] == (
        "**Accepted, without effect:** segments grow as they are written."
    )


def test_page_says_which_number_a_broker_gives_itself():
    assert "the first generated id is 1001" in about("broker.id")[0]
