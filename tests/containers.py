"""Images and containers for tests: buildah with a storage of its own, and no network.

Nothing here needs a registry or a daemon: the base image is a root directory, and a container is a
process with a root, a list of processes and variables of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pip

TIMEOUT_S = 300
STOP_S = 60
ISOLATED = """
set -e
host=$1 user=$2
shift 2
mount -t proc proc "$host/proc"
exec chroot --userspec="$user" "$host" "$@"
"""


class Images:
    """The images in a storage of their own below a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"),
        }
        # Not every file system below can be overlaid; copies always work.
        for driver in ("overlay", "vfs"):
            (directory / "storage.conf").write_text(
                f'[storage]\ndriver = "{driver}"\n'
                f'graphroot = "{directory}/{driver}"\nrunroot = "{directory}/run"\n'
            )
            if (
                subprocess.run(
                    ["buildah", "info"],
                    env=self.environment,
                    check=False,
                    capture_output=True,
                    timeout=TIMEOUT_S,
                ).returncode
                == 0
            ):
                return  # fmt: skip
        raise AssertionError("buildah has no storage here")

    def run(self, *command: object) -> str:
        """Run buildah; return what it prints."""
        done = subprocess.run(
            ["buildah", *map(str, command)],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def make_base(self, name: str, root: Path) -> None:
        """Make an image of a root directory, with the pip that runs here."""
        made = self.run("from", "scratch")
        place = Path(self.run("mount", made))
        # Half of the files are documents and translations.
        copy = 'tar -C "$0" --exclude=./usr/share -cf - . | tar -C "$1" -xf -'
        subprocess.run(["sh", "-c", copy, str(root), str(place)], check=True)
        packages = place / "usr/lib/python3/dist-packages/pip"
        shutil.copytree(Path(pip.__file__).parent, packages, ignore=shutil.ignore_patterns("*.pyc"))
        self.run("umount", made)
        self.run("commit", "--quiet", "--rm", made, name)

    @contextmanager
    def mounted(self, image: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the root directory of a new container, and the image's configuration."""
        made = self.run("from", image)
        try:
            config = json.loads(self.run("inspect", made))["Docker"]["config"]
            yield Path(self.run("mount", made)), config
        finally:
            self.run("rm", made)


class Container:
    """A process in a root directory, as process 1 of its own list of processes.

    Args:
        config: of the image: its user and variables apply.
        variables: further variables.
    """

    def __init__(
        self, root: Path, config: dict[str, Any], variables: dict[str, str], command: Sequence[str]
    ) -> None:
        self._given = dict(one.split("=", 1) for one in config["Env"]) | variables
        self._user, self._root = config["User"], root
        self._process = self._start(command, subprocess.PIPE)

    def _start(self, command: Sequence[str], stderr: int) -> subprocess.Popen[str]:
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        return subprocess.Popen(
            [*isolated, "sh", "-c", ISOLATED, "isolated", str(self._root), self._user, *command],
            env=self._given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def execute(self, *command: str) -> tuple[int, str]:
        """Run another command in the same root; return its status and its output."""
        process = self._start(command, subprocess.STDOUT)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, output

    def wait_for(self, text: str) -> None:
        """Wait until a log line has a text."""
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            if text in line:
                return
            lines.append(line)
        raise AssertionError(f"ended before it logged {text!r}:\n{''.join(lines)}")

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal to process 1; return its status and the rest of its log."""
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        os.kill(int(children), number)
        _, log = self._process.communicate(timeout=STOP_S)
        return self._process.returncode, log

    def close(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=STOP_S)
