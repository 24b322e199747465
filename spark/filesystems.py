"""The few things that a store of files asks of a filesystem, of local ones and of Hadoop's.

Above all `publish`: a directory gets its name in one step, and only if nobody has that name yet.
Paths are relative to a root. Knows nothing of what the files are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from plog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


COPYING_STORES = frozenset(
    ("s3", "s3a", "s3n", "gs", "oss", "cos", "cosn", "obs", "swift", "wasb", "wasbs")
)
"""Schemes of Hadoop's filesystems whose rename of a directory is no one step."""


class Files(Protocol):
    """What is below a root.

    Attributes:
        root: as Spark is to be told of it.
    """

    root: str

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none where there is no such directory."""

    def read(self, path: str) -> bytes:
        """Return what is in a file.

        Raises:
            FileNotFoundError: there is none.
        """

    def write(self, path: str, data: bytes) -> None:
        """Write a new file."""

    def publish(self, source: str, target: str) -> None:
        """Rename a directory, with all that is in it on disk, in one step.

        Raises:
            FileExistsError: the name is taken.
            FileNotFoundError: there is no such directory (any more).
        """

    def delete(self, path: str) -> None:
        """Delete a file, or a directory and all that is in it; it may be gone already."""


class LocalFiles:
    """Files of this machine, or of one that is mounted here.

    rename(2) does not replace a directory in which there is something, in one step with moving the
    other; what is published has something in it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.root = f"file://{self._root}"

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        try:
            return sorted(os.listdir(self._root / path))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes:
        """Return what is in a file."""
        return (self._root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """Write a new file."""
        where = self._root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(data)

    def publish(self, source: str, target: str) -> None:
        """Rename a directory; what it holds is synced before, and its name after."""
        old, new = self._root / source, self._root / target
        for folder, _, names in os.walk(old):
            for name in names:
                _sync(Path(folder, name))
            _sync(Path(folder))
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(old, new)
        except OSError as fault:
            if new.exists():  # ENOTEMPTY or EEXIST, as the filesystem likes
                raise FileExistsError(str(new)) from fault
            raise
        _sync(new.parent)

    def delete(self, path: str) -> None:
        """Delete a file or a directory."""
        where = self._root / path
        if where.is_dir():
            shutil.rmtree(where)
            return
        # Spark's checksum lies beside.
        for one in (where, where.with_name(f".{where.name}.crc")):
            with contextlib.suppress(FileNotFoundError):
                one.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFiles:
    """Files of a filesystem that Spark's JVM knows: HDFS, say.

    A rename must be one step there and must not replace: HDFS's is so, object stores' are not.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        context: Any = spark.sparkContext
        self._jvm, self._gateway = context._jvm, context._gateway
        configuration = context._jsc.hadoopConfiguration()
        top = self._jvm.org.apache.hadoop.fs.Path(root)
        self._fs: Any = top.getFileSystem(configuration)
        top = self._fs.makeQualified(top)
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            top.toUri(), configuration
        )
        self.root = str(top.toString()).rstrip("/")

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}".rstrip("/"))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        where = self._path(path)
        if not self._fs.exists(where):
            return []
        return sorted(entry.getPath().getName() for entry in self._fs.listStatus(where))

    def read(self, path: str) -> bytes:
        """Return what is in a file."""
        where = self._path(path)
        if not self._fs.exists(where):
            raise FileNotFoundError(str(where))
        stream = self._fs.open(where)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a new file."""
        stream = self._fs.create(self._path(path), True)
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()

    def publish(self, source: str, target: str) -> None:
        """Rename a directory."""
        old, new = self._path(source), self._path(target)
        self._fs.mkdirs(new.getParent())
        rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        try:
            self._context.rename(old, new, self._gateway.new_array(rename, 0))
        except Exception:
            if self._fs.exists(new):
                raise FileExistsError(str(new)) from None
            if not self._fs.exists(old):
                raise FileNotFoundError(str(old)) from None
            raise

    def delete(self, path: str) -> None:
        """Delete a file or a directory."""
        self._fs.delete(self._path(path), True)


def files_at(spark: SparkSession, path: str) -> Files:
    """Return the files below a path, which Spark's default filesystem has unless it names one.

    Raises:
        ConfigError: they are in an object store.
    """
    _check_renames(path)
    found = HadoopFiles(spark, path)
    _check_renames(found.root)
    if found.root.startswith("file:"):
        return LocalFiles(Path(path.removeprefix("file://").removeprefix("file:")))
    return found


def _check_renames(path: str) -> None:
    scheme = urlsplit(path).scheme
    if scheme in COPYING_STORES:
        raise ConfigError(
            f"{path}: {scheme} renames a directory file by file, and whoever dies meanwhile leaves"
            " half of a load; give a path on HDFS or a local disk"
        )
