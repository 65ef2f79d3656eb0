"""Packages of functions: on their way through a topic, unpacked, and checked."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from functions.function_kit import spec_with

from kop.functions.code_check import check
from kop.functions.config_reading import from_flags
from kop.functions.function import CodePlace, load_place
from kop.functions.localrun import load_here
from kop.functions.packages import (
    CHUNK_BYTES,
    PACKAGE_BYTES,
    Assembler,
    Package,
    PackageError,
    chunks,
    read_package,
    unpack,
)
from kop.functions.spec import WindowSpec

SHOUT = "def process(text: str) -> str:\n    return text.upper()\n"


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """Return a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def wheel(name: str, files: Mapping[str, str], requires: str = "") -> bytes:
    """Return a wheel of version 1."""
    info = f"{name}-1.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    about = {
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, *about, f"{info}/RECORD"])
    return zipped({**files, **about, f"{info}/RECORD": record})


# -- in a topic


def test_a_package_is_put_together_from_records_in_any_order(tmp_path: Path) -> None:
    package = Package("f.py", bytes(range(256)) * 5_000)
    records = chunks(package)
    assert [len(value) for _, value in records] == [CHUNK_BYTES + 4, CHUNK_BYTES + 4, 1_280_000 - 2 * CHUNK_BYTES + 4]
    assert records[1][0] == f"{package.digest}/1".encode()
    assembler = Assembler(tmp_path)
    for key, value in reversed(records):
        assert not assembler.is_whole(package.digest)
        assembler.add(key, value)
    assert assembler.package(package.digest, "f.py") == package
    assert assembler.keys(package.digest) == [key for key, _ in records]
    for key, _ in records:
        assembler.add(key, None)
    assert assembler.keys(package.digest) == []
    assert assembler.package(package.digest, "f.py") is None
    assert list(tmp_path.iterdir()) == []


def test_records_that_are_no_part_of_a_package_are_left_out(tmp_path: Path) -> None:
    package = Package("f.py", b"x")
    assembler = Assembler(tmp_path)
    numbers = ("..", "-1", "01", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 5_000)
    for key in ("../../etc/0", "name", "\udcff/0", *(f"{package.digest}/{number}" for number in numbers)):
        assembler.add(key.encode(errors="surrogateescape"), b"\0\0\0\1x")
    assert list(tmp_path.iterdir()) == []
    for value in (b"", b"\0\0\1", None):
        assembler.add(f"{package.digest}/0".encode(), value)
        assert list(tmp_path.iterdir()) == []
    assembler.add(f"{package.digest}/0".encode(), b"\0\0\0\1other")
    assert assembler.package(package.digest, "f.py") is None


# -- unpacked


def called(place: CodePlace, class_name: str, value: Any) -> Any:
    return load_place(place, class_name).call(value, None)


def test_a_file_of_python_is_unpacked_once(tmp_path: Path) -> None:
    (tmp_path / "shout_in_package.py").write_text(SHOUT)
    package = read_package(tmp_path / "shout_in_package.py")
    place = unpack(package, tmp_path / "code")
    changed = Path(place.py).stat().st_mtime_ns
    assert unpack(package, tmp_path / "code") == place
    assert Path(place.py).stat().st_mtime_ns == changed
    assert called(place, "shout_in_package", "a") == "A"
    other = unpack(Package(package.name, package.data + b"\n"), tmp_path / "code")
    assert other != place


def test_a_wheel_has_the_function(tmp_path: Path) -> None:
    data = wheel("shouting", {"shouting/__init__.py": "", "shouting/loud.py": SHOUT}, requires="no-such-distribution")
    place = unpack(Package("shouting-1-py3-none-any.whl", data), tmp_path)
    assert called(place, "shouting.loud", "a") == "A"


def test_a_zip_file_in_pulsars_layout_has_what_it_depends_on(tmp_path: Path) -> None:
    data = zipped(
        {
            "words/src/words_in_zip.py": "from zip_dependency import twice\ndef process(text):\n    return twice(text)",
            "words/deps/zip_dependency-1-py3-none-any.whl": wheel(
                "zip_dependency", {"zip_dependency.py": "def twice(text):\n    return text * 2\n"}
            ),
            "words/requirements.txt": "zip-dependency==1\npytest\n",  # the second one is installed here
        }
    )
    place = unpack(Package("words.zip", data), tmp_path)
    assert called(place, "words_in_zip", "ab") == "abab"


