"""Configurations of the hub's cache, found as huggingface_hub finds them, and ids that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from memplan.cli.main import main
from memplan.model.hub_cache import cached_file, hub_cache, is_hub_id

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 32, "n_head": 2,
    "n_positions": 64, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "hub"
    for commit in ("0ld", "abc"):
        snapshot = folder / "models--tiny--gpt" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps(CONFIG))
    (folder / "models--tiny--gpt" / "refs").mkdir()
    (folder / "models--tiny--gpt" / "refs" / "main").write_text("abc\n")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


def test_a_snapshot_is_found_as_the_hub_finds_it(cache: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    found = cached_file("tiny/gpt", "config.json")
    assert found == cache / "models--tiny--gpt" / "snapshots" / "abc" / "config.json"
    (cache / "models--tiny--gpt" / "refs" / "main").write_text("abc")
    assert str(found) == hub.try_to_load_from_cache("tiny/gpt", "config.json", cache_dir=cache)
    (cache / "models--tiny--gpt" / "refs" / "main").unlink()
    assert cached_file("tiny/gpt", "config.json") is not None
    assert cached_file("tiny/gpt", "absent.json") is None
    assert cached_file("tiny/other", "config.json") is None


def test_the_folder_is_the_hubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert hub_cache() == Path.home() / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert hub_cache() == tmp_path / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert hub_cache() == tmp_path / "home" / "hub"


def test_ids_have_one_slash_at_most() -> None:
    assert is_hub_id("meta-llama/Llama-3.2-1B")
    assert is_hub_id("gpt2")
    assert not is_hub_id("a/b/c")
    assert not is_hub_id("../a")


@pytest.mark.usefixtures("cache")
def test_an_id_is_sized_and_one_that_is_not_cached_names_the_command(cache: Path) -> None:
    words = ["--gpu", "rtx3060", "--batch", "1", "--seq-len", "32", "--solver", "store-all"]
    result = CliRunner().invoke(main, ["size", "tiny/gpt", *words])
    assert result.exit_code == 0, result.stderr
    assert "GPT2LMHeadModel" in result.stdout
    result = CliRunner().invoke(main, ["size", "tiny/gtp", *words])
    assert result.exit_code == 2
    assert f"the cache of the Hugging Face hub, {cache}. Nothing is downloaded" in result.stderr
    assert "hf download tiny/gtp config.json, then this command" in result.stderr
