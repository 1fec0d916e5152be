"""What build_tools/toolkit.py finds, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import ROOT

from build_tools import toolkit

FAKE_NVCC = """\
#!/bin/sh
# Answers --version and --dryrun; compiles as C++.
case $1 in
  --version) echo 'Cuda compilation tools, release {release}, V{release}.88'; exit ;;
  --dryrun) echo '#$ _SPACE_=' >&2; echo '#$ TOP={home}/bin/..' >&2; exit ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
    *.cu) in=$1 ;; -I*) include=$1 ;; -o) out=$2 ;; -MT) target=$2 ;; -MF) dep=$2 ;; --dryrun) exit ;;
  esac
  shift
done
echo "ptxas info    : Compiling entry function 'k' for 'sm_80'" >&2
[ "$dep" ] || exec c++ -x c++ -D__global__= -c "$in" -o "$out"
exec c++ -x c++ -fPIC "$include" -MD -MT "$target" -MF "$dep" -c "$in" -o "$out"
"""


def make_toolkit(home: Path, *, release: str = "13.0", lib: str = "lib64") -> Path:
    script(home / "bin" / "nvcc", FAKE_NVCC.format(home=home, release=release))
    (home / lib).mkdir(parents=True)
    (home / lib / "libcudart_static.a").write_bytes(b"!<arch>\n")
    return home


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_toolkit_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, on_path, default = (make_toolkit(tmp_path / name) for name in ("home", "on_path", "default"))
    site = tmp_path / "site"
    wheel = make_toolkit(site / "nvidia" / "cu13", lib="lib")
    monkeypatch.setattr(toolkit, "DEFAULT_HOME", default)
    environ = {"CUDA_HOME": str(home), "CUDA_PATH": str(on_path), "PATH": str(on_path / "bin")}
    assert toolkit.find_toolkit(environ, [str(site)]) == (home, "")
    del environ["CUDA_HOME"]
    assert toolkit.find_toolkit(environ, [str(site)]) == (on_path, "")
    del environ["CUDA_PATH"]
    assert toolkit.find_toolkit(environ, [str(site)]) == (on_path, "")
    assert toolkit.find_toolkit({}, [str(site)]) == (wheel, "")
    assert toolkit.find_toolkit({}, []) == (default, "")


def test_nvcc_on_path_may_be_a_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_toolkit(tmp_path / "cuda", lib="targets/x86_64-linux/lib")
    script(tmp_path / "bin" / "nvcc", f'#!/bin/sh\nexec {home}/bin/nvcc "$@"\n')
    monkeypatch.setattr(toolkit, "DEFAULT_HOME", tmp_path / "nothing")
    assert toolkit.find_toolkit({"PATH": str(tmp_path / "bin")}, []) == (home, "")


def test_unusable_toolkits_are_skipped_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_toolkit(tmp_path / "old", release="11.8")
    bare = tmp_path / "bare"
    script(bare / "bin" / "nvcc", FAKE_NVCC.format(home=bare, release="13.0"))
    monkeypatch.setattr(toolkit, "DEFAULT_HOME", tmp_path / "nothing")
    environ = {"CUDA_HOME": str(old), "CUDA_PATH": str(bare)}
    found, reason = toolkit.find_toolkit(environ, [])
    assert found is None
    assert reason == f"{old}: nvcc 11.8 is older than 12.1; {bare}: no libcudart_static.a"
    monkeypatch.setattr(toolkit, "DEFAULT_HOME", make_toolkit(tmp_path / "default"))
    assert toolkit.find_toolkit(environ, []) == (toolkit.DEFAULT_HOME, "")


#: What nvcc 13.0.88 says of an empty kernel beside parts of 13.5, by the part. Such an nvvm is found whatever is
#: compiled: its PTX is too new for the assembler. Such a crt is only found where host code is compiled, too. A
#: nvidia-cuda-runtime 13.5 does no harm.
OTHER_RELEASES = {
    "nvvm": ("*", "ptxas empty.ptx, line 9; fatal   : Unsupported .version 9.5; current version is '9.0'"),
    "crt": ("*-c\\ *", "empty.cudafe1.stub.c:13:149: error: macro __cudaLaunch passed 2 arguments, but takes just 1"),
}


@pytest.mark.parametrize("part", OTHER_RELEASES)
def test_wheels_of_different_releases_are_refused_with_those_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(toolkit, "DEFAULT_HOME", tmp_path / "nothing")
    wheels = make_toolkit(tmp_path / "nvidia" / "cu13", lib="lib")
    flags, error = OTHER_RELEASES[part]
    nvcc = wheels / "bin" / "nvcc"
    refusing = f"""case "$*" in {flags}.cu) echo "{error}" >&2; exit 255 ;; esac\ncase $1 in"""
    nvcc.write_text(nvcc.read_text().replace("case $1 in", refusing, 1))
    found, reason = toolkit.find_toolkit({}, [str(tmp_path)])
    assert found is None
    assert f"{wheels}: nvcc 13.0 does not compile an empty kernel ({error})" in reason
    for wheel in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime"):
        assert f"'{wheel}==13.0.*'" in reason.partition("pip install ")[2]
    other = make_toolkit(tmp_path / "default")
    monkeypatch.setattr(toolkit, "DEFAULT_HOME", other)
    assert toolkit.find_toolkit({}, [str(tmp_path)]) == (other, "")


def test_the_wheels_named_are_those_that_the_makefile_installs() -> None:
    lines = (ROOT / "requirements" / "nvcc.txt").read_text().splitlines()
    assert {line.partition("==")[0] for line in lines if not line.startswith("#")} == set(toolkit.WHEELS)


def test_no_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "DEFAULT_HOME", tmp_path / "nothing")
    found, reason = toolkit.find_toolkit({"PATH": "", "CUDA_HOME": str(tmp_path)}, [str(tmp_path)])
    assert found is None
    assert reason.startswith("no nvcc in CUDA_HOME, PATH")
