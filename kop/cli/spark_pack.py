"""`kop spark --pack`: this environment as an archive that Spark brings to its executors (`spark.archives`).

Owns: what is in the archive.
Must not know: clusters, sessions.

It is what venv-pack makes: the venv, without the Python that it was made of, which each machine has to have under the
same path. kop is in it as files, also if this one is an editable install, of which executors would find nothing.
Spark's jars are left out: executors have those of their own Spark.
"""

from __future__ import annotations

import importlib.util
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kop.cli.common import fail, note, size

FOLDER: Final = "environment"
"""The name under which executors have the archive, in the commands that are told."""
_LEFT_OUT: Final = (
    "__pycache__",
    "pyspark/jars",
    "pyspark/examples",
    "pyspark/data",
    "kop/_native",  # the sources of compiled modules, and what compilers leave there; modules are beside it
    "kop/schemas/_native",
)
_EDITABLE: Final = "__editable__"


def pack(file: str) -> None:
    """Write the archive of the venv that this Python runs in to `file`, and print on stderr how it is used. The command
    ends if it is no venv, the name is not one of a .tar.gz, or the file cannot be written.
    """
    prefix = Path(sys.prefix)
    if (prefix / "conda-meta").is_dir():
        fail(f"{prefix} is an environment of conda: conda-pack makes an archive of it (pip install conda-pack)")
    if sys.prefix == sys.base_prefix:
        fail(
            f"this Python is in no venv, and all of {prefix} would be packed: python -m venv ENV, install kop[spark] "
            "there, and call its kop"
        )
    if not file.endswith((".tar.gz", ".tgz")):
        fail(f"{file}: Spark unpacks an archive by its name: let that end with .tar.gz")
    try:
        count = write_archive(Path(file), prefix, _own_files(prefix))
    except OSError as error:
        fail(f"{file}: {error.strerror or error}")
    note(f"{file}: {count} files, {size(Path(file).stat().st_size)}")
    note(f"each machine needs the Python of {sys.base_prefix}, too; executors get the archive by")
    note(f"  kop spark --conf spark.archives={file}#{FOLDER} --conf spark.pyspark.python=./{FOLDER}/bin/python ...")


def _own_files(prefix: Path) -> dict[str, Path]:
    """Return the modules of kop that are outside of the environment at `prefix`, by the name that they have to get in
    its site-packages: their files or folders. The command ends if one is missing.
    """
    own = {}
    for name in ("kop", "pyspark_kop"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            fail(f"there is no module {name}: install kop again")
        path = Path(spec.origin)
        path = path.parent if path.name == "__init__.py" else path
        if not path.is_relative_to(prefix):
            own[path.name] = path
    return own


def write_archive(file: Path, prefix: Path, own: Mapping[str, Path]) -> int:
    """Write the archive of the venv at `prefix`, with the files in `own` added to its site-packages; returns the number
    of files.
    """
    packages = _site_packages(prefix)
    there = file.resolve()
    added = 0

    def keep(where: str) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
        def choose(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
            nonlocal added
            name = Path(member.name).name
            if any(f"/{member.name}/".endswith(f"/{left}/") for left in _LEFT_OUT):
                return None
            if where == "" and own and (name.startswith(_EDITABLE) or "kop.egg-link" in name):
                return None
            if (prefix / member.name).resolve() == there:
                return None
            added += not member.isdir()
            return member

        return choose

    with tarfile.open(file, "w:gz", compresslevel=6) as archive:
        archive.add(prefix, ".", filter=keep(""))
        for name, path in own.items():
            archive.add(path, f"{packages.relative_to(prefix)}/{name}", filter=keep(name))
    return added


def _site_packages(prefix: Path) -> Path:
    return prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
