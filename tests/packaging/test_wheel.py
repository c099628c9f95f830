"""The distribution as a stranger meets it: built, looked into, installed into a new Django project.

Everything happens in temporary folders with pip and `build`, so the machine's own package index settings hold.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).resolve().parents[2]
NOT_SHIPPED = {".gitkeep"}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program outside this test run's Django environment and return what it printed."""
    ours = ("DJANGO_", "PYTEST_", "PYTHONPATH", "SSE_LIMITS_", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and from it the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="module")
def new_project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the Python of a new environment with the wheel in it, and a new project that lists the app."""
    folder = tmp_path_factory.mktemp("stranger")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    run(python, "-m", "django", "startproject", "shop", cwd=folder)
    settings = folder / "shop" / "shop" / "settings.py"
    settings.write_text(settings.read_text() + '\nINSTALLED_APPS += ["sse_limits"]\n')
    return python, folder / "shop"


def package_files() -> set[str]:
    """Return the files of the package folder, templates and static files behind the symlinks included."""
    return {
        (Path(folder) / name).relative_to(ROOT).as_posix()
        for folder, _, names in os.walk(ROOT / "sse_limits", followlinks=True)
        for name in names
        if name not in NOT_SHIPPED and "__pycache__" not in folder
    }


def test_the_wheel_holds_the_package_folder_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == package_files()


def test_the_wheel_holds_types_and_scripts(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
    assert PurePosixPath("sse_limits/py.typed") in names
    assert [name for name in names if name.match("sse_limits/slots/lua/*.lua")]


def test_the_sdist_holds_what_it_takes_to_test_it(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()}
    expected = {
        "LICENSE",
        "CHANGELOG.md",
        "README.md",
        "manage.py",
        "project/settings.py",
        "tests/packaging/test_wheel.py",
    }
    assert {PurePosixPath(name) for name in expected} <= names
    assert not [name for name in names if name.parts and name.parts[0] in {".venv", ".git", ".ci", "bench"}]


def test_a_new_project_checks_and_migrates(new_project: tuple[Path, Path]) -> None:
    python, project = new_project
    run(python, "manage.py", "check", cwd=project)
    run(python, "manage.py", "migrate", "--verbosity=0", cwd=project)


def test_a_new_project_makes_stream_tokens(new_project: tuple[Path, Path]) -> None:
    python, project = new_project
    token = run(python, "manage.py", "stream_token", "--tenant", "acme", "--user", "u1", cwd=project)
    assert token.startswith("sl1.")
