"""Environments that hold a release of TRL on top of this project's own packages."""

import subprocess
import sys
import sysconfig
from pathlib import Path

WITH_PPO = "1.12.0"
"""The last release that has a PPO trainer."""
CURRENT = "1.16.0"
"""The newest release that was compared with: SFT and reward training."""


def make_environment(work: Path, version: str) -> Path:
    """Its interpreter; made below the folder for working files where it is not there yet."""
    folder = work / f"trl-{version}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(
            subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
        )
        borrowed = Path(sysconfig.get_path("purelib")).resolve()
        (site / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", f"trl=={version}"], check=True)
        (folder / "ready").touch()
    return python
