#!/bin/sh
# Make or refresh the virtual environment .venv with servetune and the extras named in $1, pinned by constraints.txt.
# Needs Python 3.11 or newer and the package index, nothing else; every step that can be missing has a fallback.
set -eu

extras=$1
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv=${SERVETUNE_VENV:-$root/.venv}

find_python() {
  for name in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14; do
    if command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  echo "servetune needs Python 3.11 or newer: install it, or name one with PYTHON=/path/to/python3" >&2
  exit 3
}

# A wheel of pip: from the interpreter's bundle or the system's, else from the package index.
find_pip_wheel() {
  "$1" - "$2" <<'PY'
import glob, os, pathlib, re, sys, sysconfig, urllib.parse, urllib.request
folders = [os.path.join(sysconfig.get_path("stdlib"), "ensurepip", "_bundled"), "/usr/share/python-wheels"]
found = [path for folder in folders for path in sorted(glob.glob(os.path.join(folder, "pip-*.whl")))]
if found:
    print(found[-1])
    raise SystemExit
index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
with urllib.request.urlopen(f"{index}/pip/", timeout=60) as answer:
    page, base = answer.read().decode(), answer.url
links = re.findall(r'href="([^"#]*/?(pip-(\d+(?:\.\d+)+)-py3-none-any\.whl))', page)
link, name, _ = max(links, key=lambda item: tuple(map(int, item[2].split("."))))
target = pathlib.Path(sys.argv[1]) / name
with urllib.request.urlopen(urllib.parse.urljoin(base, link), timeout=120) as answer:
    target.write_bytes(answer.read())
print(target)
PY
}

if [ ! -x "$venv/bin/python" ]; then
  python=$(find_python)
  if ! "$python" -c 'import venv' 2>/dev/null; then
    echo "this Python lacks the module venv: install it (Debian and Ubuntu: apt-get install python3-venv)" >&2
    exit 3
  fi
  if ! "$python" -c 'import ensurepip' 2>/dev/null || ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    "$python" -m venv --without-pip "$venv"
  fi
else
  python=$("$venv/bin/python" -c 'import sys; print(sys._base_executable)')
fi

if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  pip() { "$venv/bin/python" -m pip "$@"; }
elif "$python" -m pip --version >/dev/null 2>&1 && "$python" -m pip --python "$venv/bin/python" --version >/dev/null 2>&1; then
  pip() { "$python" -m pip --python "$venv/bin/python" "$@"; }
else
  wheel=$(find_pip_wheel "$python" "$venv")
  pip() { PYTHONPATH=$wheel "$venv/bin/python" -m pip "$@"; }
fi

stamp=$venv/.installed
wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" | cksum)" $extras $root"
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  echo "installing servetune[$extras] into $venv (once, about a minute)" >&2
  # setuptools is the build backend; installing it here lets the editable build use it without a second download.
  pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" 'setuptools' 'wheel'
  pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" \
    --no-build-isolation --editable "$root[$extras]"
  printf '%s' "$wanted" >"$stamp"
fi
