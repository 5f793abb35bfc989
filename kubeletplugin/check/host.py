# SPDX-License-Identifier: Apache-2.0
"""The files of the node: reading them, reading TOML, and writing the file of --fix.

The host's root may be below another folder for this process (`--host-root`). All paths are paths on the host. Links are
followed as on the host: below /host, /var/run must lead to /host/run and not to the container's own /run.

--fix writes one file, as a whole or not at all. Where the runtime reads additional files, it is a new file that names
its author and how to undo it. Otherwise --fix changes lines of an existing file, and keeps a backup. The next run
writes the same file again, or nothing.
"""

import contextlib
import copy
import fnmatch
import os
import posixpath
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubeletplugin.containers.cdi import Root

from ..errors import FixError

_LARGEST = 4 << 20

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"^\s*\[(?!\[)(.+?)\]\s*(?:#.*)?$")

_MARK = "# Written by `dra-kubeletplugin check --fix`."


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file or folder that exists and cannot be read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} cannot be read: {self.reason}"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the host. `problem` tells why no file can be created in it, and is empty if that is possible. It is
    None if this process cannot find out, because it sees the host's files read-only.
    """

    path: str
    exists: bool
    problem: str | None = ""


class Host:
    """The files of the host, which this process sees at `root`."""

    def __init__(self, root: Path) -> None:
        self._root = Root(root.absolute())
        self.is_own = root.absolute() == Path("/")

    def here(self, path: str) -> Path:
        """The path with which this process opens `path` of the host, with links followed. The file need not exist."""
        return self._root.here(self.canonical(path))

    def canonical(self, path: str) -> str:
        """`path` without links, as far as it exists: /run/cdi for /var/run/cdi."""
        head, missing = "/" + posixpath.normpath(path).lstrip("/"), ""
        while head != "/":
            try:
                resolved = self._root.resolve(head)
            except OSError:  # no permission to read a folder
                resolved = None
            if resolved is not None:
                return posixpath.normpath(posixpath.join(resolved, missing))
            head, name = posixpath.split(head)
            missing = posixpath.join(name, missing) if missing else name
        return f"/{missing}"

    def read(self, path: str) -> str | Unreadable | None:
        """The text of a file, or None if it does not exist."""
        try:
            with self.here(path).open("rb") as stream:
                data = stream.read(_LARGEST + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return Unreadable(path, error.strerror or str(error))
        if len(data) > _LARGEST:
            return Unreadable(path, f"larger than {_LARGEST >> 20} MiB")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            return Unreadable(path, f"not UTF-8 at byte {error.start}")

    def matches(self, pattern: str) -> list[str] | Unreadable:
        """The sorted paths that match a pattern with `*` in its last part."""
        folder, name = posixpath.split(pattern)
        entries = self.entries(folder)
        if isinstance(entries, Unreadable):
            return entries
        return [path for path in entries if fnmatch.fnmatchcase(posixpath.basename(path), name)]

    def entries(self, folder: str) -> list[str] | Unreadable:
        """The sorted paths of the entries of `folder`. Empty if it does not exist."""
        try:
            return [posixpath.join(folder, name) for name in sorted(os.listdir(self.here(folder)))]  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            return Unreadable(folder, error.strerror or str(error))

    def exists(self, path: str) -> bool:
        """Whether `path` exists."""
        return os.path.lexists(self.here(path))

    def is_folder(self, path: str) -> bool:
        """Whether `path` is a folder, and not a link to one."""
        parent, name = posixpath.split(path)
        here = self.here(parent) / name
        return here.is_dir() and not here.is_symlink()

    def folder(self, path: str) -> Folder:
        """The state of a folder."""
        here = self.here(path)
        try:
            if not here.is_dir():
                return Folder(path, exists=False, problem="not a folder" if here.exists() else "")
            if os.statvfs(here).f_flag & os.ST_RDONLY and not self.is_own:
                return Folder(path, exists=True, problem=None)
        except OSError as error:
            return Folder(path, exists=False, problem=error.strerror or str(error))
        if not os.access(here, os.W_OK | os.X_OK):
            return Folder(path, exists=True, problem="not writable for this process")
        return Folder(path, exists=True)


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A TOML file at `path` of the host."""

    path: str
    text: str
    value: Mapping[str, Any]

    def table(self, *keys: str) -> Mapping[str, Any] | None:
        """The table with these keys, or None."""
        value: Any = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else None

    def line(self, table: Iterable[str], key: str = "") -> int | None:
        """The number of the line with the header of `table`, or with `key` in this table. None if it is written in
        another way (an inline table, a dotted key).
        """
        wanted, inside = list(table), False
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := _HEADER.match(line):
                inside = _keys(header[1]) == wanted
                if inside and not key:
                    return number
            elif inside and key and re.match(rf"\s*{re.escape(key)}\s*=", line):
                return number
        return None


