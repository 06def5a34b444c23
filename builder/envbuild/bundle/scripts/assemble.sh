#!/bin/sh
# Puts a bundle together from its volumes (or from a differential bundle and the one that it stands on): sh assemble.sh
# --help. It changes nothing but the folder that it makes. Needs a POSIX shell and coreutils.
set -eu
umask 022
LC_ALL=C
export LC_ALL
unset CDPATH

usage() {
    cat <<'ENVBUILD_USAGE'
Usage: sh assemble.sh -o FOLDER [--base BUNDLE] [VOLUME...]

Puts the volumes of a bundle together in FOLDER. In any order, all at once or
one medium after the other; run it again after any interruption: what is there
and right is kept, what is damaged is copied anew.

  -o FOLDER        where the bundle is put together
  --base BUNDLE    for a differential bundle: the bundle that it was made from,
                   whole
  -h, --help       this text

Without a VOLUME: the folder of this script, and its siblings of the same set.

Exit codes: 0 the bundle is whole, 2 usage, 11 a damaged file, 12 volumes or
files are missing, 13 a volume or base of another bundle, 21 no space,
130 interrupted.

Examples:
  sh assemble.sh -o /srv/bundle /media/vol01 /media/vol02 /media/vol03
  sh /media/cdrom/assemble.sh -o /srv/bundle /media/cdrom
                                   again for each disc, in any order
  sh assemble.sh -o /srv/new --base /srv/old /media/usb/differential
ENVBUILD_USAGE
}

say() { printf '%s\n' "$*"; }
explained=no
stop() { # stop CODE MESSAGE [LINE...]
    code=$1 explained=yes
    printf 'error: %s\n' "$2" >&2
    shift 2
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
    exit "$code"
}
named() { # named FILE: its first lines, indented, and how many more there are
    # Names of files are somebody else's: no escape sequence of theirs reaches a terminal.
    sed -n '1,20s/^/  /p' "$1" | tr -c '\040-\176\n' '[?*]' >&2
    more=$(($(wc -l < "$1") - 20))
    [ "$more" -le 0 ] || printf '  ... and %s more\n' "$more" >&2
}

absolute() { (cd -P "$1" 2> /dev/null && pwd); }
no_folder() { stop 2 "$1 is no folder that can be read"; }
sum() { sha256sum < "$1" | cut -c1-64; }
no_space() {
    stop 21 "$(df -P "$out" | awk 'NR == 2 { sub(/^.*% */, ""); print }') is full: $out needs more room" \
        "what to do: free some, then run the same again: what is there and right is kept"
}
of_volume() { sed -n "s/^$2 //p" "$1/VOLUME" | head -n 1; }

scratch=''
ended() {
    code=$?
    [ -z "$scratch" ] || rm -rf "$scratch"
    # What fails without a word of ours is writing, and the command itself has said why.
    [ "$code" -eq 0 ] || [ "$explained" = yes ] || stop 21 "something could not be written, see above" \
        "what to do: is a disk full, or read-only? df -h $out ${TMPDIR:-/tmp}; then run the same again"
    exit "$code"
}
trap ended EXIT
trap 'printf "interrupted; run it again to go on\n" >&2; explained=yes; exit 130' INT TERM HUP
out='' base=''
scratch=$(mktemp -d) || stop 21 "no temporary folder can be made in ${TMPDIR:-/tmp}"
sources=$scratch/sources
: > "$sources"

while [ $# -gt 0 ]; do
    case $1 in
        -o | --output | --base)
            [ $# -ge 2 ] || stop 2 "$1 needs a folder; see --help"
            case $1 in
                --base) base=$(absolute "$2") || no_folder "$2" ;;
                *) out=$2 ;;
            esac
            shift 2
            ;;
        -h | --help) usage ; exit 0 ;;
        -*) stop 2 "'$1' is no option; see --help" ;;
        *)
            each=$(absolute "$1") || no_folder "$1"
            printf '%s\n' "$each" >> "$sources"
            shift
            ;;
    esac
done
[ -n "$out" ] || stop 2 "-o FOLDER says where the bundle is put together; see --help"
case $out in
    -*) out=./$out ;;
