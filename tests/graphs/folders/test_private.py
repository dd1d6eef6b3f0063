"""Private folders: what another user could have written is neither read nor written over, and one line says
why."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import memplan
import pytest
from memplan.graphs.folders import private
from memplan.graphs.folders.private import PrivateFolder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="looks at POSIX permissions")
only_root = pytest.mark.skipif(os.name == "posix" and os.geteuid() != 0, reason="only root can give away")
SOMEBODY = 12345


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateFolder:
    """A folder a/b/c with an entry, under a umask that would let everybody write."""
    monkeypatch.setattr(private, "_said", set())
    before = os.umask(0)
    try:
        folder = PrivateFolder(tmp_path / "a" / "b" / "c")
        assert folder.read("entry") is None
        assert not (tmp_path / "a").exists()
        assert folder.write("entry", b"what it holds")
    finally:
        os.umask(before)
    return folder


def mode(place: Path) -> int:
    return place.stat().st_mode & 0o7777


def test_what_is_made_is_this_users_alone(kept: PrivateFolder, tmp_path: Path) -> None:
    assert [mode(tmp_path / place) for place in ("a", "a/b", "a/b/c", "a/b/c/entry")] == [0o700] * 3 + [0o600]
    assert kept.read("entry") == b"what it holds"
    assert kept.read("entry", most=12) is None
    assert kept.existing() == kept.made() == (tmp_path / "a/b/c").resolve()


def test_a_umask_takes_nothing_from_this_user(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        assert PrivateFolder(tmp_path / "a/b").write("entry", b"what it holds")
    finally:
        os.umask(before)
    assert [mode(tmp_path / place) for place in ("a", "a/b", "a/b/entry")] == [0o700, 0o700, 0o600]


def refused(kept: PrivateFolder, line: str, name: str = "entry") -> None:
    """Assert that it is neither read nor written, and that this is said once."""
    with pytest.warns(UserWarning, match=line) as reported:
        assert [kept.read(name), kept.read(name)] == [None, None]
    with warnings.catch_warnings(action="error"):
        assert kept.write("other", b"") == (name != "entry")
    assert len(reported) == 1
    assert str(reported[0].message).startswith("nothing is cached in ")
    assert reported[0].filename == "memplan"


@pytest.mark.parametrize("place", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize("bits", [0o777, 0o722, 0o702, 0o770, 0o720])
def test_a_folder_that_others_can_write(kept: PrivateFolder, tmp_path: Path, place: str, bits: int) -> None:
    (tmp_path / place).chmod(bits)
    refused(kept, f"other users can write to {tmp_path / place}: chmod go-w {tmp_path / place}$")
    (tmp_path / place).chmod(bits & ~0o022)  # as the line says
    assert kept.read("entry") == b"what it holds"


def test_all_open_folders_are_named_at_once(kept: PrivateFolder, tmp_path: Path) -> None:
    for place in ("a/b/c", "a/b", "a"):
        (tmp_path / place).chmod(0o777)
    refused(kept, f"chmod go-w {tmp_path}/a/b/c {tmp_path}/a/b {tmp_path}/a$")


def test_a_sticky_bit_protects_what_is_in_a_folder(kept: PrivateFolder, tmp_path: Path) -> None:
    """Nobody can replace another user's folder in /tmp, but anybody can put files there."""
    (tmp_path / "a").chmod(0o1777)
    assert kept.read("entry") == b"what it holds"
    assert PrivateFolder(tmp_path / "a" / "new").write("entry", b"")
    (tmp_path / "a/b/c").chmod(0o1777)
    refused(kept, "other users can write to")


@only_root
@pytest.mark.parametrize("place", ["a", "a/b", "a/b/c"])
def test_a_folder_of_another_user(kept: PrivateFolder, tmp_path: Path, place: str) -> None:
    os.chown(tmp_path / place, SOMEBODY, -1)
    refused(kept, rf"{tmp_path / place} belongs to another user \(number 12345\): choose another folder")
    assert PrivateFolder(tmp_path / place / "new" / "er").made() is None
    assert not (tmp_path / place / "new").exists()


