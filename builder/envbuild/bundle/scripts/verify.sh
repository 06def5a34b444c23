#!/bin/sh
# Verifies a bundle of envbuild: its signature, then every file. It changes nothing, needs no network, no root and no
# envbuild: a POSIX shell, coreutils, sed, awk, find and gpgv (package gnupg2).
#   sh verify.sh --fingerprint 0123456789ABCDEF0123456789ABCDEF01234567
set -eu
LC_ALL=C
export LC_ALL
unset CDPATH

usage() {
    cat <<'ENVBUILD_USAGE'
Usage: sh verify.sh [--fingerprint HEX] [OPTION...]

Checks that this bundle is whole, and who made it. Nothing is changed here.

  --fingerprint HEX        of the key that the bundle has to be signed with. It
                           came to you on another way than the bundle (mail,
                           phone, ticket): the key inside proves nothing
  --insecure-no-signature  check the sums only, for a bundle that nobody signed
  -q, --quiet              say only what is wrong
  -h, --help               this text

Exit codes: 0 whole, 2 usage, 10 signature, 11 a file is damaged or is no plain
file, 12 a file is missing, 21 no space for a copy of its lists in TMPDIR,
130 interrupted.
Without --fingerprint the end is 0 too, when the bundle is whole; it then says
that nobody knows who made it.

Examples:
  sh verify.sh --fingerprint 0123456789ABCDEF0123456789ABCDEF01234567
  sh verify.sh --fingerprint '0123 4567 89AB CDEF 0123 4567 89AB CDEF 0123 4567'
  sh /media/usb/rhel8-cu118/verify.sh
ENVBUILD_USAGE
}

say() { [ "$quiet" = yes ] || printf '%s\n' "$*"; }
stop() { # stop CODE MESSAGE [LINE...]
    code=$1 explained=yes
    printf 'error: %s\n' "$2" >&2
    shift 2
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit "$code"
}

wanted='' given=no signed=yes quiet=no result='' explained=no
while [ $# -gt 0 ]; do
    case $1 in
        --fingerprint) [ $# -ge 2 ] || stop 2 "--fingerprint needs a fingerprint; see --help" ; wanted=$2 given=yes ; shift 2 ;;
        --fingerprint=*) wanted=${1#*=} given=yes ; shift ;;
        --insecure-no-signature) signed=no ; shift ;;
        --result) result=${2-} ; shift 2 ;; # for install.sh: a folder that gets who signed, and the sums that were right
        -q | --quiet) quiet=yes ; shift ;;
        -h | --help) usage ; exit 0 ;;
        *) stop 2 "'$1' is no option; see --help" ;;
    esac
done
[ "$given" = no ] || [ "$signed" = yes ] ||
    stop 2 "--fingerprint and --insecure-no-signature contradict one another; see --help"
