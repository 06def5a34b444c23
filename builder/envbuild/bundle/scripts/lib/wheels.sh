# shellcheck shell=sh disable=SC2154
# Read by install.sh. Wheels go into a virtual environment below the prefix, by hash, from the bundle alone.

find_python() {
    python_wanted=$(conf python) python='' python_libraries=''
    collection=/opt/rh/rh-python$(printf %s "$python_wanted" | tr -d .)/root/usr/bin
    for each in "$(conf python_program)" "/usr/bin/python$python_wanted" "$collection/python$python_wanted" \
        "$(command -v "python$python_wanted" 2> /dev/null || true)"; do
        if [ -n "$each" ] && [ -x "$each" ]; then
            python=$each
            break
        fi
    done
    # A collection keeps its libraries in a folder that the loader does not know.
    case $python in
        /opt/rh/*/root/usr/bin/*) python_libraries=${python%/bin/*}/lib64 ;;
    esac
}

# With nothing of the caller's: no settings of pip, no index, no other packages, no folder that may be noexec.
clean() {
    env -i HOME="$work" PATH="$prefix/venv/bin:/usr/local/bin:/usr/bin:/bin" LC_ALL=C PYTHONUTF8=1 TMPDIR="$work" \
        PYTHONNOUSERSITE=1 PYTHONWARNINGS=ignore PIP_CONFIG_FILE=/dev/null PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
        PIP_ROOT_USER_ACTION=ignore DS_BUILD_OPS=0 \
        ${python_libraries:+LD_LIBRARY_PATH="$python_libraries"} ENVBUILD_INSTALLS="$prefix" "$@"
}
requirements=wheels/requirements.lock
wheels_key() {
    { printf '%s\n' "$prefix" "$(conf python)" "$(conf deepspeed)"; grep '  wheels/' "$sums"; } | sha256sum | cut -c1-64
}
# What is installed, by name and version: a later pip install leaves no other trace.
wheels_changed() {
    clean "$prefix/venv/bin/python" -I - "$believed/$requirements" <<'ENVBUILD_LOCKED'
import re, sys
try:
    from importlib.metadata import distributions
except ImportError:
    sys.exit(0)  # Python 3.7
seen = {}
for each in distributions():
    seen.setdefault(re.sub("[-_.]+", "-", each.metadata["Name"] or "").lower(), set()).add(each.version)
for line in open(sys.argv[1]):
    found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", line)
    if found:
        name, version = re.sub("[-_.]+", "-", found.group(1)).lower(), found.group(2)
        if {each.partition("+")[0] for each in seen.get(name, ())} != {version.strip().partition("+")[0]}:
            print("%s is %s, not %s" % (name, " and ".join(sorted(seen.get(name, {"gone"}))), version.strip()))
ENVBUILD_LOCKED
}
wheels_done() {
    find_python
    [ "$(cat "$state/wheels" 2> /dev/null)" = "$(wheels_key)" ] || return 1
    wheels_why=$(wheels_changed 2>&1) || wheels_why='its Python does not start'
    [ -z "$wheels_why" ]
}

wheel_count() { grep -c '  wheels/.*\.whl$' "$sums" || true; }

would_wheels() {
    step wheels "Python wheels"
    find_python
    if wheels_done; then
        finished "up to date in $prefix/venv"
    else
        finished "$(wheel_count) would go into $prefix/venv, for ${python:-the Python $python_wanted of the bundle}"
    fi
}

# What runs until now is put aside, and comes back when the new one fails. $state/wheels is there when one is whole; what
# a killed run has put aside stays there for the next.
put_aside() {
    if [ -e "$state/wheels" ] && [ -e "$prefix/venv" ]; then
        rm -rf "$state/venv"
        mv "$prefix/venv" "$state/venv"
    fi
    [ ! -e "$state/wheels" ] || mv -f "$state/wheels" "$state/wheels.before"
    rm -rf "$prefix/venv"
}
put_back() {
    [ -e "$state/venv" ] || return 0
    rm -rf "$prefix/venv"
    mv "$state/venv" "$prefix/venv"
    [ ! -e "$state/wheels.before" ] || mv -f "$state/wheels.before" "$state/wheels"
    say "  the environment that was there before was put back"
}
make_venv() {
    # The pip of the host may be too old for the names of the wheels; one that came along is run out of its own wheel.
    pip_wheel=$(cut -c67- "$sums" | grep '^wheels/pip-[0-9].*\.whl$' | head -n 1 || true)
    if [ -n "$pip_wheel" ]; then
        clean "$python" -I -m venv --without-pip "$prefix/venv"
    else
        clean "$python" -I -m venv "$prefix/venv"
    fi
}
pip() {
    if [ -n "$pip_wheel" ]; then
        clean "$prefix/venv/bin/python" "$believed/$pip_wheel/pip" "$@"
    else
        clean "$prefix/venv/bin/python" -I -m pip "$@"
    fi
}
pip_install() { pip install --no-index --find-links "$work/bundle/wheels" --require-hashes --no-cache-dir "$@"; }

# What is a source archive wants torch when it is built, so it comes last, by itself. DeepSpeed's ops are compiled at their
# first use.
split_requirements() {
    conf source > "$work/names.txt"
    awk -v sources="$work/sources.txt" -v others="$work/others.txt" '
        FILENAME == ARGV[1] { source[$0]; next }
        /^[A-Za-z0-9]/ { name = $0; sub(/ *[=@].*/, "", name); out = (tolower(name) in source) ? sources : others }
        { print > (out == "" ? others : out) }' "$work/names.txt" "$believed/$requirements"
}
# Chained: the shell's -e does nothing in what is asked for its status.
put_wheels() {
    make_venv || return 1
    if [ -n "$(conf source)" ]; then
        split_requirements && pip_install -r "$work/others.txt" || return 1
        # Nothing to build by itself: pip's own builder has no torch.
        [ ! -s "$work/sources.txt" ] || pip_install --no-build-isolation --no-deps -r "$work/sources.txt" || return 1
    else
        pip_install -r "$believed/$requirements" || return 1
    fi
    pip check
}

