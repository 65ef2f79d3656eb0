"""The archive of an environment for executors."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest
from cli.cli_support import Invoke

from kop.cli.spark_pack import write_archive


def test_an_archive_has_the_environment_with_kop_as_files_and_without_what_executors_have(tmp_path: Path) -> None:
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    names = ["a.py", "__editable__.kop-0.1.0.pth", "__pycache__/a.pyc", "pyspark/core.py", "pyspark/jars/a.jar"]
    for name in names:
        path = tmp_path / "venv" / packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "venv" / "bin").mkdir()
    (tmp_path / "venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    own = tmp_path / "checkout" / "kop"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("")
    (own / "_native.so").write_text("")
    (own / "_native" / "target").mkdir(parents=True)
    (own / "_native" / "target" / "left.o").write_text("")
    archive = tmp_path / "venv" / "environment.tar.gz"
    assert write_archive(archive, tmp_path / "venv", {"kop": own}) == 5
    with tarfile.open(archive) as written:
        there = {name.removeprefix("./") for name in written.getnames() if written.getmember(name).isreg()}
        assert there == {
            f"{packages}/{name}" for name in ("a.py", "pyspark/core.py", "kop/__init__.py", "kop/_native.so")
        }
        assert written.getmember("./bin/python").linkname == "/usr/bin/python3"


def test_what_cannot_be_packed_is_told(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = invoke("spark", "--pack", str(tmp_path / "environment.zip"))
    assert (told.exit_code, "end with .tar.gz" in told.stderr) == (1, True)
    script = tmp_path / "a.py"
    script.write_text("")
    assert "runs no script" in invoke("spark", "--pack", str(tmp_path / "e.tar.gz"), str(script)).stderr
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "conda-meta").mkdir()
    assert "conda-pack makes an archive" in invoke("spark", "--pack", str(tmp_path / "e.tar.gz")).stderr
    (tmp_path / "conda-meta").rmdir()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert "is in no venv" in invoke("spark", "--pack", str(tmp_path / "e.tar.gz")).stderr
