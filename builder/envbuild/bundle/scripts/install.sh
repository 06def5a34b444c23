#!/bin/sh
# Installs this bundle of envbuild on a host without a network: sh install.sh --help
# First everything is verified, then the host is looked at, and only then something is changed. What verify.sh and this
# file do not know is read from lib/, after it has been verified. Needs a POSIX shell, coreutils, sed, awk, gpgv, rpm
# and dnf or yum: no Python, no network, no envbuild.
set -eu
umask 022
LC_ALL=C
# What su leaves out.
PATH=${PATH:-/usr/bin:/bin}:/usr/sbin:/sbin
export LC_ALL PATH
unset CDPATH

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
    code=$1 failure=$2 explained=yes
    printf 'error: %s\n' "$2" >&2
    shift 2
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit "$code"
}
plain() { tr -c '\040-\176\n' '[?*]'; } # no escape sequence of somebody else's reaches a terminal
named() { # named FILE [COUNT]: its first lines, indented, and how many more there are
    limit=${2:-20}
    sed -n "1,${limit}s/^/  /p" "$1" | plain >&2
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
believed=$here
conf() { sed -n "s/^$1 //p" "$believed/bundle.conf" 2> /dev/null; } # conf KEY: its values, a line each

# --- the end, whatever it is ------------------------------------------------------------------------------------------

# What is underway: nothing yet, "changing" from the first change on. lib/receipt.sh tells the rest.
phase=looking scratch='' holding=no failure='' explained=no
ended() {
    code=$?
    trap '' INT TERM HUP
    if [ "$code" -ne 0 ] && [ "$explained" = no ]; then
        # What fails without a word of ours is writing, and the command itself has said why.
        code=21 failure="a command failed: something could not be written"
        printf 'error: a command failed, see above: something could not be written\n' >&2
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
    failure=interrupted explained=yes
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
    code=0 explained=yes
    sh "$own" "$@" || code=$?
    exit "$code"
fi

# --- verify -----------------------------------------------------------------------------------------------------------

started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
doing=installing
[ "$dry_run" = no ] || doing='dry run:'
say "envbuild: $doing $(conf name | head -n 1 | plain) from $here"
say "verifying the bundle"
mkdir "$scratch/verified"
set -- --result "$scratch/verified"
[ -z "$fingerprint" ] || set -- "$@" --fingerprint "$fingerprint"
[ "$signed" = yes ] || set -- "$@" --insecure-no-signature
{
    code=0
    sh "$here/verify.sh" "$@" || code=$?
    printf '%s' "$code" > "$scratch/code"
} | while IFS= read -r line; do printf '  %s\n' "$line"; done
code=$(cat "$scratch/code")
[ "$code" -eq 0 ] || { explained=yes; exit "$code"; }
signer=$(cat "$scratch/verified/signer")
sums=$scratch/verified/sums
# The keys for packages come with the bundle, so whoever signs it decides what this host trusts.
if [ -z "$fingerprint" ] && [ "$signed" = yes ]; then
    if [ "$dry_run" = no ]; then
        stop 10 "nobody has said which key the bundle has to be signed with, and what it installs runs as root" \
            "what to do: compare the fingerprint above with the one that you were given on another way than the bundle, then" \
            "sh install.sh --fingerprint $signer"
    fi
    warn "going on without --fingerprint, as nothing is changed"
fi
# The medium may change from now on, where others can write to it. What is run or believed is a copy that is held to the
# sums that were verified; packages, wheels and image are held to keys, hashes and digests out of it.
believed=$scratch/believed
cut -c67- "$sums" | grep -Ex '(lib|keys|probes)/[^/]*|bundle\.conf|doctor\.pyz|wheels/(requirements\.lock|pip-[0-9][^/]*\.whl)' \
    > "$scratch/copied"
awk 'NR == FNR { copied[$0]; next } substr($0, 67) in copied' "$scratch/copied" "$sums" > "$scratch/copied-sums"
while read -r each; do
    mkdir -p "$(dirname "$believed/$each")"
    cp "$here/$each" "$believed/$each" 2> "$scratch/said" || named "$scratch/said" 1
done < "$scratch/copied"
(cd "$believed" && sha256sum -c "$scratch/copied-sums" 2> /dev/null) > "$scratch/said" || {
    grep -v ': OK$' "$scratch/said" > "$scratch/changed" || true
    named "$scratch/changed"
    stop 11 "files of the bundle changed after they were verified, or /tmp is full (df -h /tmp)" \
        "what to do: copy the bundle to a place where nobody else can write, and run this again"
}
for each in bundle.conf lib/host.sh lib/image.sh lib/prove.sh lib/receipt.sh lib/rpms.sh lib/steps.sh lib/uninstall.sh \
    lib/wanted.sh lib/wheels.sh; do
    grep -qxF "$each" "$scratch/copied" || stop 12 "SHA256SUMS does not know $each" \
        "what to do: export the bundle again; this one is of another version"
done
# shellcheck source=lib/receipt.sh
. "$believed/lib/receipt.sh"
# shellcheck source=lib/steps.sh
. "$believed/lib/steps.sh"
# shellcheck source=lib/wanted.sh
. "$believed/lib/wanted.sh"
# shellcheck source=lib/host.sh
. "$believed/lib/host.sh"
# shellcheck source=lib/rpms.sh
. "$believed/lib/rpms.sh"
# shellcheck source=lib/wheels.sh
. "$believed/lib/wheels.sh"
# shellcheck source=lib/image.sh
. "$believed/lib/image.sh"
# shellcheck source=lib/prove.sh
. "$believed/lib/prove.sh"

# --- what is to be done -----------------------------------------------------------------------------------------------

what_is_wanted
where_it_goes
say "looking at this host"
look_at_host
if has rpms; then check_packages; fi

count_steps

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
cp "$believed/lib/uninstall.sh" "$state/uninstall.sh.new"
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
