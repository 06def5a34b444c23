# shellcheck shell=sh disable=SC2154
# Read by install.sh. What was installed is tried: a compiler compiles, modules import; with --prove the doctor looks at
# it and a model trains. All of it in a network namespace without interfaces, where the host lets us make one.

can_cut() { [ "$(id -u)" -eq 0 ] && unshare -n true 2> /dev/null; }
offline() { # offline COMMAND...: with nothing of the caller's, and without a network
    if can_cut; then
        # Ranks on one machine talk over loopback.
        # shellcheck disable=SC2016 # for the inner shell
        clean unshare -n sh -c 'ip link set lo up 2> /dev/null; exec "$@"' sh "$@"
    else
        clean "$@"
    fi
}

compiler_of() { # compiler_of gcc|g++: of a package of the bundle; a toolset's before the system's
    of_bundle | while read -r each; do rpm -ql "$each" 2> /dev/null || true; done | grep -E "/bin/$1\$" | sort |
        while read -r each; do
            [ ! -x "$each" ] || { printf '%s\n' "$each" && break; }
        done
}

compile() { # compile COMPILER LANGUAGE: a program, and run it
    printf '%s\n' '#include <stdio.h>' 'int main(void) { puts("compiled"); return 0; }' > "$work/try.$2"
    tools=${1%/*}
    offline env COMPILER_PATH="$tools" "$1" "$work/try.$2" -o "$work/try" && [ "$("$work/try")" = compiled ]
}

check_installed() {
    step check "trying what is installed"
    : > "$log"
    told=''
    if has rpms; then
        for each in gcc:c g++:cc; do
            compiler=$(compiler_of "${each%%:*}")
            [ -n "$compiler" ] || continue
            logged compile "$compiler" "${each#*:}" || failed 60 "$compiler does not compile" \
                "what to do: the lines above say what it lacks; headers of the C library are in glibc-devel:" \
                "envbuild export ... --root glibc-devel"
            proved "$(printf %s "${each%%:*}" | tr '+' 'x')" "$(js "$compiler $("$compiler" -dumpversion 2> /dev/null)")"
            told="$told${told:+, }${each%%:*} compiles"
        done
        told="$told${told:+, }rpm -V is clean"
    fi
    if has wheels; then
        modules=$(conf import | tr '\n' ' ')
        [ -n "$modules" ] || modules=$(sed -n 's/^\(torch\|deepspeed\)==.*/\1/p' "$believed/$requirements" | tr '\n' ' ')
        for each in $modules; do
            logged offline "$prefix/venv/bin/python" -I -c "import $each" || failed 60 "import $each fails in $prefix/venv" \
                "what to do: $prefix/venv/bin/python doctor.pyz --output FILE, and give that to whoever exported this bundle;" \
                "there: envbuild doctor --from FILE"
        done
        proved imports "$(for each in $modules; do printf '%s\n' "$each"; done | js_lines)"
        told="$told${told:+, }${modules:+imports }${modules% }"
    fi
    finished "${told:-nothing to try}"
}

js_file() { printf '{"file": %s, "sha256": "%s"}' "$(js "$1")" "$(sha256sum < "$1" | cut -c1-64)"; }

prove_it() {
    step prove "proof, with the network off"
    : > "$log"
    network='"as it is: no namespace can be made here"'
    ! can_cut || network='"off"'
    proved network "$network"
    mkdir -p "$prefix/proof"
    prober=$prefix/venv/bin/python
    [ -x "$prober" ] || prober=$(command -v python3 || true)
    if [ -z "$prober" ]; then
        proved doctor '"not run: no Python 3 here"'
    elif [ -e "$believed/doctor.pyz" ]; then
        rm -f "$prefix/proof/doctor.json"
        logged offline "$prober" "$believed/doctor.pyz" --quiet --output "$prefix/proof/doctor.json" ||
            failed 60 "doctor.pyz did not end well"
        proved doctor "$(js_file "$prefix/proof/doctor.json")"
    fi
    prove_smoke
    finished "$prefix/proof"
}

# Training proves a row's wheels; where its GPU is missing, nothing is said instead of something else.
prove_smoke() {
    accelerator=$(conf accelerator)
    if ! has wheels || [ ! -e "$believed/probes/zero3.py" ]; then
        proved smoke '"not in this bundle"'
        return 0
    fi
    if [ "$accelerator" = cuda ] && [ ! -e /dev/nvidia0 ]; then
        proved smoke '"not run: this host has no GPU"'
        say "  training was not tried: this host has no GPU"
        return 0
    fi
    ranks=2
    [ "$accelerator" != cuda ] || ranks=0
    rm -f "$prefix/proof/smoke.json"
    # shellcheck disable=SC2016
    logged offline sh -c 'out=$1; shift; . "$0/env.sh"; GLOO_SOCKET_IFNAME=lo "$@" > "$out"' \
        "$prefix" "$prefix/proof/smoke.json" \
        "$prefix/venv/bin/python" -I "$believed/probes/zero3.py" --ranks "$ranks" --steps 10 --accelerator "$accelerator" \
        --seed 1 --timeout 600 || failed 60 "a small model does not train: $prefix/proof/smoke.json" \
        "what to do: envbuild diagnose $log, where there is envbuild, tells known causes"
    proved smoke "$(js_file "$prefix/proof/smoke.json")"
}