def test_what_a_package_depends_on_does_not_come_from_an_index(tmp_path: Path) -> None:
    data = zipped({"words/src/words.py": SHOUT, "words/requirements.txt": "no-such-distribution-at-all\n"})
    with pytest.raises(PackageError, match=r"no-such-distribution-at-all.*put wheels into deps of the package"):
        unpack(Package("words.zip", data), tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def with_link() -> bytes:
    link = zipfile.ZipInfo("words/src/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("f.tar.gz", b"", r"f\.tar\.gz must be a file \.py, \.whl or \.zip"),
        ("../f.py", b"", r"must be a file \.py"),
        ("my-function.py", b"", "my-function.py cannot be imported: its name must be that of a module"),
        ("f.zip", b"no zip", r"f\.zip cannot be unpacked: File is not a zip file"),
        ("f.zip", zipped({"../../evil.py": ""}), r"a file that would lie elsewhere: \.\./\.\./evil\.py"),
        ("f.zip", zipped({"/etc/evil.py": ""}), "would lie elsewhere: /etc/evil.py"),
        ("f.zip", zipped({"a\\..\\..\\evil.py": ""}), "would lie elsewhere"),
        ("f.whl", zipped({"../evil.py": ""}), "would lie elsewhere"),
        ("f.zip", with_link(), "would lie elsewhere: words/src/link"),
        ("f.zip", zipped({"f.py": SHOUT}), r"has not Pulsar's layout \(NAME/src .*; in it: f\.py"),
        ("f.zip", zipped({}), "in it: nothing"),
        ("f.zip", zipped({"f/src/f.py": "", "f/deps/a.tar.gz": ""}), r"deps/a\.tar\.gz is no wheel"),
    ],
)
def test_it_says_what_is_wrong_with_a_package(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    with pytest.raises(PackageError, match=told):
        unpack(Package(name, data), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".py"]


def test_a_zip_file_that_would_fill_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kop.functions.packages.UNPACKED_BYTES", 1 << 20)
    with pytest.raises(PackageError, match="unpacked has more than 1 MiB"):
        unpack(Package("f.zip", zipped({"f/src/f.py": "#" * (1 << 21)})), tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="cannot be read: No such file"):
        read_package(tmp_path / "f.py")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "f.zip", "wb") as file:
        file.truncate(PACKAGE_BYTES)
        assert len(read_package(file.name).data) == PACKAGE_BYTES
        file.truncate(PACKAGE_BYTES + 1)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("it was read"))
    with pytest.raises(PackageError, match=r"f\.zip has more than 128 MiB: install"):
        read_package(tmp_path / "f.zip")


def test_localrun_takes_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "packed.zip").write_bytes(zipped({"packed/src/in_packed.py": SHOUT}))
    spec, _ = from_flags({"py": str(tmp_path / "packed.zip"), "classname": "in_packed", "inputs": "in"})
    assert load_here(spec).call("a", None) == "A"
    assert (tmp_path / "cache" / "kop" / "functions").is_dir()


# -- checked


def mistakes(tmp_path: Path, code: str, class_name: str = "checked", seconds: float = 20, **flags: Any) -> list[str]:
    spec, _ = from_flags({"py": "checked.py", "classname": class_name, "inputs": "in", "output": "out", **flags})
    return check(spec, unpack(Package("checked.py", code.encode()), tmp_path), seconds)


@pytest.mark.parametrize(
    ("code", "class_name", "told"),
    [
        (SHOUT, "checked", ""),
        ("def process(:\n", "checked", "checked.py, line 1: SyntaxError: invalid syntax"),
        ("x = 1\nimport no_such_module\n", "checked", "checked.py, line 2: ModuleNotFoundError: No module named"),
        (
            "class Shouter:\n  def process(self, i, c): pass\n",
            "checked.Shuter",
            "checked has no class or function Shuter; is it Shouter?",
        ),
        (SHOUT, "chekced.F", "there is no module chekced in the files of the function; is it checked?"),
        ("def process(): pass\n", "checked", "called as process(input, context), and takes ()"),
        ("def process(x: 'Order') -> str: pass\n", "checked", "the annotation 'Order' of checked means nothing"),
        ("import sys\nsys.exit(4)\n", "checked", "checked.py, line 2: SystemExit: 4"),
        (
            "import os\nprint('so long', flush=True)\nos._exit(4)\n",
            "checked",
            "ended itself, with exit code 4\nso long",
        ),
        ("import ctypes\nctypes.string_at(0)\n", "checked", "while it was imported, the process was ended by SIGSEGV"),
        ("print('x' * 9_000_000)\n" + SHOUT, "checked", ""),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n" + SHOUT, "checked", ""),
    ],
)
def test_a_check_says_what_is_wrong_with_the_code(tmp_path: Path, code: str, class_name: str, told: str) -> None:
    got = mistakes(tmp_path, code, class_name)
    assert len(got) == bool(told), got
    if told:
        assert told in got[0]
        assert str(tmp_path) not in got[0]


def test_a_module_that_hangs_is_told_with_its_line(tmp_path: Path) -> None:
    (got,) = mistakes(tmp_path, "import time\n\ntime.sleep(60)\n", seconds=4)
    assert got.startswith("its import has not ended within 4 s")
    assert 'checked.py", line 3 in <module>' in got


def test_serdes_are_checked_too(tmp_path: Path) -> None:
    inputs = '{"a": {"serdeClassName": "checked.NoSuch"}}'
    flags: dict[str, Any] = {"input-specs": inputs, "output-serde-classname": "checked.Neither"}
    got = mistakes(tmp_path, SHOUT, **flags)
    assert len(got) == 2
    assert "NoSuch" in got[0]
    assert "Neither" in got[1]


def test_functions_of_windows_and_of_batches_are_checked_as_they_are_called(tmp_path: Path) -> None:
    window: dict[str, Any] = {"window-length-count": 3}
    assert mistakes(tmp_path, "def process(texts: list[str], context) -> str:\n    return texts[0]\n", **window) == []
    serde: dict[str, Any] = {"input-specs": '{"a": {"serdeClassName": "checked.NoSuch"}}'}
    (got,) = mistakes(tmp_path, "def process(texts: list[str], context) -> str:\n    return ''\n", **window, **serde)
    assert "NoSuch" in got
    batches = "class B:\n  def process_batch(self, batch, context):\n    return batch\n"
    assert mistakes(tmp_path, batches, "checked.B") == []


def test_the_timestamp_extractor_of_windows_is_checked_too(tmp_path: Path) -> None:
    window = WindowSpec(length_ms=1, sliding_ms=1, timestamp_extractor="checked.when")
    spec = spec_with(class_name="checked", window=window)
    (told,) = check(spec, unpack(Package("checked.py", SHOUT.encode()), tmp_path))
    assert "the timestamp extractor checked.when: it cannot be had: checked has no class or function when" in told
