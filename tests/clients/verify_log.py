"""Verifies a served log with tlog-scales, a client that knows only the C2SP specifications.

    verify_log.py URL VERIFIER_KEY SEEN

holds the checkpoint's signature against the key, every entry against the checkpoint's root, and the
checkpoint against the one that the file SEEN has from the run before, if it is there. The file then
keeps the new one. Exits with 1 and says why when anything does not hold.
"""

import sys
from pathlib import Path

from tlog_scales.backend import HttpBackend
from tlog_scales.reader import TilesReader
from tlog_scales.signing import PlainEd25519Verifier, Vkey
from tlog_scales.tiles import leaf_hash
from tlog_scales.tlog import Checkpoint


def signed(checkpoint: Checkpoint, verifier: PlainEd25519Verifier) -> None:
    """Fails unless the log's key has signed the checkpoint, under the name of the log."""
    if checkpoint.origin != verifier.vkey.name:
        raise ValueError(f"the origin is {checkpoint.origin}")
    notes = [note for note in checkpoint.signatures if verifier.vkey.match(note)]
    if not notes:
        raise ValueError("the log's key has not signed the checkpoint")
    for note in notes:
        verifier.verify_note(note, checkpoint)


def verify(url: str, key: str, seen: Path) -> str:
    """Returns what was verified, in one line."""
    verifier = PlainEd25519Verifier(Vkey.from_string(key))
    reader = TilesReader(HttpBackend(url))
    checkpoint = reader.get_checkpoint()
    signed(checkpoint, verifier)
    size, root = checkpoint.size, checkpoint.root_hash
    for index in range(size):
        leaf = leaf_hash(reader.get_entry(index))
        try:
            reader.get_inclusion_proof(index, size).check(leaf, root)
        except Exception as problem:
            raise ValueError(f"entry {index} is not in the log: {problem}") from problem
    since = 0
    if seen.exists():
        older = Checkpoint.from_text(seen.read_text())
        signed(older, verifier)
        since = older.size
        reader.get_consistency_proof(since, size).check(older.root_hash, root)
    seen.write_text(checkpoint.serialize())
    return f"{size} entries, consistent with the first {since}"


def main() -> None:
    url, key, seen = sys.argv[1:]
    try:
        print(verify(url, key, Path(seen)))
    except Exception as problem:
        # Some errors of the libraries have no words.
        sys.exit(f"the log does not verify: {type(problem).__name__}: {problem}")


if __name__ == "__main__":
    main()
