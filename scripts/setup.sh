#!/bin/sh
# Make a virtual environment and install this checkout into it, editable, with what its tests need.
set -eu
venv=$1
here=$(cd "$(dirname "$0")/.." && pwd)

for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
    if command -v "$candidate" > /dev/null 2>&1 &&
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2> /dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "${python:-}" ]; then
    echo "setup: Python 3.10 or later is needed: apt-get install python3 python3-venv" >&2
    exit 2
fi
# Debian splits venv's bootstrap into a package of its own.
if ! "$python" -c 'import ensurepip' 2> /dev/null; then
    if command -v apt-get > /dev/null 2>&1 && ! sh "$here/scripts/engine.sh" answers; then
        sh "$here/scripts/engine.sh" install python3-venv
    else
        echo "setup: Python's venv module is incomplete: apt-get install python3-venv" >&2
        exit 2
    fi
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "${here}[dev]"
touch "$venv/.installed"
