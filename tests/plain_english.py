"""Count the markers of unclear English in every text file of the checkout.

    python -m tests.plain_english            print the counts by folder
    python -m tests.plain_english --lower    lower the recorded counts to those of now

`tests/plain_english.tsv` records the counts per file. They may only fall: the test fails when a
count is above its record, and when it is below, until `--lower` has recorded the lower one. A file
without a line has no markers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "plain_english.tsv"

# Words are cut at underscores, too: names in the code count as well.
MARKERS = {
    "whoever": r"whoever",
    "somebody": r"somebody|nobody",
    "told": r"told|tells",
    "anew": r"anew",
    "but for": r"but\s+for",
    "what is": r"(?<!of )what\s+(?:is|was|has)",
}
"""Marker by name; a marker is a whole word, whatever its case."""

PATTERNS = {
    name: re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.IGNORECASE)
    for name, words in MARKERS.items()
}
# A sentence that is no question and begins with a pronoun for a person that nothing has named.
PATTERNS["who"] = re.compile(
    r"(?:^[ \t]*(?:#+ |[-*] )?|\"{3}|[.:] )(?:Who|Whose|Whom) (?![^.?!]*\?)", re.MULTILINE
)
LONG_SENTENCE = "long sentences"
MAX_SENTENCE_WORDS = 30

SUFFIXES = {
    ".py",
    ".pyx",
    ".pxd",
    ".pyi",
    ".md",
    ".toml",
    ".properties",
    ".sh",
    ".h",
    ".c",
    ".java",
}
SCRIPT_FOLDERS = ("bin/", ".ci/")
NOT_TEXT = ("tests/golden/", "tests/fuzz/corpus/", "tests/fuzz/found/")
NOT_COUNTED = ("tests/plain_english.py", "tests/test_plain_english.py")
"""They name the markers."""


def text_files() -> list[Path]:
    """Return the files that people read: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [
        ROOT / name
        for name in sorted(set(listed))
        if (Path(name).suffix in SUFFIXES or name.startswith(SCRIPT_FOLDERS))
        and not name.startswith(NOT_TEXT)
        and name not in NOT_COUNTED
        and (ROOT / name).is_file()
    ]


def count(text: str, is_page: bool) -> Counter[str]:
    """Count the markers in a text, and in a page the sentences that are too long."""
    found: Counter[str] = Counter()
    for name, pattern in PATTERNS.items():
        found[name] = sum(1 for _ in pattern.finditer(text))
    if is_page:
        found[LONG_SENTENCE] = sum(
            1 for sentence in sentences(text) if len(sentence.split()) > MAX_SENTENCE_WORDS
        )
    return +found


def sentences(page: str) -> list[str]:
    """Cut a page's prose into sentences; code blocks, tables and comments are no prose."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    lines: list[str] = []
    for line in page.splitlines():
        bare = line.strip()
        is_code = line.startswith("    ") and (not lines or not lines[-1])
        if is_code or bare.startswith(("|", "#")):
            lines.append("")
            continue
        # An item of a list begins a sentence.
        lines.append(re.sub(r"^(?:[-*]|\d+\.)\s+", "\n\n", bare))
    text = re.sub(r"`[^`\n]*`", "code", "\n".join(lines))
    text = re.sub(r"code(?:,\s+code)+", "code", text)  # a list of names is as long as it has to be
    parts = [
        part
        for paragraph in re.split(r"\n\s*\n", text)
        for part in re.split(r"(?<=[.?!])\s+", " ".join(paragraph.split()))
    ]
    return [part for part in parts if part]


def counts_of_now() -> dict[str, Counter[str]]:
    """Count every file; only those with markers are in the answer."""
    counts = {}
    for path in text_files():
        found = count(path.read_text(encoding="utf-8", errors="replace"), path.suffix == ".md")
        if found:
            counts[str(path.relative_to(ROOT))] = found
    return counts


def recorded() -> dict[str, Counter[str]]:
    """Read the recorded counts."""
    counts: dict[str, Counter[str]] = {}
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        path, *cells = line.split("\t")
        counts[path] = Counter({name: int(n) for name, _, n in (c.rpartition("=") for c in cells)})
    return counts


def lower(force: bool = False) -> None:
    """Record the counts of now; refuse where one of them has risen."""
    now = counts_of_now()
    if not force and (risen := risen_counts(now, recorded())):
        sys.exit("\n".join(["these counts have risen; write plainer:", *risen]))
    lines = [
        "\t".join([path, *(f"{name}={n}" for name, n in sorted(found.items()))])
        for path, found in sorted(now.items())
    ]
    RECORD.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def risen_counts(now: dict[str, Counter[str]], before: dict[str, Counter[str]]) -> list[str]:
    """Name what has risen: `path: marker old -> new`."""
    return [
        f"{path}: {name} {before.get(path, Counter())[name]} -> {n}"
        for path, found in sorted(now.items())
        for name, n in sorted(found.items())
        if n > before.get(path, Counter())[name]
    ]


def main() -> None:
    """Print the counts by folder, or lower the record."""
    if "--lower" in sys.argv[1:]:
        lower()
        return
    folders: dict[str, Counter[str]] = {}
    for path, found in counts_of_now().items():
        folders.setdefault("/".join(path.split("/")[:2]), Counter()).update(found)
    for folder, found in sorted(folders.items()):
        print(f"{folder:32}", ", ".join(f"{name} {n}" for name, n in sorted(found.items())))


if __name__ == "__main__":
    main()