def read_toml(host: Host, path: str) -> TomlFile | Unreadable | None:
    """The file, or None if it does not exist. A file that is not TOML counts as unreadable."""
    text = host.read(path)
    if text is None or isinstance(text, Unreadable):
        return text
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        return Unreadable(path, f"not TOML: {error}")


def with_keys(file: TomlFile, table: Sequence[str], keys: Mapping[str, bool | Sequence[str]]) -> str | None:
    """The text of the file with these keys set in a table; all other lines stay. None if the file is written in a way
    that does not allow this, such as an inline table or a value of several lines.
    """
    expected: dict[str, Any] = copy.deepcopy(dict(file.value))
    inner = expected
    for name in table:
        inner = inner.setdefault(name, {})
    lines = file.text.splitlines()
    for key, value in keys.items():
        inner[key] = value if isinstance(value, bool) else list(value)
        written = f"  {key} = {str(value).lower() if isinstance(value, bool) else array(value)}"
        current = TomlFile(file.path, "\n".join(lines), {})
        if at := current.line(table, key):
            lines[at - 1] = written
        elif at := current.line(table):
            lines.insert(at, written)
        else:
            header = ".".join(name if _BARE.fullmatch(name) else quoted(name) for name in table)
            lines += [f"[{header}]", written]
    text = "\n".join(lines) + "\n"
    try:
        return text if tomllib.loads(text) == expected else None
    except tomllib.TOMLDecodeError:
        return None


def quoted(text: str) -> str:
    """A text as a basic string of TOML."""
    escaped = "".join(f"\\u{ord(char):04x}" if char in '"\\' or ord(char) < 0x20 else char for char in text)
    return f'"{escaped}"'


def array(texts: Iterable[str]) -> str:
    """Texts as an array of TOML."""
    return f"[{', '.join(map(quoted, texts))}]"


def strings(value: object) -> tuple[str, ...] | None:
    """The strings of an array, or None if it is not an array of strings."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    return None


def _keys(header: str) -> list[str]:
    """The keys of a table's header. Empty if it is not a valid header."""
    try:
        value: Any = tomllib.loads(f"[{header}]")
    except tomllib.TOMLDecodeError:
        return []
    keys = []
    while value:
        (key,) = value
        keys.append(key)
        value = value[key]
    return keys


@dataclass(frozen=True, slots=True)
class DropIn:
    """A file at `path` of the host that corrects the configuration of `service` (its systemd unit). It is a new file,
    or `replaces` the existing file with the text `base`. A new file, too, may be a changed copy of a text `base`.
    """

    path: str
    body: str
    service: str
    base: str = ""
    replaces: bool = False

    @property
    def backup(self) -> str:
        """The file that keeps the text before a change."""
        return f"{self.path}.before-dra-driver-gpu"

    @property
    def summary(self) -> str:
        """The new lines, on one line."""
        known = {line.strip() for line in self.base.splitlines()}
        return "; ".join(line for one in self.body.splitlines() if (line := one.strip()) and line not in known)

    @property
    def text(self) -> str:
        """The content of the file."""
        if self.replaces:
            return self.body
        undo = f"# To undo: rm {self.path} && systemctl restart {self.service}"
        return f"{_MARK}\n{undo}\n{self.body}"

    @property
    def next_step(self) -> str:
        """What the administrator must do afterwards."""
        undo = f"mv {self.backup} {self.path}" if self.replaces else f"rm {self.path}"
        return (
            f"`systemctl restart {self.service}` on the node, which does not stop running containers; to undo,"
            f" `{undo}` and restart it again"
        )


def write(host: Host, drop_in: DropIn) -> bool:
    """Write the file. False if it exists already. Raises FixError."""
    existing = host.read(drop_in.path)
    if isinstance(existing, Unreadable):
        raise FixError(str(existing))
    if existing == drop_in.text:
        return False
    if drop_in.replaces:
        if existing != drop_in.base:
            raise FixError(f"{drop_in.path} was changed meanwhile: run this command again")
        _write(host, drop_in.backup, drop_in.base, like=drop_in.path)
    elif existing is not None and not existing.startswith(_MARK):
        raise FixError(f"{drop_in.path} exists and was not written by this command: remove or rename it")
    _write(host, drop_in.path, drop_in.text, like=drop_in.path if drop_in.replaces else "")
    return True


def _write(host: Host, path: str, text: str, like: str) -> None:
    """Write a file, with mode and owner of the file `like` if that is given. Raises FixError."""
    target = host.here(path)
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(temporary, target, text, host.here(like).stat() if like else None)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = f"{error.strerror or error} (a container needs the folder mounted read-write)"
        raise FixError(f"{path} cannot be written: {reason}") from None


def _write_whole(temporary: Path, target: Path, text: str, like: os.stat_result | None) -> None:
    with temporary.open("x", encoding="utf-8") as stream:
        if like is not None:
            os.fchown(stream.fileno(), like.st_uid, like.st_gid)
        os.fchmod(stream.fileno(), stat.S_IMODE(like.st_mode) if like is not None else 0o644)  # whatever the umask is
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
