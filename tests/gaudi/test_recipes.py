from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.config import Settings
from common.errors import StartError
from workers.gaudi.recipes import Kept, RecipeCache, configured, filesystem, kept, parse, recipe_cache, report

STARTED_S = 1_000_000.0
"""When the warm-up of these tests began."""


def cached(folder: Path, size_mb: int, written_s: list[float], mb_each: int = 1) -> RecipeCache:
    """A cache on disk: recipes of `mb_each` with their metadata, written at these times, and a lock."""
    cache = RecipeCache(str(folder / "recipes"), size_mb=size_mb)
    cache.on_disk.mkdir(parents=True)
    for number, at_s in enumerate(written_s):
        for name, n_bytes in ((f"{number}_libs_syn1.24.recipe", mb_each * 2**20 - 1024), (f"{number}_libs_syn1.24.metadata", 1024)):
            path = cache.on_disk / name
            with path.open("wb") as file:
                file.truncate(n_bytes)
            os.utime(path, (at_s, at_s))
    (cache.on_disk / "eviction.lock").touch()
    return cache


@pytest.mark.parametrize(
    ("text", "cache", "again"),
    [
        ("/c", RecipeCache("/c", False, 8192), "/c,false,8192"),
        ("/c,", RecipeCache("/c", False, 8192), "/c,false,8192"),
        ("/c,True,", RecipeCache("/c", True, 8192), "/c,true,8192"),
        (" /c , false , 2048 ", RecipeCache("/c", False, 2048), "/c,false,2048"),
        ("/c,false,0", RecipeCache("/c", False, 0), "/c,false,0"),
        ("/c,false,1024,true", RecipeCache("/c", False, 1024, True), "/c,false,1024,true"),
        ("/c,,1024,false", RecipeCache("/c", False, 1024, False), "/c,false,1024"),
        (",false,1024", RecipeCache("", False, 1024), ""),
    ],
)
def test_one_to_four_fields(text: str, cache: RecipeCache, again: str) -> None:
    """The bridge alone would silently stop at 1 GB where no size is given."""
    assert parse(text) == cache
    assert str(cache) == again and (not again or parse(again) == cache)


@pytest.mark.parametrize("text", ["/c,false,1024,true,x", "/c,maybe", "/c,false,1GB", "/c,false,-1", "/c,false,1,nfs"])
def test_what_would_end_the_process_with_an_assertion_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="Invalid argument: PT_HPU_RECIPE_CACHE_CONFIG=") as refusal:
        parse(text)
    assert refusal.value.code == 2


def test_each_model_has_a_folder_of_its_own_beside_the_weights(tmp_path: Path) -> None:
    settings = Settings.from_env({"HF_HOME": str(tmp_path)})
    one = configured(settings, tmp_path / "hub/models--org--one/snapshots/abc")
    assert one == RecipeCache(str(tmp_path / "tokenfarm/recipes/models--org--one-abc/rank"), False, 8192)
    assert one.on_disk.name == "rank0", "the bridge appends its rank"
    assert configured(settings, tmp_path / "other") != one


def test_it_is_made_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cache = recipe_cache(Settings.from_env({"HF_HOME": str(tmp_path)}), tmp_path / "model")
    assert cache.on_disk.is_dir()
    assert caplog.messages == [f"Recipes are kept in {cache.on_disk}, up to 8192 MB"]


def test_a_bare_folder_gets_a_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cache = recipe_cache(Settings.from_env({"PT_HPU_RECIPE_CACHE_CONFIG": f"{tmp_path}/r"}), tmp_path / "model")
    assert str(cache) == f"{tmp_path}/r,false,8192"
    assert caplog.messages[0] == "PT_HPU_RECIPE_CACHE_CONFIG names no size: 8192 MB are used, the bridge alone would stop at 1024"


def test_a_folder_that_cannot_be_written_costs_time_not_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    cache = recipe_cache(Settings.from_env({"HF_HOME": str(tmp_path / "file")}), tmp_path / "model")
    assert str(cache) == ""
    assert "each start compiles all shapes again" in caplog.text


def test_a_network_disk_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nhost:/x {tmp_path}/with\\040space nfs4 rw 0 0\nproc /proc proc rw 0 0\n")
    folder = tmp_path / "with space"
    assert filesystem(folder / "rank0", mounts) == "nfs4" and filesystem(tmp_path, mounts) == "ext4"
    assert filesystem(folder, tmp_path / "none") == ""
    recipe_cache(Settings.from_env({"PT_HPU_RECIPE_CACHE_CONFIG": f"{folder}/r,false,4096,true"}), tmp_path, mounts)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    recipe_cache(Settings.from_env({"PT_HPU_RECIPE_CACHE_CONFIG": f"{folder}/r,false,4096"}), tmp_path, mounts)
    assert f"in {folder}/r0, on nfs4, whose locks are not safe: use a local disk" in caplog.text


def test_workers_that_empty_each_others_recipes_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = {"PT_HPU_RECIPE_CACHE_CONFIG": f"{tmp_path}/r,true,4096"}
    recipe_cache(Settings.from_env(env), tmp_path)
    assert "deletes" not in caplog.text
    recipe_cache(Settings.from_env({**env, "WORKERS": "2"}), tmp_path)
    assert f"each of the 2 workers empties {tmp_path}/r0 when it starts" in caplog.text


def test_a_cache_with_room_is_enough(tmp_path: Path) -> None:
    cache = cached(tmp_path, 10, [STARTED_S + n for n in range(8)])
    assert kept(cache, STARTED_S, 8) == Kept(8, 8 * 2**20, None)


def test_a_full_cache_that_still_holds_older_recipes_evicted_none_of_this_warm_up(tmp_path: Path) -> None:
    cache = cached(tmp_path, 10, [STARTED_S - 50, *[STARTED_S + n for n in range(9)]])
    assert kept(cache, STARTED_S, 9).enough_mb is None


def test_a_cache_smaller_than_one_warm_up_names_a_size_that_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """First in, first out: the first shapes of this warm-up are gone before its end."""
    caplog.set_level("INFO")
    cache = cached(tmp_path, 1000, [STARTED_S + n for n in range(9)], mb_each=110)
    assert kept(cache, STARTED_S, 40) == Kept(9, 9 * 110 * 2**20, 6144)
    settings = Settings.from_env({"PT_HPU_RECIPE_CACHE_CONFIG": str(cache)})
    report(settings, tmp_path / "model", STARTED_S, 40)
    assert caplog.messages == [
        f"9 recipes of 990 MB are in {tmp_path}/recipes0",
        "The recipe cache of 1000 MB is smaller than one warm-up, so the next start compiles again: "
        f"set PT_HPU_RECIPE_CACHE_CONFIG={tmp_path}/recipes,false,6144",
    ]


def test_a_cache_without_a_limit_is_never_too_small(tmp_path: Path) -> None:
    assert kept(cached(tmp_path, 0, [STARTED_S + 1]), STARTED_S, 9).enough_mb is None
    assert kept(RecipeCache(str(tmp_path / "none")), STARTED_S, 9) == Kept(0, 0, None)
