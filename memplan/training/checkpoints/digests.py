"""The digests of a checkpoint's tensors and files, and one of the whole, which binds the files of one save.

Checkpoints of earlier versions have none. In those of this version `rest.pt` has the format's number, so that
missing digests are noticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from ...graphs.errors import InputError
from ...graphs.files.documents import read_document
from .tensor_file import OTHER, sync

FORMAT = 2
"""Checkpoint format that is written. Format 1 had no digests."""

Digests = Mapping[str, Mapping[str, str]]
"""Digests by file, then by tensor. A file without tensors has one, under the empty name."""

DIGESTS = "digests.json"


def write_digests(folder: Path, digests: Digests) -> None:
    """Write the digests to the folder, on the disk when this returns. Raises OSError."""
    content = {"format": FORMAT, "files": digests}
    with (folder / DIGESTS).open("wb") as file:
        file.write(json.dumps({**content, "whole": _whole(content)}).encode())
        sync(file)


def read_digests(folder: Path) -> Digests | None:
    """Return the digests in the folder, None if there are none.

    Raises InputError if they are not as written.
    """
    path = folder / DIGESTS
    # A dangling link is a lost file, not a checkpoint of format 1.
    if not path.exists() and not path.is_symlink():
        return None
    document = read_document(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: it {OTHER}")
    content = cast("dict[str, Any]", document)
    whole = content.pop("whole", None)
    if whole != _whole(content):
        raise InputError(f"{path}: it {OTHER}")
    # After the digest: a damaged number is damage, not a newer format.
    if content["format"] != FORMAT:
        raise InputError(
            f"{path}: written by a newer memplan, in format {content['format']}; this one reads {FORMAT}"
        )
    return content["files"]


def _whole(content: Mapping[str, Any]) -> str:
    # Keys sorted: the digest is of the content, not of the order in the file.
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    # Names may hold lone surrogates, which strict UTF-8 refuses.
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
