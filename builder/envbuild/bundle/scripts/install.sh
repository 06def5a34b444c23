#!/bin/sh
# Installs this bundle of envbuild on a host without a network: sh install.sh --help
# First everything is verified, then the host is looked at, and only then something is changed. What verify.sh and this
# file do not know is read from lib/, after it has been verified. Needs a POSIX shell, coreutils, sed, awk, gpgv, rpm
# and dnf or yum: no Python, no network, no envbuild.
set -eu
umask 022
LC_ALL=C
export LC_ALL

usage() {
    cat <<'ENVBUILD_USAGE'
Usage: sh install.sh --fingerprint HEX [OPTION...]

Installs what this bundle holds: RPM packages, Python wheels into a folder of
their own, a container image. Run it again after any interruption: what is done
is skipped, what was changed meanwhile is repaired.

  --fingerprint HEX        of the key that the bundle has to be signed with. It
                           came to you on another way than the bundle (mail,
                           phone, ticket): the key inside proves nothing
  --dry-run                verify everything, look at this host, list what would
                           be done; change nothing
  --only PARTS             some of rpms,wheels,image,doctor; without it all that
                           is in the bundle
  --prefix DIR             where wheels, logs and the receipt go
                           (default: /opt/envbuild/NAME)
  --engine docker|podman   which engine gets the image (default: the one that
                           answers)
  --prove                  afterwards, examine and try what was installed, with
                           the network off
  --uninstall              undo what an installation of this bundle changed here
  --insecure-no-signature  for a bundle that nobody signed: check the sums only
  -v, --verbose            show every line of every step
  -h, --help               this text

Exit codes: 0 done, 2 usage, 10 signature, 11 a damaged file, 12 a missing file,
20 the bundle is for other hosts, 21 no space, 22 FIPS, fapolicyd or noexec,
30 rpm refused the transaction (nothing was installed), 31 the transaction
failed, 40 wheels, 50 image, 60 installed, but the proof failed, 70 not (all)
undone, 130 interrupted. What to do about each: README.txt

Examples:
  sh verify.sh                                        is it whole, who made it
  sh install.sh --fingerprint 0123...4567 --dry-run   what would happen here
  sh install.sh --fingerprint 0123...4567 --prove     install and prove it
  sh install.sh --fingerprint 0123...4567 --only wheels --prefix "$HOME/envs/it"
                                                    without root
  sh /opt/envbuild/NAME/envbuild/uninstall.sh         roll back, without bundle
ENVBUILD_USAGE
}

# --- saying -----------------------------------------------------------------------------------------------------------

say() { printf '%s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
stop() { # stop CODE MESSAGE [LINE...]: what is wrong, and what to do
    code=$1 failure=$2
    printf 'error: %s\n' "$2" >&2
    shift 2
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit "$code"
}
named() { # named FILE [COUNT]: its first lines, indented, and how many more there are
    limit=${2:-20}
    sed -n "1,${limit}s/^/  /p" "$1" >&2
    more=$(($(wc -l < "$1") - limit))
    [ "$more" -le 0 ] || printf '  ... and %s more\n' "$more" >&2
}

# --- options ----------------------------------------------------------------------------------------------------------

fingerprint='' signed=yes dry_run=no only='' prefix='' engine='' prove=no uninstall=no verbose=no
while [ $# -gt 0 ]; do
    option=$1
    case $option in
        --*=*)
            value=${option#*=}
            option=${option%%=*}
            shift
            set -- "$option" "$value" "$@"
            ;;
    esac
    case $option in
        --fingerprint | --only | --prefix | --engine)
            [ $# -ge 2 ] && [ -n "$2" ] || stop 2 "$option needs a value; see --help"
            case $2 in
                -*) stop 2 "$option needs a value, and $2 looks like an option" ;;
            esac
            case $option in
                --fingerprint) fingerprint=$2 ;;
                --only) only=$(printf '%s' "$2" | tr ',' ' ') ;;
                --prefix) prefix=$2 ;;
                --engine) engine=$2 ;;
            esac
            shift 2
            ;;
        --dry-run) dry_run=yes && shift ;;
        --prove) prove=yes && shift ;;
        --uninstall) uninstall=yes && shift ;;
        --insecure-no-signature) signed=no && shift ;;
        -v | --verbose) verbose=yes && shift ;;
        -h | --help) usage && exit 0 ;;
        *) stop 2 "'$option' is no option; see --help" ;;
    esac