wanted=$(printf '%s' "$wanted" | tr -d ' :' | tr '[:lower:]' '[:upper:]')
wanted=${wanted#0X}
case $wanted in
    # A variable that was never set is no leave to trust anybody.
    '') [ "$given" = no ] || stop 2 "--fingerprint is empty; see --help" ;;
    *[!0-9A-F]*) stop 2 "--fingerprint '$wanted' has signs that are no hexadecimal digits" ;;
    *)
        [ ${#wanted} -eq 40 ] || [ ${#wanted} -eq 64 ] || stop 2 "--fingerprint has ${#wanted} digits, and a whole one has 40" \
            "A short key id can be forged. On the connected side: gpg --show-keys keys/bundle.asc"
        ;;
esac

here=$(cd -P "$(dirname "$0")" && pwd) || stop 12 "the folder of this script cannot be entered"
cd "$here"
scratch=''
space="what to do: free some space there, or name another folder: TMPDIR=/somewhere sh verify.sh"
ended() {
    code=$?
    [ -z "$scratch" ] || rm -rf "$scratch"
    # What fails without a word of ours is writing, and the command itself has said why.
    [ "$code" -eq 0 ] || [ "$explained" = yes ] || stop 21 "a command failed, see above; is ${TMPDIR:-/tmp} full?" "$space"
    exit "$code"
}
trap ended EXIT
trap 'printf "interrupted; nothing was changed\n" >&2; explained=yes; exit 130' INT TERM HUP
scratch=$(mktemp -d 2> /dev/null) || stop 21 "no temporary folder can be made in ${TMPDIR:-/tmp}" "$space"

again="what to do: copy the bundle again from where it was exported; the medium or the copy is damaged"
grouped() { printf '%s' "$1" | sed 's/..../& /g; s/ $//'; }
size() { # size BYTES: for people
    awk -v n="$1" 'BEGIN { split("B kB MB GB TB", u, " "); i = 1; while (n >= 1000 && i < 5) { n /= 1000; i++ }
        printf (i > 1 && n < 10 ? "%.1f %s" : "%.0f %s"), n, u[i] }'
}
# Names of files are somebody else's: no escape sequence of theirs reaches a terminal.
plain() { tr -c '\040-\176\n' '[?*]'; }
named() { # named FILE: its first lines, indented, and how many more there are
    sed -n '1,20s/^/  /p' "$1" | plain >&2
    more=$(($(wc -l < "$1") - 20))
    [ "$more" -le 0 ] || printf '  ... and %s more\n' "$more" >&2
}

# --- what a bundle is made of -----------------------------------------------------------------------------------------

for each in SHA256SUMS bundle.conf; do
    [ -e "$each" ] || stop 12 "$each is missing: $here is no bundle, or its copy is not whole" "$again" \
        "For volumes: sh assemble.sh -o FOLDER VOLUME... puts them together first."
done
# What is no plain file would let the check look elsewhere than an installation does, or wait for ever.
find . ! -type f ! -type d 2> /dev/null > "$scratch/odd" || true
if [ -s "$scratch/odd" ]; then
    printf 'error: the bundle holds links or devices, which no export writes:\n' >&2
    named "$scratch/odd"
    stop 11 "$here is not as it was exported" "$again, and ask who changed it"
fi
[ "$(wc -c < SHA256SUMS)" -le 100000000 ] || stop 11 "SHA256SUMS is too large to be one" "$again"
# A medium may change while it is read: the sums that are signed are those that the files are held to.
sums=$scratch/sums
cat SHA256SUMS > /dev/null 2>&1 || stop 11 "SHA256SUMS cannot be read" "$again"
cp SHA256SUMS "$sums"

# --- who made it ------------------------------------------------------------------------------------------------------

signer='' unknown=no
check_signature() {
    for each in SHA256SUMS.asc keys/bundle.asc; do
        [ -f "$each" ] || stop 10 "$each is missing, so nobody knows who made this bundle" "$again" \
            "A bundle that was exported without a key is accepted with --insecure-no-signature, at your own risk."
    done
    [ "$(wc -c < SHA256SUMS.asc)" -le 1000000 ] && [ "$(wc -c < keys/bundle.asc)" -le 1000000 ] ||
        stop 10 "SHA256SUMS.asc or keys/bundle.asc is too large to be a signature or a key" "$again"
    gpgv=$(command -v gpgv || command -v gpgv2) || stop 10 "there is no gpgv on this host, so the signature cannot be checked" \
        "what to do: install the package gnupg2 from the installation media of this system"
    # gpgv reads keys in binary form only.
    sed -e '1,/^[[:space:]]*$/d' -e '/^=/d' -e '/^-----/d' keys/bundle.asc | base64 -d > "$scratch/key" 2> /dev/null || true
    [ -s "$scratch/key" ] || stop 10 "keys/bundle.asc is no key" "$again"
    # A host without a network has the wrong time more often than others; that forges nothing.
    fine=yes
    GNUPGHOME=$scratch "$gpgv" --ignore-time-conflict --homedir "$scratch" --status-fd 3 --keyring "$scratch/key" \
        SHA256SUMS.asc "$sums" 3> "$scratch/status" > "$scratch/said" 2>&1 || fine=no
    ! grep -q '^\[GNUPG:\] EXPKEYSIG' "$scratch/status" ||
        stop 10 "the key that signed this bundle has expired: its owner vouches for nothing any more that it signed" \
            "what to do: is the clock of this host right (date)? Else have it exported again, signed with another key."
    # One signature, by a key that is as good as on the day it was made, over a digest of the SHA-2 family.
    ! grep -Eq '^\[GNUPG:\] (BADSIG|ERRSIG|REVKEYSIG|EXPSIG|NODATA|PLAINTEXT)' "$scratch/status" || fine=no
    signer=$(awk '$2 == "GOODSIG" { good++ } $2 == "VALIDSIG" { n++; if ($10 >= 8 && $10 <= 10) signer = $12 }
        END { if (good == 1 && n == 1) print signer }' "$scratch/status")
    if [ "$fine" = no ] || [ -z "$signer" ]; then
        sed 's/^/  /' "$scratch/said" | plain >&2
        stop 10 "the signature of SHA256SUMS is not right: the bundle is damaged, or somebody changed it" "$again" \
            "If it happens again, ask who exported it. Install nothing from it."
    fi
    if [ -n "$wanted" ]; then
        [ "$signer" = "$wanted" ] || stop 10 "this bundle is signed with another key than yours" \
            "signed with: $(grouped "$signer")" "you gave:    $(grouped "$wanted")" \
            "what to do: ask the one who exported it, on another way than the bundle came; install nothing from it before"
    else
        unknown=yes
    fi
}
[ "$signed" = no ] || check_signature

# --- every file -------------------------------------------------------------------------------------------------------

part='[A-Za-z0-9_](\.?[A-Za-z0-9_+~^!@=,-])*'
if grep -Evn "^[0-9a-f]{64}  $part(/$part)*\$" "$sums" > "$scratch/wrong"; then
    printf 'error: lines of SHA256SUMS that no export writes:\n' >&2
    named "$scratch/wrong"
    stop 11 "SHA256SUMS names files that cannot be in a bundle" "$again, and ask who changed it"
fi
cut -c67- "$sums" > "$scratch/paths"
while read -r path; do
    [ -f "$path" ] || printf '%s\n' "$path"
done < "$scratch/paths" > "$scratch/missing"
if [ -s "$scratch/missing" ]; then
    printf 'error: files of the bundle that are not here:\n' >&2
    named "$scratch/missing"
    base=$(sed -n 's/^base_sums //p' bundle.conf)
    if [ -n "$base" ]; then
        stop 12 "this is a differential bundle, and needs the one that it was made from" \
            "what to do: sh assemble.sh -o NEW --base OLD '$here'" "OLD is the bundle whose SHA256SUMS has the sum $base"
    fi
    stop 12 "missing: $(wc -l < "$scratch/missing") of $(wc -l < "$scratch/paths") files" "$again" \
        "For volumes: sh assemble.sh -o FOLDER VOLUME... puts them together first."
fi
find . -type f ! -path ./SHA256SUMS ! -path ./SHA256SUMS.asc 2> /dev/null | sed 's|^\./||' | sort > "$scratch/there"
sort "$scratch/paths" | comm -13 - "$scratch/there" > "$scratch/others"

count=$(wc -l < "$scratch/paths")
# Not by du: some file systems count blocks that hold nothing.
bytes=$(tr '\n' '\0' < "$scratch/paths" | xargs -0 wc -c | awk '$2 != "total" { n += $1 } END { printf "%.0f", n }')
say "checking $count files, $(size "$bytes") ..."
bar=no
if [ "$quiet" = no ] && [ -t 2 ]; then bar=yes; fi
# A folder is no file that can be read, so read errors are told with the file's name among what failed.
sha256sum -c "$sums" 2> "$scratch/errors" | awk -v bar="$bar" -v count="$count" '
    / OK$/ { if (bar == "yes") printf "\r[%d/%d]", NR, count > "/dev/stderr"; next }
    { sub(/: FAILED( open or read)?$/, ""); print }
    END {
        if (bar == "yes") printf "\r                    \r" > "/dev/stderr"
        if (NR != count) print "(" NR " of " count " lines were checked)"
    }
    ' > "$scratch/failed"
if [ -s "$scratch/failed" ]; then
    printf 'error: files that are not what was exported:\n' >&2
    named "$scratch/failed"
    grep -v 'WARNING' "$scratch/errors" | sed -n '1,5s/^/  /p' | plain >&2 || true
    stop 11 "damaged or changed: $(wc -l < "$scratch/failed") of $count files" "$again" \
        "Only these have to be copied again; or run assemble.sh again, which repairs what is damaged."
fi

name=$(sed -n 's/^name //p' bundle.conf | plain)
say "$name: $count files, $(size "$bytes"): every sum is right"
if [ -s "$scratch/others" ]; then
    say "files here that are not of the bundle: $(wc -l < "$scratch/others"), such as $(head -n 1 "$scratch/others" | plain); left alone"
fi
if [ "$signed" = no ]; then
    printf 'warning: the signature was not looked at (--insecure-no-signature): nobody knows who made this bundle\n' >&2
elif [ "$unknown" = yes ]; then
    say "signed with the key $(grouped "$signer")"
    say "The key came with the bundle, so this proves no more than that the copy is"
    say "whole. Compare it with the fingerprint that you were given on another way, then"
    say "say it: --fingerprint $signer"
else
    say "signed with the key that you named, $(grouped "$signer")"
fi
if [ -n "$result" ]; then
    printf '%s\n' "$signer" > "$result/signer"
    mv -f "$sums" "$result/sums"
fi