write_env() {
    printf '# The environment "%s", installed by envbuild. Source this file: . %s/env.sh\n' "$name" "$prefix"
    conf env | while read -r key value; do
        case $key in
            '' | [0-9]* | *[!A-Za-z0-9_]*) continue ;;
        esac
        printf "export %s='%s'\n" "$key" "$(printf '%s' "$value" | sed "s/'/'\\\\''/g")"
    done
    [ "$(conf accelerator)" != cpu ] || printf 'export DS_ACCELERATOR=cpu\n'
    # shellcheck disable=SC2016 # for the shell that sources it
    [ -z "$python_libraries" ] || printf 'export LD_LIBRARY_PATH=%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n' "$python_libraries"
    # shellcheck disable=SC2016
    printf '%s\n' "export PYTHONNOUSERSITE=1 VIRTUAL_ENV=$prefix/venv" 'case :$PATH: in' "    *:$prefix/venv/bin:*) ;;" \
        "    *) export PATH=$prefix/venv/bin:\$PATH ;;" 'esac'
}

install_wheels() {
    step wheels "Python wheels into $prefix/venv"
    if wheels_done; then
        finished "up to date"
    else
        [ -z "${wheels_why-}" ] || say "  changed since: $(printf '%s' "$wheels_why" | tr '\n' ';'): all anew"
        [ -n "$python" ] || stop 40 "there is no Python $python_wanted on this host" \
            "what to do: install it; the packages of the bundle have not brought it"
        rm -f "$log"
        put_aside
        logged put_wheels || {
            put_back
            failed 40 "the wheels could not be installed" \
                "what to do: 'hashes' and 'No matching distribution' name a wheel that is not in the bundle, or not for this" \
                "Python ($python): export it again; 'No space left' tells itself"
        }
        wheels_key > "$state/wheels.new"
        mv -f "$state/wheels.new" "$state/wheels"
        rm -rf "$state/venv" "$state/wheels.before"
        version=$(clean "$prefix/venv/bin/python" -I -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
        finished "Python $version, $(wheel_count) wheels"
    fi
    write_env > "$prefix/env.sh.new"
    mv -f "$prefix/env.sh.new" "$prefix/env.sh"
}

install_doctor() {
    step doctor "doctor"
    cp "$believed/doctor.pyz" "$prefix/doctor.pyz.new"
    mv -f "$prefix/doctor.pyz.new" "$prefix/doctor.pyz"
    finished "$prefix/doctor.pyz"
}

# New files below an unusual prefix get the types that the policy says, as packages get theirs from rpm.
check_labels() {
    command -v selinuxenabled > /dev/null 2>&1 && selinuxenabled || return 0
    if command -v restorecon > /dev/null 2>&1; then
        restorecon -R "$prefix" > /dev/null 2>&1 || warn "restorecon could not label $prefix; see: restorecon -Rv $prefix"
    else
        warn "SELinux is on, and there is no restorecon (package policycoreutils): files of $prefix may have wrong labels"
    fi
}