done
case $engine in
    '' | docker | podman) ;;
    *) stop 2 "--engine $engine: docker or podman" ;;
esac

here=$(cd -P "$(dirname "$0")" && pwd) || stop 12 "the folder of this script cannot be entered"
conf() { sed -n "s/^$1 //p" "$here/bundle.conf" 2> /dev/null; } # conf KEY: its values, a line each

# --- the end, whatever it is ------------------------------------------------------------------------------------------

# What is underway: nothing yet, "changing" from the first change on. lib/receipt.sh tells the rest.
phase=looking scratch='' holding=no failure=''
ended() {
    code=$?
    trap '' INT TERM HUP
    if [ "$code" -eq 1 ]; then
        # What fails without a word of ours is writing, and the command itself has said why.
        code=21 failure="something could not be written"
        printf 'error: something could not be written, see above\n' >&2
        printf '  what to do: is a disk full, or read-only? df -h %s /tmp\n' "$prefix" >&2
    fi
    if [ "$phase" = changing ]; then
        if [ "$code" -eq 0 ]; then tell_changes 0 || true; else tell_changes "$code" >&2 || true; fi
        write_receipt "$code" || true
    elif [ "$code" -ne 0 ] && [ "$code" -ne 2 ] && [ "$phase" = looking ]; then
        printf '  nothing was changed on this host\n' >&2
    fi
    [ "$holding" = no ] || rm -f "$prefix/lock"
    [ -z "$scratch" ] || rm -rf "$scratch"
    exit "$code"
}
trap ended EXIT
interrupted() {
    failure=interrupted
    printf 'interrupted; run it again to go on\n' >&2
    exit 130
}
trap interrupted INT TERM HUP

# Of a name that no program stumbles over, whatever the bundle's own path is.
for place in "${TMPDIR:-/tmp}" /tmp /var/tmp /dev/shm; do
    case $place in
        *[!A-Za-z0-9._/+@=-]*) continue ;;
    esac
    scratch=$(mktemp -d "$place/envbuild.XXXXXXXX" 2> /dev/null) && break
done
[ -n "$scratch" ] || stop 21 "no temporary folder can be made in /tmp" "what to do: free some space there"

# --- undo -------------------------------------------------------------------------------------------------------------

if [ "$uninstall" = yes ]; then
    own=${prefix:-$(conf prefix)/$(conf name)}/envbuild/uninstall.sh
    phase=elsewhere
    if [ ! -e "$own" ]; then stop 70 "$own is not there: nothing was installed from this bundle into that prefix" \
        "what to do: name the folder that it was installed into: --prefix DIR"; fi
    set --
    [ "$dry_run" = no ] || set -- --dry-run
    code=0
    sh "$own" "$@" || code=$?
    exit "$code"
fi

# --- verify -----------------------------------------------------------------------------------------------------------

started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
doing=installing
[ "$dry_run" = no ] || doing='dry run:'
say "envbuild: $doing $(conf name | head -n 1) from $here"
say "verifying the bundle"
set -- --result "$scratch/signer"
[ -z "$fingerprint" ] || set -- "$@" --fingerprint "$fingerprint"
[ "$signed" = yes ] || set -- "$@" --insecure-no-signature
{
    code=0
    sh "$here/verify.sh" "$@" || code=$?
    printf '%s' "$code" > "$scratch/code"
} | while IFS= read -r line; do printf '  %s\n' "$line"; done
code=$(cat "$scratch/code")
[ "$code" -eq 0 ] || exit "$code"
signer=$(cat "$scratch/signer")
# The keys for packages come with the bundle, so whoever signs it decides what this host trusts.
if [ -z "$fingerprint" ] && [ "$signed" = yes ]; then
    if [ "$dry_run" = no ]; then
        stop 10 "nobody has said which key the bundle has to be signed with, and what it installs runs as root" \
            "what to do: compare the fingerprint above with the one that you were given on another way than the bundle, then" \
            "sh install.sh --fingerprint $signer"
    fi
    warn "going on without --fingerprint, as nothing is changed"
