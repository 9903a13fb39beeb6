# Sourced by quickstart.sh and tests/run.sh, from the repository's root: a virtual environment with the package in it.
#
#   VENV            where it lies (.venv)
#   EXTRA           an extra of setup.cfg to install too, for example test
#   PYTHON          what makes it (python3)
#
# Installs again only where setup.cfg or constraints.txt has changed since.

VENV="${VENV:-.venv}"
PYTHON="${PYTHON:-python3}"

"$PYTHON" - <<'EOF' || exit 2
import sys
if sys.version_info < (3, 11):
    sys.exit(f"megatron_mep needs Python 3.11 or newer, this is {sys.version.split()[0]}: set PYTHON to another one")
EOF

if [ ! -x "$VENV/bin/python" ]; then
  echo "making $VENV"
  "$PYTHON" -m venv "$VENV"
fi
stamp="$VENV/installed${EXTRA:+-$EXTRA}"
wanted="$(cat setup.cfg constraints.txt | sha256sum | cut -c1-16)"
# what was installed with an extra serves without it
if ! grep -qsx "$wanted" "$stamp"*; then
  echo "installing megatron_mep${EXTRA:+[$EXTRA]} into $VENV"
  # DeepSpeed's optional kernels are not built: nothing here needs a compiler
  DS_BUILD_OPS=0 "$VENV/bin/python" -m pip install --quiet --constraint constraints.txt --editable ".${EXTRA:+[$EXTRA]}"
  echo "$wanted" > "$stamp"
fi
# DeepSpeed's launcher looks for python and ninja on the path
PATH="$(cd "$VENV/bin" && pwd):$PATH"
export PATH
