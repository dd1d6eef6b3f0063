"""Folders of files that nobody but this user can have written: all caches are kept in such folders.

What a cache holds is believed, and compiled code is run. So nothing is read or written unless the folder is
this user's and nobody else can write to it, nor to a folder above it, by which it could be replaced; and
unless the file that was opened, not what its name stood for a moment before, is this user's too. This is
checked at each use. What memplan makes here has mode 700 (folders) or 600 (files).

A folder or file that is refused costs the copy, not the program: nothing is cached, and one line says why,
once in a process.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from stat import S_ISDIR, S_ISREG, S_ISVTX

from ..files.documents import write_whole

_POSIX = os.name == "posix"
"""Whether files have an owner and permissions; elsewhere these are not looked at."""

_GROUP_WRITES, _OTHERS_WRITE, _OTHERS = 0o020, 0o002, 0o077

_OPEN = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)  # a link may lead to a file of this user's that is no entry
    | getattr(os, "O_NONBLOCK", 0)  # a named pipe does not wait for its writer
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


@dataclass(frozen=True)
class PrivateFolder:
    """A folder of a cache. Nothing is done to the disk before it is used.

    path: None if this user has none.
    root: the cache that it is in, None if it is the whole.
    own: the cache is memplan's alone, not a folder that the user has named: others lose the right to read.
    """

    path: Path | None
    root: Path | None = None
    own: bool = False

    def __truediv__(self, name: str) -> PrivateFolder:
        """Return a folder in this one."""
        whole = self.path and self.path.absolute()  # the working folder may change before it is used
        return PrivateFolder(whole and whole / _single(name), self.root or whole, self.own)

    def existing(self) -> Path | None:
        """Return the folder, without links; None if there is none, or it is refused."""
        if self.path is None:
            return self._refuse("neither XDG_CACHE_HOME nor HOME is an absolute path")
        try:
            folder = self.path.resolve(strict=True)
            if fault := _fault_of_folder(folder):
                return self._refuse(fault)
            self._close(folder)
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
            return self._refuse(getattr(error, "strerror", "") or str(error))
        return folder

    def made(self) -> Path | None:
        """Return the folder, created if it is missing; None if it can't be, or is refused."""
        if self.path is None:
            return self.existing()
        try:
            folder = self.path.resolve()
            if not os.path.lexists(folder):
                above = next(place for place in folder.parents if os.path.lexists(place))
                # Looked at before anything is made: nothing is made where somebody else's link leads to.
                if fault := _fault_above([above, *above.parents]):
                    return self._refuse(fault)
                _make(folder)
        except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
            return self._refuse(getattr(error, "strerror", "") or str(error))
        return self.existing()

    def read(self, name: str, most: int | None = None) -> bytes | None:
        """Return a file's bytes; None if there is none, or it is refused, or has more than `most` bytes."""
        folder = self.existing()
        if folder is None:
            return None
        try:
            with open(folder / _single(name), "rb", opener=_opened) as file:
                about = os.fstat(file.fileno())
                if fault := _fault_of_file(folder / name, about):
                    return self._refuse(fault)
                return None if most is not None and about.st_size > most else file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            return self._refuse(_words(error))

    def write(self, name: str, data: bytes) -> bool:
        """Write a file under another name, then rename it. Returns whether it is there."""
        folder = self.made()
        if folder is None:
            return False
        try:
            write_whole(data, folder / _single(name), mode=0o600)
        except OSError as error:
            self._refuse(_words(error))
            return False
        return True

    def _close(self, folder: Path) -> None:
        """Take from others the right to read memplan's own folders, as another program's umask gave it."""
        root = self.root or self.path
        if self.own and root is not None and _POSIX:
            root = root.resolve()
            for place in (folder, *folder.parents):
                if place.is_relative_to(root) and place.stat().st_mode & _OTHERS:
                    place.chmod(0o700)

    def _refuse(self, fault: str) -> None:
        where = self.root or self.path
        _say(f"nothing is cached{f' in {where}' if where else ''}: {fault}")


def _opened(path: str, _flags: int) -> int:
    return os.open(path, _OPEN)


def _single(name: str) -> str:
    """Return a file's name. Raises ValueError for one that leads out of its folder."""
    if name in ("", ".", "..") or Path(name).name != name:
        raise ValueError(f"{name!r} is no name in a folder")
    return name


def _make(folder: Path) -> None:
    """Create a folder and those above it, for this user alone."""
    if not folder.exists():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)  # the process's umask may have taken more


def _fault_of_folder(folder: Path) -> str:
    """Say why a folder can't be trusted; empty if it can. folder: without links.

    If all folders from it to the top are this user's or root's, and only they can write there, nobody else
    can change what its name stands for: what was checked is what is opened.
    """
    about = folder.stat()
    if not S_ISDIR(about.st_mode):
        return f"{folder} is not a folder"
    own = _fault_of_owner(folder, about)
    return own or _fault_above(folder.parents, [folder] if _is_open(about) else [])


def _fault_above(folders: Iterable[Path], is_open: list[Path] | None = None) -> str:
    """Say why somebody else could replace what is in these folders; empty if nobody can.

    is_open: folders that are known to be open. With the sticky bit, as /tmp has it, nobody can rename or
    remove what is another user's.
    """
    found = list[Path](is_open or ())
    for folder in folders if _POSIX else ():
        about = folder.stat()
        # root may replace anything anyway
        if about.st_uid != 0 and (fault := _fault_of_owner(folder, about)):
            return fault
        if _is_open(about) and not about.st_mode & S_ISVTX:
            found.append(folder)
    listed = " ".join(map(str, found))
    return f"other users can write to {listed}: chmod go-w {listed}" if found else ""


def _fault_of_file(file: Path, about: os.stat_result) -> str:
    """Say why an open file can't be trusted; empty if it can."""
    if not S_ISREG(about.st_mode):
        return f"{file} is not a regular file: remove it"
    if fault := _fault_of_owner(file, about):
        return fault
    return f"other users can write to {file}: remove it" if _is_open(about) else ""


def _fault_of_owner(place: Path, about: os.stat_result) -> str:
    if not _POSIX or about.st_uid == os.geteuid():
        return ""
    return f"{place} belongs to another user (number {about.st_uid}): choose another folder (XDG_CACHE_HOME)"


def _is_open(about: os.stat_result) -> bool:
    """Tell whether users other than root and the owner can write there.

    Some systems give each user a group of its own, and its members, nobody else, the right to write.
    """
    if not _POSIX:
        return False
    by_group = about.st_mode & _GROUP_WRITES and about.st_gid != _own_group()
    return bool(by_group or about.st_mode & _OTHERS_WRITE)


@cache
def _own_group() -> int | None:
    """Return the group that is this user's alone; None if there is none. That of root has other members."""
    groups, users = import_module("grp"), import_module("pwd")
    with suppress(KeyError):
        user = users.getpwuid(os.geteuid())
        group = groups.getgrgid(user.pw_gid)
        if user.pw_uid and group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}:
            return group.gr_gid
    return None


def _words(error: OSError) -> str:
    return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")


_said = set[str]()


def _say(line: str) -> None:
    if line not in _said:
        _said.add(line)
        warnings.warn_explicit(line, UserWarning, "memplan", 1)  # of no line of the user's code
