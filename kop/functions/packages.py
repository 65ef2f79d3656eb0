"""The code of a function as a file that travels: .py, .whl, or .zip in Pulsar's layout.

Owns: the parts in which a package lies in a topic, and how it is put together again; how it is unpacked, with what it
depends on; the check of its code in a process of its own.
Must not know: topics, who runs the code.

Pulsar's layout of NAME.zip: `NAME/src` has the modules, `NAME/deps/*.whl` what they depend on, and
`NAME/requirements.txt` names it. What is not in `deps` has to be installed where the function runs; from an index it
comes only where that is allowed. A package is unpacked once, into a folder with its digest for a name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from kop.functions.function import CodePlace

CHUNK_BYTES: Final = 512 * 1024
PACKAGE_BYTES: Final = 128 << 20
"""The most bytes of a package."""
UNPACKED_BYTES: Final = 1 << 30
"""The most bytes of all files of a package together."""
INSTALL_SECONDS: Final = 300.0
_COUNT: Final = struct.Struct(">I")
_PART: Final = re.compile("[0-9a-f]{64}/(0|[1-9][0-9]{0,8})")
"""The key of a record of a package."""
_LAYOUT: Final = "NAME/src with the modules, NAME/deps/*.whl with what they depend on, NAME/requirements.txt"


class PackageError(Exception):
    """A package that cannot be used; the text says why."""


@dataclass(frozen=True)
class Package:
    """A file with code, and its name, whose ending says what it is."""

    name: str
    data: bytes

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the data, in hex."""
        return hashlib.sha256(self.data).hexdigest()


def read_package(path: str | Path) -> Package:
    """Return the package of a file. PackageError if the file cannot be read, or is too large."""
    path = Path(path)
    try:
        if path.stat().st_size > PACKAGE_BYTES:
            raise PackageError(
                f"{path} has more than {PACKAGE_BYTES >> 20} MiB: install what it depends on where functions run, and "
                "let large data come from elsewhere"
            )
        return Package(path.name, path.read_bytes())
    except OSError as error:
        raise PackageError(f"{path} cannot be read: {error.strerror}") from None


# -- in a topic


def chunks(package: Package) -> list[tuple[bytes, bytes]]:
    """Return keys and values of the records that a package is, one for each 512 KiB: the key is `SHA-256/NUMBER`, the
    value the number of all parts, in 4 bytes, and then the part.
    """
    data = package.data
    parts = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)] or [b""]
    return [
        (f"{package.digest}/{number}".encode(), _COUNT.pack(len(parts)) + part) for number, part in enumerate(parts)
    ]


