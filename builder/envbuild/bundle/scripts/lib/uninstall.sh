#!/bin/sh
# Undoes what an installation of a bundle changed on this host, by what it wrote down. It lies in the prefix, so that
# nobody needs the bundle for it: sh PREFIX/envbuild/uninstall.sh [--dry-run]
set -eu
LC_ALL=C
PATH=${PATH:-/usr/bin:/bin}:/usr/sbin:/sbin
export LC_ALL PATH
unset CDPATH

dry_run=no
while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) dry_run=yes ;;
        -h | --help)
            cat <<'ENVBUILD_USAGE'
Usage: sh uninstall.sh [--dry-run]

Undoes what the installation of this bundle changed: its RPM transactions (dnf
history), module streams, keys and image, and removes its folder with receipt
and logs: copy receipt.json first where you have to keep it. Packages that
something else needs by now are named, and nothing is removed.

Exit codes: 0 undone, 2 usage, 70 not (all) undone, 130 interrupted.
Example: sh /opt/envbuild/rhel8-cu118/envbuild/uninstall.sh --dry-run
ENVBUILD_USAGE
            exit 0
            ;;
        *)
            printf "error: '%s' is no option; see --help\n" "$1" >&2
            exit 2
            ;;
    esac
    shift
done

state=$(cd -P "$(dirname "$0")" && pwd)
prefix=${state%/*}
say() { printf '%s\n' "$*"; }
stop() { # stop MESSAGE [LINE...]
    printf 'error: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit 70
}
[ "${state##*/}" = envbuild ] && [ -e "$state/bundle" ] || stop "$state is no folder of an installation" \
    "what to do: sh PREFIX/envbuild/uninstall.sh, where PREFIX is the folder that was installed into"
holding=no scratch=''
ended() {
    code=$?
    [ "$holding" = no ] || rm -f "$prefix/lock"
    [ -z "$scratch" ] || rm -rf "$scratch"
    # What fails without a word of ours is writing.
    case $code in
        0 | 70 | 130) exit "$code" ;;
        *) stop "something could not be written, see above" "what to do: is a disk full? df -h $prefix /tmp" ;;
    esac
}
trap ended EXIT
trap 'printf "interrupted; run it again to go on\n" >&2; exit 130' INT TERM HUP
scratch=$(mktemp -d) || stop "no temporary folder can be made" "what to do: free some space in ${TMPDIR:-/tmp}"

# --- alone ------------------------------------------------------------------------------------------------------------