fi
for each in bundle.conf lib/host.sh lib/rpms.sh lib/wheels.sh lib/image.sh lib/prove.sh lib/receipt.sh lib/uninstall.sh; do
    cut -c67- "$here/SHA256SUMS" | grep -qxF "$each" || stop 12 "SHA256SUMS does not know $each" \
        "what to do: export the bundle again; this one is of another version"
done
# shellcheck source=lib/receipt.sh
. "$here/lib/receipt.sh"
# shellcheck source=lib/host.sh
. "$here/lib/host.sh"
# shellcheck source=lib/rpms.sh
. "$here/lib/rpms.sh"
# shellcheck source=lib/wheels.sh
. "$here/lib/wheels.sh"
# shellcheck source=lib/image.sh
. "$here/lib/image.sh"
# shellcheck source=lib/prove.sh
. "$here/lib/prove.sh"

# --- what is to be done -----------------------------------------------------------------------------------------------

[ "$(conf schema)" = 1 ] || stop 12 "bundle.conf has the form '$(conf schema)', and this installer reads form 1"
name=$(conf name)
case $name in
    '' | *[!A-Za-z0-9._-]* | .* | -*) stop 12 "bundle.conf: '$name' is no name of a bundle" ;;
esac
each_part() { for part in $parts; do printf '%s\n' "$part"; done; }
has() { each_part | grep -qx "$1"; }
parts=$(conf part | tr '\n' ' ')
for each in $only; do
    has "$each" || stop 2 "--only $each: this bundle has ${parts% }"
done
[ -z "$only" ] || parts="$only "
[ -n "$parts" ] || stop 12 "bundle.conf names no parts" "what to do: export the bundle again"
for each in "rpms rpms/repodata/repomd.xml" "wheels wheels/requirements.lock" "image $(conf image_path)" \
    "doctor doctor.pyz"; do
    has "${each%% *}" || continue
    cut -c67- "$here/SHA256SUMS" | grep -qxF "${each#* }" || stop 12 \
        "the bundle has no '${each#* }', which its part ${each%% *} needs" "what to do: export the bundle again"