class Assembler:
    """The packages of a topic, as far as they have come, in a folder. `add` takes the records in any order."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._counts: dict[str, int] = {}
        self._parts: dict[str, set[int]] = {}

    def add(self, key: bytes, value: bytes | None) -> None:
        """Add a record of a package, whose part is kept in a file; without a value it removes what was under its key.
        Records with other keys are ignored.
        """
        text = key.decode(errors="replace")
        if not _PART.fullmatch(text):
            return
        digest, _, number = text.partition("/")
        place = self._folder / digest
        if value is None:
            parts = self._parts.get(digest, set())
            parts.discard(int(number))
            (place / number).unlink(missing_ok=True)
            if not parts:
                self._parts.pop(digest, None)
                self._counts.pop(digest, None)
                shutil.rmtree(place, ignore_errors=True)
        elif len(value) >= _COUNT.size:
            self._counts[digest] = _COUNT.unpack_from(value)[0]
            place.mkdir(parents=True, exist_ok=True)
            _write(place / number, value[_COUNT.size :])
            self._parts.setdefault(digest, set()).add(int(number))

    def keys(self, digest: str) -> list[bytes]:
        """Return the keys of the records of a package that have come and were not removed."""
        return [f"{digest}/{number}".encode() for number in sorted(self._parts.get(digest, ()))]

    def is_whole(self, digest: str) -> bool:
        """Return True if all parts of a package are there."""
        return digest in self._counts and self._parts[digest] >= set(range(self._counts[digest]))

    def package(self, digest: str, name: str) -> Package | None:
        """Return a package under this file name; None if parts are missing, or the data do not have the digest."""
        if not self.is_whole(digest):
            return None
        numbers = range(self._counts[digest])
        package = Package(name, b"".join((self._folder / digest / str(number)).read_bytes() for number in numbers))
        return package if package.digest == digest else None


def _write(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all; a file of that name is replaced."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)


# -- unpacked


def unpack(package: Package, folder: str | Path, allow_index: bool = False) -> CodePlace:
    """Unpack a package into a folder of `folder`, unless that was done before, and return where its code lies.
    PackageError if the package is wrong, or its dependencies cannot be had.

    `allow_index`: dependencies that are not in the package come from pip's index.
    """
    kind = PurePosixPath(package.name).suffix
    stem = PurePosixPath(package.name).stem
    if kind not in {".py", ".whl", ".zip"} or "/" in package.name or package.name.startswith("."):
        raise PackageError(f"{package.name} must be a file .py, .whl or .zip")
    if kind == ".py" and not stem.isidentifier():
        raise PackageError(f"{package.name} cannot be imported: its name must be that of a module, as my_function.py")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    place = root / hashlib.sha256(f"{package.digest} {package.name} {allow_index}".encode()).hexdigest()[:32]
    with open(root / f"{place.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may unpack the same
        if not place.is_dir():
            made = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=root))
            try:
                _fill(package, kind, made, allow_index)
                made.rename(place)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
    if kind == ".py":
        return CodePlace(str(place / package.name))
    folders = [place / name for name in ("src", "deps") if (place / name).is_dir()]
    return CodePlace("", tuple(map(str, folders)))


def _fill(package: Package, kind: str, place: Path, allow_index: bool) -> None:
    """Put the modules of a package into the folder `src` of `place`, what they depend on into `deps`; a file of Python
    as it is. `kind` is the ending of its name. PackageError as of `unpack`.
    """
    if kind == ".py":
        (place / package.name).write_bytes(package.data)
        return
    work = place / "work"
    work.mkdir()
    (work / package.name).write_bytes(package.data)
    if kind == ".whl":
        _extract(work / package.name, None)
        more = [] if allow_index else ["--no-index", "--no-deps"]
        _pip(package.name, ["--target", str(place / "src"), *more, str(work / package.name)])
    else:
        _extract(work / package.name, work / "files")
        top = _top(package.name, work / "files")
        (top / "src").rename(place / "src")
        _install(package.name, top, place / "deps", allow_index)
    shutil.rmtree(work)


def _extract(archive: Path, target: Path | None) -> None:
    """Unpack a zip file into `target`, or only check it if `target` is None. PackageError if it is damaged, would write
    outside of the folder, or has more than 1 GiB.
    """
    try:
        with zipfile.ZipFile(archive) as given:
            members = given.infolist()
            if sum(member.file_size for member in members) > UNPACKED_BYTES:
                raise PackageError(f"{archive.name} unpacked has more than {UNPACKED_BYTES >> 20} MiB")
            for member in members:
                path = PurePosixPath(member.filename.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or stat.S_ISLNK(member.external_attr >> 16):
                    raise PackageError(f"{archive.name} has a file that would lie elsewhere: {member.filename}")
            if target is not None:
                target.mkdir()
                given.extractall(target, [member for member in members if not member.filename.startswith("__MACOSX/")])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise PackageError(f"{archive.name} cannot be unpacked: {error}") from None


def _top(name: str, files: Path) -> Path:
    """Return the folder of Pulsar's layout in an unpacked zip file: the one with the file's name, or the only one.
    PackageError if there is none, or several others.
    """
    folders = [path for path in sorted(files.iterdir()) if (path / "src").is_dir()]
    named = [path for path in folders if path.name == PurePosixPath(name).stem]
    if not named and len(folders) != 1:
        there = ", ".join(sorted(path.name for path in files.iterdir())[:5]) or "nothing"
        raise PackageError(f"{name} has not Pulsar's layout ({_LAYOUT}); in it: {there}")
    return (named or folders)[0]


def _install(name: str, top: Path, target: Path, allow_index: bool) -> None:
    deps = top / "deps"
    wheels = sorted(deps.iterdir()) if deps.is_dir() else []
    for path in wheels:
        if path.suffix != ".whl":
            raise PackageError(f"{name}: deps/{path.name} is no wheel: pip wheel makes one of it")
    requirements = top / "requirements.txt"
    given = ["--find-links", str(deps)] if wheels else []
    index = [] if allow_index else ["--no-index"]
    named: Sequence[str] = ()
    if requirements.is_file():
        if allow_index:
            named = ["-r", str(requirements)]
        else:  # what is installed here counts, too
            _pip(name, ["--dry-run", *index, *given, "-r", str(requirements)])
    distributions = sorted({path.name.partition("-")[0] for path in wheels})
    if distributions:
        _pip(name, ["--target", str(target), "--no-index", "--no-deps", *given, *distributions])
    if named:
        _pip(name, ["--target", str(target), "--upgrade", *given, *named])


def _pip(name: str, arguments: Sequence[str]) -> None:
    """Run pip install. PackageError with pip's output if it fails, or has not ended within 300 s; `name` is the
    package's.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-compile", "--no-warn-script-location"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PackageError(f"{name}: pip has not ended within {INSTALL_SECONDS:g} s") from None
    if done.returncode:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
        allowed = "" if "--no-index" not in arguments else "; put wheels into deps of the package, or install it here"
        raise PackageError(f"{name}: pip cannot install what it depends on: {' '.join(told)}{allowed}")