process_began() { sed -n 's/.*) //; /^[ZX] /!p' "/proc/$1/stat" 2> /dev/null | cut -d' ' -f20; }
take_lock() { # as install.sh does; its lock says who holds it
    ! ln -s "$(uname -n) $$ $(process_began $$)" "$prefix/lock" 2> /dev/null || return 0
    holder=$(readlink "$prefix/lock" 2> /dev/null || true)
    [ -n "$holder" ] || stop "$prefix cannot be written" "what to do: run this as root"
    pid=${holder#* }
    pid=${pid%% *}
    [ "${holder%% *}" = "$(uname -n)" ] || stop "an installation on ${holder%% *} (process $pid) works in $prefix" \
        "what to do: wait for it; if it is long dead, remove $prefix/lock"
    [ "$(process_began "$pid")" != "${holder##* }" ] || stop "an installation (process $pid) works in $prefix" \
        "what to do: wait for it"
    rm -f "$prefix/lock"
    ln -s "$(uname -n) $$ $(process_began $$)" "$prefix/lock" || stop "another one works in $prefix"
}
changed=$state/changed
if [ "$dry_run" = yes ]; then
    changed=$scratch/changed
    cat "$state/changed" > "$changed" 2> /dev/null || true
else
    take_lock
    holding=yes
    # A transaction goes on without the shell that began it.
    left=$(grep -lzxF "ENVBUILD_INSTALLS=$prefix" /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3 | head -n 1 || true)
    [ -z "$left" ] || stop "a killed installation has left process $left, which still works" "what to do: wait for it"
    touch "$changed" 2> /dev/null || stop "$state cannot be written" "what to do: run this as root"
fi
# A host whose rpm does not answer has packages all the same: an empty list would make all of them the bundle's.
list_packages() {
    rpm -qa --queryformat '%{NAME}-%{EPOCHNUM}:%{VERSION}-%{RELEASE}.%{ARCH}\n' > "$scratch/listed" ||
        stop "rpm cannot list what is installed" "what to do: rpm -qa says why; rpmdb --rebuilddb repairs its database"
    grep -v '^gpg-pubkey-' "$scratch/listed" | sort > "$scratch/now"
}
among() { # among LIST: of the lines on stdin those that are in the list, without their epochs
    [ -e "$1" ] || return 0
    awk 'NR == FNR { ours[$0]; next } { plain = $0; sub(/-[0-9]+:/, "-", plain); if (plain in ours) print }' "$1" -
}

# A run that was killed has not told what it changed; what there was before it has. Since then somebody else may have been
# at work: what the bundle has not is not its own.
if [ -e "$state/before/packages" ]; then
    list_packages
    comm -13 "$state/before/packages" "$scratch/now" | among "$state/own-packages" | sed 's/^/installed /' >> "$changed"
    comm -23 "$state/before/packages" "$scratch/now" | sed 's/^/replaced /' >> "$changed"
    [ "$dry_run" = yes ] || rm -f "$state/before/packages"
fi
if [ -e "$state/before/keys" ]; then
    rpm -qa 'gpg-pubkey*' | sort | comm -13 "$state/before/keys" - | among "$state/own-keys" | sed 's/^/key /' >> "$changed"
    [ "$dry_run" = yes ] || rm -f "$state/before/keys"
fi

packager=$(command -v dnf || command -v yum || true)
of() { sed -n "s/^$1 //p" "$changed" | sort -u; }
if [ "$(id -u)" -ne 0 ] && [ -n "$(of installed)$(of key)$(of module)" ]; then
    stop "packages were installed, and only root can remove them" "what to do: sudo sh $0"
fi

# --- packages ---------------------------------------------------------------------------------------------------------

of installed > "$scratch/installed"
: > "$scratch/there"
if [ -s "$scratch/installed" ]; then
    list_packages
    comm -12 "$scratch/installed" "$scratch/now" > "$scratch/there"
fi
# What an earlier run of ours had brought is nothing to go back to.
of replaced | comm -23 - "$scratch/installed" > "$scratch/replaced"
name_of() { sed 's/-[0-9]*:[^-]*-[^-]*$//'; }
# What took the place of another version stays: the older one is not in the bundle, and removing both would be worse.
if [ -s "$scratch/replaced" ]; then
    name_of < "$scratch/replaced" | sort -u > "$scratch/names"
    while read -r each; do
        printf '%s\n' "$each" | name_of | grep -qxFf "$scratch/names" || printf '%s\n' "$each"
    done < "$scratch/there" > "$scratch/remove"
else
    cp "$scratch/there" "$scratch/remove"
fi
# What another bundle on this host has, too, is that one's from now on: its environment may stand on it.
: > "$scratch/kept"
for other in "${prefix%/*}"/*/envbuild/own-packages; do
    [ -e "$other" ] && [ "$other" != "$state/own-packages" ] || continue
    among "$other" < "$scratch/remove" > "$scratch/taken"
    [ -s "$scratch/taken" ] || continue
    [ "$dry_run" = yes ] || sed 's/^/installed /' "$scratch/taken" >> "${other%/*}/changed"
    cat "$scratch/taken" >> "$scratch/kept"
    comm -23 "$scratch/remove" "$scratch/taken" > "$scratch/rest"
    mv -f "$scratch/rest" "$scratch/remove"
    say "$(wc -l < "$scratch/taken") packages stay: ${other%/envbuild/*} has them, too"
done
# rpm before 4.14 knows no epochs in arguments.
sed 's/-[0-9]*:\([^-]*-[^-]*\)$/-\1/' "$scratch/remove" > "$scratch/plain"
if [ -s "$scratch/plain" ]; then
    # dnf would remove whatever needs them, too.
    # shellcheck disable=SC2046 # one word each
    rpm -e --test $(cat "$scratch/plain") > "$scratch/said" 2>&1 || {
        sed -n '1,20s/^/  /p' "$scratch/said" >&2
        stop "other packages need what this bundle installed, so nothing was removed" \
            "what to do: remove those first, or keep the packages and remove $prefix alone"
    }
fi

# Updates of the host's own since then are not ours to remove.
: > "$scratch/updated"
if [ -s "$scratch/installed" ]; then
    name_of < "$scratch/there" | sort -u > "$scratch/found"
    name_of < "$scratch/installed" | sort -u | comm -23 - "$scratch/found" | while read -r each; do
        # Of what is gone rpm says so, and there is nothing to tell.
        ! rpm -q "$each" > "$scratch/has" 2>&1 || cat "$scratch/has"
    done > "$scratch/updated"
fi
tell_updated() {
    [ -s "$scratch/updated" ] || return 0
    say "these were updated since by something else than this bundle; they stay:"
    sed 's/^/  /' "$scratch/updated"
}

if [ "$dry_run" = yes ]; then
    say "this would be undone:"
    sed 's/^/  remove package /' "$scratch/remove"
    sed 's/^/  cannot be undone: replaced package /' "$scratch/replaced"
    of module | sed 's/^/  reset module /'
    of key | sed 's/^/  remove key /'
    of image | sed 's/^/  remove image /'
    say "  remove folder $prefix"
    tell_updated
    say "nothing was changed on this host"
    exit 0
fi

printf '%s\n' '[main]' reposdir=/dev/null assumeyes=1 "cachedir=$scratch/cache" clean_requirements_on_remove=0 plugins=1 \
    exit_on_lock=1 > "$scratch/conf"
undo() { "$packager" -c "$scratch/conf" --disableplugin='subscription-manager,product-id' "$@" > "$scratch/said" 2>&1; }
if [ -s "$scratch/plain" ]; then
    say "removing packages ($(wc -l < "$scratch/plain")) ..."
    sed 's/^/  /' "$scratch/plain"
    # The transactions themselves, the last one first, where dnf can: what they replaced is nowhere to be had.
    if [ -z "$(of replaced)" ] && [ ! -s "$scratch/kept" ] && [ -n "$(of history)" ]; then
        for id in $(of history | sort -rn); do
            undo history undo "$id" || true
        done
    fi
    while read -r each; do
        ! rpm -q "$each" > /dev/null 2>&1 || printf '%s\n' "$each"
    done < "$scratch/plain" > "$scratch/left"
    if [ -s "$scratch/left" ]; then
        # shellcheck disable=SC2046
        rpm -e $(cat "$scratch/left") > "$scratch/said" 2>&1 || {
            sed -n '1,20s/^/  /p' "$scratch/said" >&2
            stop "not every package could be removed" "what to do: the lines above name what holds it; then run this again"
        }
    fi
fi
of module > "$scratch/modules"
while read -r each; do
    undo module reset "${each%%:*}" || say "warning: module ${each%%:*} could not be reset"
done < "$scratch/modules"
of key > "$scratch/keys"
while read -r each; do
    ! rpm -q "$each" > /dev/null 2>&1 || rpm -e --allmatches "$each" || say "warning: the key $each could not be removed"
done < "$scratch/keys"

# --- image and folder -------------------------------------------------------------------------------------------------

of image > "$scratch/images"
while read -r engine ref; do
    "$engine" image inspect "$ref" > /dev/null 2>&1 || continue
    "$engine" rmi "$ref" > "$scratch/said" 2>&1 || {
        sed -n '1,5s/^/  /p' "$scratch/said" >&2
        stop "the image $ref could not be removed from $engine" "what to do: end what runs in it; then run this again"
    }
    say "removed the image $ref from $engine"
done < "$scratch/images"

if [ -s "$scratch/replaced" ]; then
    say "these packages took the place of other versions, which the bundle does not have; they stay:"
    comm -12 "$scratch/there" "$scratch/there" | while read -r each; do
        ! printf '%s\n' "$each" | name_of | grep -qxFf "$scratch/names" || printf '  %s\n' "$each"
    done
    say "they replaced:"
    sed 's/^/  /' "$scratch/replaced"
fi
cd /
for each in venv log proof tmp; do rm -rf "${prefix:?}/$each"; done
rm -f "$prefix/env.sh" "$prefix/doctor.pyz" "$prefix/receipt.json" "$prefix/lock" "$prefix"/*.new
rm -rf "${state:?}"
rmdir "$prefix" 2> /dev/null || say "$prefix is kept: there are files in it that no installation put there"
if [ -s "$scratch/replaced" ]; then
    stop "everything else was undone" "what to do: dnf downgrade these, with a repository that has the older versions"
fi
tell_updated
say "undone: nothing of this bundle is left on this host"