done
prefix=${prefix:-$(conf prefix)/$name}
case $prefix in
    /*) ;;
    *) prefix=$(pwd)/$prefix ;;
esac
while [ "${prefix%/}" != "$prefix" ]; do prefix=${prefix%/}; done
# Programs of the environment begin with "#!PREFIX/venv/bin/python", which the kernel ends at a blank and at 127 signs.
case $prefix in
    '' | */../* | */.. | */./*) stop 2 "--prefix: say a folder of its own, without . and .." ;;
    *[!A-Za-z0-9._/+@=-]*) stop 2 "--prefix $prefix: only letters, digits and . _ - + @ = / can be in it" ;;
esac
[ ${#prefix} -le 90 ] || stop 2 "--prefix $prefix is too long: programs carry it in their first line"
state=$prefix/envbuild
logs=$prefix/log
work=$prefix/tmp
# By this a later run knows what a killed one has left running.
export ENVBUILD_INSTALLS="$prefix"
mine="envbuild bundle $name"
if [ -e "$state/bundle" ] && [ "$(cat "$state/bundle")" != "$mine" ]; then
    stop 2 "$prefix holds another bundle ($(head -n 1 "$state/bundle" | cut -c1-80)); give this one a folder of its own"
fi
if [ -e "$prefix" ] && [ ! -d "$prefix" ]; then stop 2 "--prefix $prefix is no folder"; fi
if [ -d "$prefix" ] && [ ! -e "$state/bundle" ]; then
    # A run that was killed in its first moments has left no more than this.
    case $(ls -A "$prefix") in
        '') ;;
        envbuild) [ -z "$(find "$state" -mindepth 1 ! -name bundle.new)" ] || stop 2 "$prefix is not empty" ;;
        *) stop 2 "$prefix is not empty, and nothing of envbuild; give this bundle a folder of its own: --prefix DIR" ;;
    esac
fi

say "looking at this host"
look_at_host
if has rpms; then check_packages; fi

total=$(each_part | grep -c .)
if [ "$dry_run" = no ]; then
    # A test comes before the packages, and trying them after everything.
    total=$((total + 1))
    ! has rpms || total=$((total + 1))
    [ "$prove" = no ] || total=$((total + 1))
fi
number=0
step() { # step NAME TITLE: the next one
    number=$((number + 1))
    log=$logs/$1.log
    [ "$dry_run" = no ] || log=$scratch/$1.log
    title=$2
    say "[$number/$total] $title ..."
}
finished() { say "[$number/$total] $title: $*"; steps="${steps}$title|$*
"; }
steps=''
logged() { # logged COMMAND...: its output goes to the log; with --verbose also to the screen
    rm -f "$scratch/code"
    {
        status=0
        "$@" 2>&1 || status=$?
        printf '%s' "$status" > "$scratch/code"
    } < /dev/null | if [ "$verbose" = yes ]; then tee -a "$log" | sed 's/^/    /'; elif [ -t 1 ]; then
        # Where somebody watches, the last line that was said.
        tee -a "$log" | awk '{ gsub(/[^ -~]/, ""); printf "\r\033[K    %.70s", $0; fflush() } END { printf "\r\033[K" }'
    else cat >> "$log"; fi
    return "$(cat "$scratch/code" 2> /dev/null || echo 99)"
}
failed() { # failed CODE MESSAGE [LINE...]: with the last lines of the log
    [ "$verbose" = yes ] || tail -n 25 "$log" | sed 's/^/    /' >&2
    code=$1 message=$2
    shift 2
    [ "$dry_run" = yes ] || set -- "$@" "the whole output: $log"
    stop "$code" "$message" "$@"
}

if [ "$dry_run" = yes ]; then
    work=$scratch
    ln -s "$here" "$work/bundle"
    if has rpms; then would_rpms; fi
    if has wheels; then would_wheels; fi
    if has image; then would_image; fi
    if has doctor; then step doctor 'doctor' && finished "would be copied to $prefix"; fi
    say "nothing was changed on this host"
    exit 0
fi

# --- from here on this host is changed --------------------------------------------------------------------------------

mkdir -p "$state" || stop 21 "$prefix cannot be made" "what to do: name another folder: --prefix DIR"
[ -e "$state/bundle" ] || { printf '%s\n' "$mine" > "$state/bundle.new" && mv -f "$state/bundle.new" "$state/bundle"; }
take_lock
phase=changing
mkdir -p "$state/before" "$logs"
rm -rf "$work"
mkdir -p "$work"
ln -s "$here" "$work/bundle"
cp "$here/lib/uninstall.sh" "$state/uninstall.sh.new"
mv -f "$state/uninstall.sh.new" "$state/uninstall.sh"

if has rpms; then install_rpms; fi
if has wheels; then install_wheels; fi
if has image; then install_image; fi
if has doctor; then install_doctor; fi
check_labels
check_installed
if [ "$prove" = yes ]; then prove_it; fi

rm -rf "$work"
say "$name is installed. Receipt: $prefix/receipt.json"
if has wheels; then say "Use it: . $prefix/env.sh"; fi
if has image; then say "Use it: ${engine:-docker} run ... $(conf image_ref)"; fi
say "Roll back: sh $state/uninstall.sh"
