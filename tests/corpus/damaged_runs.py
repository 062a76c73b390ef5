"""Damaged run directories: every file of a finished and of an unfinished run, damaged in every way we know.

A new kind of damage is one line of ``DAMAGES`` or ``SPECIAL``. ``cases()`` yields all.

    python -m tests.corpus.damaged_runs    # lists them
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chronofed.runs.checkpoint import _digest

FINISHED, STOPPED = "finished", "stopped"
TEXT = (
    "spec.toml",
    "environment.json",
    "digests.json",
    "metrics.jsonl",
    "period_accuracy.jsonl",
    "round_weights.jsonl",
    "times.jsonl",
    "scenario.json",
    "engines.jsonl",
)
ENDS = {FINISHED: "summary.json", STOPPED: "failure.json"}
NEWEST, OLDER = "newest checkpoint", "older checkpoint"


@dataclass(frozen=True)
class Case:
    """One damage to one file of one run."""

    state: str
    file: str
    damage: str
    act: Callable[[Path], None]

    @property
    def name(self) -> str:
        return f"{self.state}-{self.file}-{self.damage}".replace(" ", "-")

    def make(self, whole: Path, copy: Path) -> Path:
        """Copy the whole run and damage the copy."""
        shutil.copytree(whole, copy, symlinks=True)
        self.act(_place(copy, self.file))
        return copy


def _place(run: Path, file: str) -> Path:
    if file not in (NEWEST, OLDER):
        return run / file
    found = sorted((run / "checkpoints").glob("*.safetensors"))
    return found[-1] if file == NEWEST else found[0]


def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return act


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    return changed(lambda content: b"".join(change(content.splitlines(keepends=True))))


def flip(content: bytes, place: float) -> bytes:
    at = int(place * (len(content) - 1))
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def another_digit(content: bytes) -> bytes:
    """Change a digit in the middle: the file stays valid, and is wrong."""
    at = next(k for k in range(len(content) // 2, len(content)) if content[k : k + 1].isdigit())
    return content[:at] + (b"7" if content[at : at + 1] != b"7" else b"3") + content[at + 1 :]


def replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replaced_by_link(path: Path) -> None:
    """A link to the same content elsewhere."""
    target = path.parent.parent / f"{path.parent.name}-{path.name}"
    path.rename(target)
    path.symlink_to(target)


def replaced_by_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def renamed(name: str) -> Callable[[Path], None]:
    return lambda path: path.rename(path.with_name(name)) and None


def of_format(number: bytes) -> Callable[[Path], None]:
    """Rewrite a checkpoint as another version would have written it, with a digest that is right."""

    def act(path: Path) -> None:
        content = path.read_bytes().replace(
            b"chronofed-checkpoint-3", b"chronofed-checkpoint-" + number
        )
        path.unlink()
        name = f"{path.name[:8]}-{_digest([content])}.safetensors"
        path.with_name(name).write_bytes(content)

    return act


# For every file.
DAMAGES: dict[str, Callable[[Path], None]] = {
    "deleted": os.unlink,
    "emptied": changed(lambda content: b""),
    "cut in half": changed(lambda content: content[: len(content) // 2]),
    "last byte cut": changed(lambda content: content[:-2]),
    "first bit flipped": changed(lambda content: flip(content, 0.0)),
    "bit flipped in the middle": changed(lambda content: flip(content, 0.5)),
    "zeros": changed(lambda content: bytes(len(content))),
    "appended rubbish": changed(lambda content: content + b"\x00\xff rubbish\n"),
    "folder": replaced_by_folder,
    "link": replaced_by_link,
}
# For text files.
TEXT_DAMAGES: dict[str, Callable[[Path], None]] = {
    "a digit changed": changed(another_digit),
    "wrong type": changed(lambda content: b"[1, 2]\n"),
    "not unicode": changed(lambda content: b"\xff\xfe" + content),
}
# For files of lines.
LINE_DAMAGES: dict[str, Callable[[Path], None]] = {
    "first line lost": lines(lambda found: found[1:]),
    "last line lost": lines(lambda found: found[:-1]),
    "half a line": changed(lambda content: content[:-9]),
    "line twice": lines(lambda found: [*found[:2], *found[1:]]),
    "lines swapped": lines(lambda found: found[::-1]),
    "line of another type": lines(lambda found: [*found[:1], b'{"round": "two"}\n', *found[2:]]),
}
# One file, one damage.
SPECIAL: tuple[tuple[str, str, Callable[[Path], None]], ...] = (
    (NEWEST, "newer format", of_format(b"9")),
    (NEWEST, "older format", of_format(b"2")),
    (NEWEST, "another name", renamed("00000099-0.safetensors")),
    (NEWEST, "dangling link", replaced_by_dangling_link),
    ("checkpoints", "deleted", shutil.rmtree),
    ("checkpoints", "replaced by a file", lambda path: (shutil.rmtree(path), path.write_text(""))[1] and None),
    ("spec.toml", "another setting", changed(lambda c: c.replace(b"lr = 0.1", b"lr = 0.2"))),
    ("spec.toml", "another size of model", changed(lambda c: c.replace(b"hidden = [8]", b"hidden = [9]"))),
    ("summary.json", "a word for a number", lambda path: path.write_text('{"best5": "much"}') and None),
    ("scenario.json", "lacks keys", lambda path: path.write_text('{"rounds": 3}') and None),
    ("digests.json", "another data digest", changed(lambda c: c.replace(b'"data": "', b'"data": "0'))),
    ("measures.json", "made up", lambda path: path.write_text("{") and None),
    ("flower.json", "made up", lambda path: path.write_text("{") and None),
)  # fmt: skip


def cases() -> Iterator[Case]:
    """All damaged runs."""
    for state, end in ENDS.items():
        for file in (*TEXT, end, NEWEST, OLDER):
            text = file not in (NEWEST, OLDER)
            kinds = DAMAGES | (TEXT_DAMAGES if text else {})
            for damage, act in (kinds | (LINE_DAMAGES if file.endswith(".jsonl") else {})).items():
                yield Case(state, file, damage, act)
        for file, damage, act in SPECIAL:
            if file not in ENDS.values() or file == end:
                yield Case(state, file, damage, act)


def main() -> None:
    found = list(cases())
    print("\n".join(case.name for case in found))
    print(json.dumps({"cases": len(found)}))


if __name__ == "__main__":
    main()
