"""The Hugging Face hub's cache of downloaded repositories.

models--google--vit-base-patch16-224/
    blobs/SHA256                              the files
    refs/main                                 the commit that `main` was at the last download
    snapshots/COMMIT/model.safetensors        links to ../../blobs/SHA256
"""

import re
from pathlib import Path

SNAPSHOTS = "snapshots"
# A commit's hash has 40 characters.
LARGEST_REF = 256


def snapshot_folder(folder: Path) -> Path:
    """Return the downloaded files of a repository in the hub's cache; any other folder as it is.

    Raises:
        FileNotFoundError: The cache does not hold the commit of `main`, or several others.
    """
    snapshots = folder / SNAPSHOTS
    if not snapshots.is_dir():
        return folder
    commit, ref = "", folder / "refs" / "main"
    if ref.is_file() and ref.stat().st_size <= LARGEST_REF:
        commit = ref.read_text("utf-8", "replace").strip()
    downloaded = sorted(snapshot.name for snapshot in snapshots.iterdir() if snapshot.is_dir())
    if not commit and len(downloaded) == 1:
        return snapshots / downloaded[0]
    if not re.fullmatch(r"\w+", commit) or commit not in downloaded:
        raise FileNotFoundError(
            f"{ref} does not name one of the downloaded snapshots: "
            f"{', '.join(downloaded) or 'none'}. Download the repository again, or give the folder "
            f"of one: {snapshots}/COMMIT."
        )
    return snapshots / commit
