"""Puts away the rounds that params.yaml no longer has.

`best_of_n` and `report` depend on the whole of models/, results/ and data/rounds/. What a round has
left there that was taken out of params.yaml would be among what they are recorded with. A clone
gets only the rounds of params.yaml from DVC, and could never be up to date. Nothing is lost: with
the round in params.yaml again, DVC restores it from its cache.
"""

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from tasks.workspace.dvc_cache import cache_folder, is_sound, output_hash
from tasks.workspace.dvc_definition import round_outputs
from tasks.workspace.dvc_lockfile import LockedStage, read_lock, without_entry
from tasks.workspace.stage_order import round_of


def put_away_former_rounds(root: Path, rounds: Collection[str]) -> list[str]:
    """Remove outputs of other rounds, and their entries of dvc.lock; the keys of these rounds.

    A stage stays whose outputs are not the recorded ones, or are not whole in DVC's cache. Outputs
    that dvc.lock does not name go as well, where the cache has them: a checkout of another commit
    changes dvc.lock and leaves them there.

    Args:
        root: the workspace, held by the caller.
        rounds: keys of the rounds of params.yaml.

    Raises:
        DamagedLockError: dvc.lock is damaged.
    """
    lock = read_lock(root)
    former = {
        name: locked
        for name, locked in lock.items()
        if round_of(name) not in (None, *rounds) and _is_kept(root, locked)
    }
    if former:
        _put_away(root, former)
    keys = [str(round_of(name)) for name in former]
    recorded = {out for locked in lock.values() for out in locked.outs}
    for key, out in list(_others(root, rounds)):
        if out not in recorded and is_sound(cache_folder(root), output_hash(root / out)):
            _remove(root, root / out)
            keys.append(key)
    return list(dict.fromkeys(keys))


def _put_away(root: Path, former: dict[str, LockedStage]) -> None:
    path = root / "dvc.lock"
    text = path.read_text(encoding="utf-8")
    for name, locked in former.items():
        for out in locked.outs:
            _remove(root, root / out)
        text = without_entry(text, name)
    draft = path.with_name(".dvc.lock.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _others(root: Path, rounds: Collection[str]) -> Iterator[tuple[str, str]]:
    """Key and path of each output that is here of a round that params.yaml does not have."""
    for template in round_outputs(root):
        before, _, after = template.partition("${key}")
        for path in sorted(root.glob(f"{before}*{after}")):
            out = path.relative_to(root).as_posix()
            key = out[len(before) : len(out) - len(after)]
            if key not in rounds and not key.startswith("."):  # A draft of an output.
                yield key, out


def _is_kept(root: Path, locked: LockedStage) -> bool:
    cache = cache_folder(root)
    return all(
        output_hash(root / out) == digest and is_sound(cache, digest)
        for out, digest in locked.outs.items()
        if (root / out).exists()
    )


def _remove(root: Path, out: Path) -> None:
    """Remove an output, and folders above it that it leaves empty."""
    if out.is_dir() and not out.is_symlink():
        shutil.rmtree(out)
    else:
        out.unlink(missing_ok=True)
    for folder in out.parents:
        if folder == root or not folder.is_dir() or any(folder.iterdir()):
            break
        folder.rmdir()
