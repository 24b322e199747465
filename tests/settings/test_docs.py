"""The page of settings is what the declarations say."""

from __future__ import annotations

from pathlib import Path

from plog.settings import BrokerSettings, TopicSettings
from plog.settings.docs import render

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_page_in_the_tree_is_the_one_the_declarations_make():
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m plog.settings.docs docs/settings.md"
    )


def test_every_key_has_its_heading():
    headings = {line for line in render().splitlines() if line.startswith("### ")}
    for name in [*BrokerSettings.KEYS, *TopicSettings.KEYS]:
        assert f"### `{name}`" in headings