@only_root
def test_a_link_of_another_user_leads_nowhere(tmp_path: Path) -> None:
    """It may lead to any folder by the time that something is made."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir(mode=0o700)
    (theirs / "link").symlink_to(mine)
    (mine / "entry").write_text("")
    (mine / "entry").chmod(0o600)
    os.chown(theirs, SOMEBODY, -1)
    # what the link leads to at the moment is mine: this is what is opened, whatever it leads to afterwards
    folder = PrivateFolder(theirs / "link")
    assert folder.existing() == mine.resolve()
    (theirs / "link").unlink()
    (theirs / "link").symlink_to(theirs / "own" / "memplan")
    with pytest.warns(UserWarning, match="theirs belongs to another user"):
        assert folder.made() is None
    assert not (theirs / "own").exists()


def test_a_file_that_others_can_write(kept: PrivateFolder, tmp_path: Path) -> None:
    (tmp_path / "a/b/c/entry").chmod(0o620)
    with pytest.warns(UserWarning, match="entry: remove it"):
        assert kept.read("entry") is None
    assert kept.write("entry", b"made anew")
    assert kept.read("entry") == b"made anew"


@only_root
def test_a_file_of_another_user(kept: PrivateFolder, tmp_path: Path) -> None:
    os.chown(tmp_path / "a/b/c/entry", SOMEBODY, -1)
    with pytest.warns(UserWarning, match=r"entry belongs to another user \(number 12345\)"):
        assert kept.read("entry") is None
    assert kept.write("entry", b"made anew")
    assert kept.read("entry") == b"made anew"


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_opened(kept: PrivateFolder, tmp_path: Path, what: str) -> None:
    place = tmp_path / "a/b/c/odd"
    if what == "link":
        place.symlink_to(tmp_path / "a/b/c/entry")
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    refused(kept, "odd", "odd")


def test_a_file_is_the_one_that_was_looked_at(
    kept: PrivateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced by another file after it was opened, and by one that others can write before."""
    entry, opened = tmp_path / "a/b/c/entry", os.open

    def replaced(path: Path, flags: int) -> int:
        (tmp_path / "theirs").write_text("forged")
        (tmp_path / "theirs").chmod(0o666)
        os.replace(tmp_path / "theirs", entry)
        return opened(path, flags)

    monkeypatch.setattr(os, "open", replaced)
    with pytest.warns(UserWarning, match="other users can write"):
        assert kept.read("entry") is None


@pytest.mark.parametrize("name", ["..", ".", "", "../entry", "/etc/passwd", "x/y"])
def test_a_name_stays_in_the_folder(kept: PrivateFolder, name: str) -> None:
    for use in (kept.read, kept.__truediv__, lambda name: kept.write(name, b"")):
        with pytest.raises(ValueError, match="is no name in a folder"):
            use(name)


def test_a_folder_that_can_not_be_made_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = PrivateFolder(tmp_path / "file" / "below")
    with pytest.warns(UserWarning, match=r"nothing is cached in .*below: Not a directory$") as reported:
        assert [below.write("entry", b""), below.write("entry", b""), below.read("entry")] == [
            False,
            False,
            None,
        ]
    assert len(reported) == 1


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.warns(UserWarning, match=r"nothing is cached in .*loop"):
        assert not (PrivateFolder(tmp_path / "loop") / "below").write("entry", b"")


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = PrivateFolder(Path("kept")) / "plans"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert folder.write("entry", b"")
    assert (tmp_path / "kept" / "plans" / "entry").exists()


def test_a_full_disk_costs_the_copy(kept: PrivateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private, "write_whole", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert not kept.write("entry", b"")
    assert kept.read("entry") == b"what it holds"


def test_others_lose_the_right_to_read_memplans_own_folders(tmp_path: Path) -> None:
    """Those that another version has made under the user's umask, not those that the user has named."""
    root = tmp_path / "cache" / "memplan"
    (root / "plans").mkdir(parents=True)
    for place in (root.parent, root, root / "plans"):
        place.chmod(0o755)
    assert (PrivateFolder(root, own=True) / "plans").existing() is not None
    assert [mode(place) for place in (root.parent, root, root / "plans")] == [0o755, 0o700, 0o700]
    root.chmod(0o755)
    assert PrivateFolder(root / "plans").write("entry", b"")
    assert mode(root) == 0o755


def test_a_group_of_this_users_own_may_write(
    kept: PrivateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the umask is 002, and each user has such a group; root's is nobody's own."""
    (tmp_path / "a").chmod(0o775)
    monkeypatch.setattr(private, "_own_group", lambda: (tmp_path / "a").stat().st_gid)
    assert kept.read("entry") == b"what it holds"
    (tmp_path / "a").chmod(0o777)
    refused(kept, "other users can write")


def test_caches_are_used_through_this_alone() -> None:
    """No other file of memplan asks where caches are, or reads a pickle of one."""
    root = Path(memplan.__file__).parent
    files = [path for package in root.iterdir() if package.is_dir() for path in package.rglob("*.py")]
    texts = {path: path.read_text() for path in files if path.parent != root / "graphs" / "folders"}
    assert len(texts) > 500
    texts.pop(root / "model" / "hub_cache.py")  # another tool's cache, of JSON
    asks = re.compile(r"XDG_CACHE_HOME|cache_folder\(|\.cache[\"']")
    assert [str(path) for path, text in texts.items() if asks.search(text)] == []
