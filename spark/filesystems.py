"""The few filesystem operations that the Parquet store needs, for local files and Hadoop's.

The important one is `publish`: it renames a directory atomically, and never replaces another one.
Paths are relative to a root. Knows nothing about the contents of files.
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
"""Schemes of Hadoop's filesystems that do not rename directories atomically."""


class Files(Protocol):
    """The files below a root.

    Attributes:
        root: the root's path for Spark.
    """

    root: str

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return the contents of a file.

        Raises:
            FileNotFoundError: the file does not exist.
        """

    def write(self, path: str, data: bytes) -> None:
        """Write a new file."""

    def publish(self, source: str, target: str) -> None:
        """Sync a directory's files to disk, and rename it atomically.

        Raises:
            FileExistsError: the target exists.
            FileNotFoundError: the source does not exist, or no longer does.
        """

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its contents; it need not exist."""


class LocalFiles:
    """Local files, or those of a mounted filesystem.

    rename(2) atomically refuses to replace a directory that is not empty, and published
    directories never are.
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
        """Return the contents of a file."""
        return (self._root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """Write a new file."""
        where = self._root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(data)

    def publish(self, source: str, target: str) -> None:
        """Rename a directory; its contents are synced before, its name after."""
        old, new = self._root / source, self._root / target
        for folder, _, names in os.walk(old):
            for name in names:
                _sync(Path(folder, name))
            _sync(Path(folder))
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(old, new)
        except OSError as fault:
            if new.exists():  # ENOTEMPTY or EEXIST, depending on the filesystem
                raise FileExistsError(str(new)) from fault
            raise
        _sync(new.parent)

    def delete(self, path: str) -> None:
        """Delete a file or a directory."""
        where = self._root / path
        if where.is_dir():
            shutil.rmtree(where)
            return
        # With Spark's checksum file.
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
    """Files of a filesystem that Spark's JVM supports, for example HDFS.

    Its rename must be atomic and must not replace, as in HDFS, but not in object stores.
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
        """Return the contents of a file."""
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
    """Return the files below a path; without a scheme it is on Spark's default filesystem.

    Raises:
        ConfigError: the path is in an object store.
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
            f"{path}: object store {scheme} renames directories file by file, so a crash could "
            "leave half of a load; use a path on HDFS or a local disk"
        )
