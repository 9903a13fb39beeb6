# Sourced by quickstart.sh and tests/run.sh, from the repository's root: a virtual environment with the package in it.
#
#   VENV            where it lies (.venv)
#   EXTRAS          extras of setup.cfg to install, for example "[test]"
#
# Installs again only where setup.cfg or constraints.txt has changed since.

VENV="${VENV:-.venv}"
PYTHON="${PYTHON:-python3}"

"$PYTHON" - <<'EOF' || exit 2
import sys
if sys.version_info < (3, 11):
    sys.exit(f"megatron_mep needs Python 3.11 or newer, this is {sys.version.split()[0]}: set PYTHON to another one")
EOF

wanted="$(cat setup.cfg constraints.txt | sha256sum | cut -c1-16)${EXTRAS:-}"
if [ ! -x "$VENV/bin/python" ]; then
  echo "making $VENV"
  "$PYTHON" -m venv "$VENV"
fi
if [ "$(cat "$VENV/installed" 2>/dev/null)" != "$wanted" ]; then
  echo "installing megatron_mep${EXTRAS:-} into $VENV"
  # DeepSpeed's optional kernels are not built: nothing here needs a compiler
  DS_BUILD_OPS=0 "$VENV/bin/python" -m pip install --quiet --constraint constraints.txt --editable ".${EXTRAS:-}"
  printf '%s' "$wanted" > "$VENV/installed"
fi
# DeepSpeed's launcher looks for python and ninja on the path
PATH="$(cd "$VENV/bin" && pwd):$PATH"
export PATH
