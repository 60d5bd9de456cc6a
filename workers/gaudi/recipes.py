"""The card compiler's disk cache: `PT_HPU_RECIPE_CACHE_CONFIG=folder,delete,megabytes,on_nfs` and what it really does (gaudi.md §2.7).

The bridge appends its rank to the folder's name, caps a bare folder at 1 GB, evicts the oldest recipes by the time they were
written, never by use, and locks files: a cache smaller than one warm-up evicts its own beginning and helps nobody.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, NamedTuple

from common.errors import StartError
from workers.weights import cache_folder, checkpoint_name

if TYPE_CHECKING:
    from common.config import Settings

log = logging.getLogger(__name__)

SIZE_MB = 8192
"""Ours, for one model. The bridge's own is 1024."""

FULL = 0.9
"""Eviction starts at 0.99; the last recipe that did not fit any more may have been large."""

RANK = "0"
"""What the bridge appends to the folder: one card, one rank."""

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.s3fs", "lustre", "ceph", "fuse.glusterfs")


class RecipeCache(NamedTuple):
    """`folder` as the bridge is told it; empty: no cache. `size_mb` 0: never evicted."""

    folder: str
    delete: bool = False
    size_mb: int = SIZE_MB
    on_nfs: bool = False

    def __str__(self) -> str:
        fields = (self.folder, str(self.delete).lower(), str(self.size_mb), *(["true"] if self.on_nfs else []))
        return ",".join(fields) if self.folder else ""

    @property
    def on_disk(self) -> Path:
        """Where the recipes really are."""
        return Path(self.folder + RANK)


class Kept(NamedTuple):
    """What the cache holds after a warm-up; `enough_mb` is set when it is smaller than that warm-up."""

    n_recipes: int
    n_bytes: int
    enough_mb: int | None


def recipe_cache(settings: Settings, folder: Path, mounts: Path = Path("/proc/mounts")) -> RecipeCache:
    """The cache for the model in `folder`: as given, or one of its own beside the weights. Raises `StartError` for a malformed setting.

    Says what would surprise: a size that was not given, a network disk, a folder that several workers empty.
    """
    cache = configured(settings, folder)
    if not cache.folder:
        return cache
    if settings.pt_hpu_recipe_cache_config and "," not in settings.pt_hpu_recipe_cache_config:
        log.info("PT_HPU_RECIPE_CACHE_CONFIG names no size: %d MB are used, the bridge alone would stop at 1024", cache.size_mb)
    if not _writable(cache.on_disk):
        log.warning("Recipes cannot be kept in %s: each start compiles all shapes again", cache.on_disk)
        return RecipeCache("")
    kind = filesystem(cache.on_disk, mounts)
    if kind in NETWORK and not cache.on_nfs:
        log.warning(
            "Recipes are kept in %s, on %s, whose locks are not safe: use a local disk, or add `true` as 4th field", cache.on_disk, kind
        )
    if cache.delete and settings.workers > 1:
        log.warning("PT_HPU_RECIPE_CACHE_CONFIG deletes: each of the %d workers empties %s when it starts", settings.workers, cache.on_disk)
    log.info("Recipes are kept in %s, up to %s", cache.on_disk, f"{cache.size_mb} MB" if cache.size_mb else "any size")
    return cache


def configured(settings: Settings, folder: Path) -> RecipeCache:
    """As set, else a folder for this model alone: two models in one folder evict each other."""
    if settings.pt_hpu_recipe_cache_config is not None:
        return parse(settings.pt_hpu_recipe_cache_config)
    return RecipeCache(str(cache_folder(settings) / "recipes" / checkpoint_name(folder) / "rank"))


def parse(text: str) -> RecipeCache:
    """One to four fields; raises `StartError` where the bridge would end the process with an assertion."""
    fields = [field.strip() for field in text.split(",")]
    folder, delete, size_mb, on_nfs = (*fields, "", "", "")[:4]
    truths = {"": False, "false": False, "0": False, "true": True, "1": True}
    if len(fields) > 4 or delete.lower() not in truths or on_nfs.lower() not in truths or not (size_mb.isdecimal() or not size_mb):
        allowed = "folder,delete,megabytes[,on_nfs], for example /data/recipes,false,8192"
        raise StartError(f"Invalid argument: PT_HPU_RECIPE_CACHE_CONFIG={text}, allowed is {allowed}")
    return RecipeCache(folder, truths[delete.lower()], int(size_mb) if size_mb else SIZE_MB, truths[on_nfs.lower()])


def report(settings: Settings, folder: Path, started_s: float, n_compiled: int) -> None:
    """Says after a warm-up, begun at `started_s` of the clock that files are stamped with, what of it the next start will find."""
    cache = configured(settings, folder)
    if not cache.folder:
        return
    found = kept(cache, started_s, n_compiled)
    log.info("%d recipes of %.0f MB are in %s", found.n_recipes, found.n_bytes / 2**20, cache.on_disk)
    if found.enough_mb is not None:
        log.warning(
            "The recipe cache of %d MB is smaller than one warm-up, so the next start compiles again: "
            "set PT_HPU_RECIPE_CACHE_CONFIG=%s,false,%d",
            cache.size_mb, cache.folder, found.enough_mb,
        )  # fmt: skip


def kept(cache: RecipeCache, started_s: float, n_compiled: int) -> Kept:
    """Counts what is there. The oldest go first, so when only recipes of this warm-up are left in a full cache, some of them went too."""
    files = [path.stat() for pattern in ("*.recipe", "*.metadata") for path in cache.on_disk.glob(pattern)]
    n_recipes, n_bytes = sum(1 for _ in cache.on_disk.glob("*.recipe")), sum(file.st_size for file in files)
    full = cache.size_mb > 0 and n_bytes >= FULL * cache.size_mb * 2**20
    if not full or min(file.st_mtime for file in files) < started_s:
        return Kept(n_recipes, n_bytes, None)
    whole_mb = n_bytes / n_recipes * max(n_compiled, n_recipes) / 2**20
    return Kept(n_recipes, n_bytes, max(2 * cache.size_mb, math.ceil(1.25 * whole_mb / 1024) * 1024))


def filesystem(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the file system that `folder` is on, by the longest mount point above it; empty when unknown."""
    lines = mounts.read_text().splitlines() if mounts.is_file() else []
    points = [(fields[1].replace("\\040", " "), fields[2]) for line in lines if len(fields := line.split()) > 2]
    above = [(point, kind) for point, kind in points if folder.absolute().is_relative_to(point)]
    return max(above, key=lambda found: len(found[0]), default=("", ""))[1]


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