esac
here=$(absolute "$(dirname "$0")") || no_folder "$0"
if [ ! -s "$sources" ]; then
    [ -e "$here/VOLUME" ] || stop 2 "name the volumes; see --help"
    for each in "$here"/../*/VOLUME; do
        each=$(absolute "${each%/VOLUME}") || continue
        [ "$(of_volume "$each" set)" != "$(of_volume "$here" set)" ] || printf '%s\n' "$each" >> "$sources"
    done
fi

# --- what is to be put together ---------------------------------------------------------------------------------------

part='[A-Za-z0-9_](\.?[A-Za-z0-9_+~^!@=,-])*'
set_id=''
while IFS= read -r source; do
    [ -f "$source/SHA256SUMS" ] || stop 12 "$source has no SHA256SUMS: it is no volume and no bundle" \
        "what to do: copy it again, or name the right folder"
    id=$(sum "$source/SHA256SUMS")
    if [ -e "$source/VOLUME" ] && [ "$(of_volume "$source" set)" != "$id" ]; then
        stop 11 "$source/SHA256SUMS is damaged: its volume says $(of_volume "$source" set)" \
            "what to do: copy that volume again"
    fi
    [ -z "$set_id" ] || [ "$id" = "$set_id" ] || stop 13 "$source belongs to another bundle than $first" \
        "what to do: take it away; the set is named in the line 'set' of each file VOLUME"
    [ -n "$set_id" ] || { set_id=$id first=$source; }
done < "$sources"
held=$(cat "$out/.assemble/set" 2> /dev/null || true)
if [ -z "$held" ] && [ -e "$out/SHA256SUMS" ]; then held=$(sum "$out/SHA256SUMS"); fi
[ -z "$held" ] || [ "$held" = "$set_id" ] || stop 13 "$out holds another bundle than $first" \
    "what to do: name another folder with -o; or if $out is damaged, remove $out/SHA256SUMS and run the same again"
if grep -Evn "^[0-9a-f]{64}  $part(/$part)*\$" "$first/SHA256SUMS" > "$scratch/wrong"; then
    named "$scratch/wrong"
    stop 11 "SHA256SUMS of $first has lines that no export writes" "what to do: copy that volume again, and ask who changed it"
fi
{
    cat "$sources"
    printf '%s\n' "$out" "$base"
} > "$scratch/places"
while IFS= read -r each; do
    [ -d "$each" ] || continue
    find "$each" ! -type f ! -type d 2> /dev/null > "$scratch/odd" || true
    [ ! -s "$scratch/odd" ] || {
        named "$scratch/odd"
        stop 11 "$each holds links or devices, which no export writes" "what to do: ask who changed it"
    }
done < "$scratch/places"
if [ -n "$base" ]; then
    [ -f "$base/SHA256SUMS" ] || stop 12 "$base has no SHA256SUMS: it is no bundle"
    wanted=''
    while IFS= read -r source; do
        [ -n "$wanted" ] || wanted=$(sed -n 's/^base_sums //p' "$source/bundle.conf" 2> /dev/null | head -n 1)
    done < "$sources"
    [ -z "$wanted" ] || [ "$(sum "$base/SHA256SUMS")" = "$wanted" ] || stop 13 \
        "$base is not the bundle that this one was made from" \
        "what to do: --base wants the bundle whose SHA256SUMS has the sum $wanted"
fi

mkdir -p "$out" 2> "$scratch/said" || { cat "$scratch/said" >&2; stop 21 "$out cannot be made"; }
out=$(absolute "$out") || no_folder "$out"
state=$out/.assemble
mkdir -p "$state" 2> "$scratch/said" || { cat "$scratch/said" >&2; stop 21 "$out cannot be written"; }
printf '%s\n' "$set_id" > "$state/set" 2> /dev/null || no_space

# --- copying ----------------------------------------------------------------------------------------------------------

full() { # what a failed copy says, when it is the disk
    grep -Eqi 'no space|quota' "$scratch/said"
}
copy() { # copy SOURCE FILE: beside, then in its place
    mkdir -p "$(dirname "$out/$2")"
    rm -f "$out/$2.part"
    cp "$1" "$out/$2.part" 2> "$scratch/said" || {
        rm -f "$out/$2.part"
        if full; then no_space; fi
        return 1
    }
}
right() { [ -f "$out/$1" ] && [ "$(sum "$out/$1")" = "$2" ]; }
plain() { [ -f "$1" ] && [ ! -h "$1" ]; }

: > "$scratch/damaged"
: > "$scratch/absent"
: > "$scratch/copied"
# Where each file is: in the sources by its name, in the base by its sum.
find_file() { # find_file SUM FILE
    while IFS= read -r source; do
        if plain "$source/$2"; then
            printf '%s\n' "$source/$2"
            return 0
        fi
    done < "$sources"
    [ -n "$base" ] || return 0
    sed -n "s/^$1  //p" "$base/SHA256SUMS" | while read -r each; do
        case /$each/ in
            */../*) continue ;;
        esac
        if plain "$base/$each"; then
            printf '%s\n' "$base/$each"
            break
        fi
    done
}

# Pieces of one large file, each written to its place in it. What is written there is read again.
piece_bytes() { dd if="$1" bs=1048576 iflag=skip_bytes,count_bytes skip="$2" count="$3" 2> /dev/null | sha256sum | cut -c1-64; }
pieces() { # pieces SUM FILE: true when every piece is there
    done_pieces=$state/$1
    [ -f "$out/$2.part" ] || rm -f "$done_pieces"
    touch "$done_pieces"
    mkdir -p "$(dirname "$out/$2")"
    offset=0 whole=yes
    while read -r piece_sum bytes piece; do
        here_offset=$offset
        offset=$((offset + bytes))
        if grep -qx "$piece" "$done_pieces"; then continue; fi
        at=$(find_file - "$piece")
        if [ -z "$at" ]; then
            whole=no
            printf '%s (a piece of %s)\n' "$piece" "$2" >> "$scratch/absent"
            continue
        fi
        dd if="$at" of="$out/$2.part" bs=1048576 oflag=seek_bytes seek="$here_offset" conv=notrunc 2> "$scratch/said" || {
            if full; then no_space; fi
        }
        if [ "$(piece_bytes "$out/$2.part" "$here_offset" "$bytes")" = "$piece_sum" ]; then
            printf '%s\n' "$piece" >> "$done_pieces"
        else
            whole=no
            printf '%s\n' "$at" >> "$scratch/damaged"
        fi
    done < "$scratch/pieces"
    [ "$whole" = yes ]
}
of_file() { # of_file SUM: its pieces, in order
    chunks=$(while IFS= read -r source; do [ ! -f "$source/CHUNKS" ] || { printf '%s' "$source/CHUNKS"; break; }; done < "$sources")
    [ -n "$chunks" ] || return 0
    # Nobody signs that list: a number that no shell can add up is none.
    grep -E "^[0-9a-f]{64} [0-9]{1,15} chunks/$1\.[0-9]{3,6}\$" "$chunks" | sort -k3,3 || true
}

say "putting together $(wc -l < "$first/SHA256SUMS") files in $out"
count=$(wc -l < "$first/SHA256SUMS") number=0
while read -r wanted path; do
    number=$((number + 1))
    [ ! -t 2 ] || printf '\r[%d/%d]' "$number" "$count" >&2
    if right "$path" "$wanted"; then continue; fi
    of_file "$wanted" > "$scratch/pieces"
    at=$(find_file "$wanted" "$path")
    if [ -n "$at" ]; then
        copy "$at" "$path" || { printf '%s (cannot be read)\n' "$at" >> "$scratch/damaged"; continue; }
    elif [ -s "$scratch/pieces" ]; then
        pieces "$wanted" "$path" || continue
        at="the pieces of $path"
    else
        printf '%s\n' "$path" >> "$scratch/absent"
        continue
    fi
    if right "$path.part" "$wanted"; then
        mv -f "$out/$path.part" "$out/$path"
        rm -f "$state/$wanted"
        printf '%s\n' "$path" >> "$scratch/copied"
    else
        rm -f "$out/$path.part" "$state/$wanted"
        printf '%s\n' "$at" >> "$scratch/damaged"
    fi
done < "$first/SHA256SUMS"
[ ! -t 2 ] || printf '\r                    \r' >&2

# --- the end ----------------------------------------------------------------------------------------------------------

for each in SHA256SUMS SHA256SUMS.asc; do
    plain "$first/$each" || continue
    cmp -s "$first/$each" "$out/$each" && continue
    copy "$first/$each" "$each" && mv -f "$out/$each.part" "$out/$each"
done
while IFS= read -r source; do
    [ ! -e "$source/VOLUME" ] || of_volume "$source" number >> "$state/seen"
done < "$sources"
copied=$(wc -l < "$scratch/copied")
wrong=$(cat "$scratch/absent" "$scratch/damaged" | wc -l)
say "files: $copied copied, $((count > copied + wrong ? count - copied - wrong : 0)) there already"
code=0
if [ -s "$scratch/damaged" ]; then
    printf 'error: damaged, so not taken:\n' >&2
    sort -u "$scratch/damaged" > "$scratch/told"
    named "$scratch/told"
    printf '  what to do: copy these again from where the bundle was exported, then run the same again\n' >&2
    code=11
fi
if [ -s "$scratch/absent" ]; then
    of=''
    while IFS= read -r source; do [ ! -e "$source/VOLUME" ] || of=$(of_volume "$source" of); done < "$sources"
    missing=''
    case $of in
        '' | *[!0-9]*) ;;
        *)
            volume=1
            while [ "$volume" -le "$of" ]; do
                grep -qx "0*$volume" "$state/seen" || missing="$missing $volume"
                volume=$((volume + 1))
            done
            ;;
    esac
    if [ -n "$missing" ]; then
        # Which files lie in them is nobody's business who changes discs.
        printf 'not whole yet: %s of %s files are still to come\n' "$(wc -l < "$scratch/absent")" "$count" >&2
        printf '  what to do: give the volumes that have not been seen yet, of %s:%s\n' "$of" "$missing" >&2
    else
        printf 'error: in none of the folders given (%s of %s files):\n' "$(wc -l < "$scratch/absent")" "$count" >&2
        named "$scratch/absent"
        if grep -qs '^base_sums ' "$first/bundle.conf" "$out/bundle.conf" && [ -z "$base" ]; then
            printf '  what to do: this is a differential bundle: --base BUNDLE names the one that it was made from\n' >&2
        else
            printf '  what to do: copy the volumes again; they are not whole\n' >&2
        fi
    fi
    [ "$code" -ne 0 ] || code=12
fi
[ "$code" -eq 0 ] || {
    explained=yes
    exit "$code"
}
rm -rf "$state"
say "the bundle is whole: $out"
say "next: sh $out/verify.sh --fingerprint FINGERPRINT"
