# shellcheck shell=sh disable=SC2154,SC2034
# Read by install.sh. What was changed on this host is written down before it is changed and after: a run that was
# killed at any moment leaves enough for the next one, and for uninstall.sh.
#
# $state/before/keys, packages, history, modules    what there was before an open step; gone when it is settled
# $state/changed                                    what settled steps changed, a line each
# $state/own-packages, own-keys                     what the bundle has: nothing else counts as installed by it

# A symbolic link whose text says who holds it: made whole or not at all, also on network file systems.
process_began() { sed -n 's/.*) //; /^[ZX] /!p' "/proc/$1/stat" 2> /dev/null | cut -d' ' -f20; }

left_running() {
    { grep -lzxF "ENVBUILD_INSTALLS=$prefix" /proc/[0-9]*/environ 2> /dev/null || true; } | cut -d/ -f3 | while read -r pid; do
        # This shell and what it starts have it too.
        [ "$(readlink "$prefix/lock")" != "$(uname -n) $pid $(process_began "$pid")" ] || continue
        parent=$(sed -n 's/.*) . //p' "/proc/$pid/stat" 2> /dev/null | cut -d' ' -f1)
        [ "$parent" = $$ ] || [ "$(process_began "$pid")" = '' ] || printf '%s\n' "$pid"
    done
}
# A transaction of rpm is never cut short: it is waited for. What else a killed run has left is ended.
await_leftovers() {
    told=no
    while left=$(left_running) && [ -n "$left" ]; do
        for pid in $left; do
            case $(tr '\0' ' ' < "/proc/$pid/cmdline" 2> /dev/null) in
                *dnf* | *yum* | *rpm*)
                    [ "$told" = yes ] || say "waiting for the transaction of the killed run to end (process $pid)"
                    told=yes
                    ;;
                *) kill -KILL "$pid" 2> /dev/null || true ;;
            esac
        done
        sleep 1
    done
}

take_lock() {
    me="$(uname -n) $$ $(process_began $$)"
    while ! ln -s "$me" "$prefix/lock" 2> /dev/null; do
        holder=$(readlink "$prefix/lock" 2> /dev/null || true)
        if [ -z "$holder" ]; then
            [ -w "$prefix" ] || stop 21 "$prefix cannot be written"
            [ ! -e "$prefix/lock" ] || stop 2 "$prefix/lock is in the way"
            continue
        fi
        pid=${holder#* }
        pid=${pid%% *}
        [ "${holder%% *}" = "$(uname -n)" ] || stop 2 "an installation on ${holder%% *} (process $pid) works in $prefix" \
            "what to do: wait for it; if it is long dead, remove $prefix/lock"
        [ "$(process_began "$pid")" != "${holder##* }" ] ||
            stop 2 "another installation (process $pid) works in $prefix" "what to do: wait for it"
        say "taking over from an installation that was killed (process $pid)"
        mv "$prefix/lock" "$prefix/lock.$$" 2> /dev/null || continue
        [ "$(readlink "$prefix/lock.$$")" = "$holder" ] ||
            ln -s "$(readlink "$prefix/lock.$$")" "$prefix/lock" 2> /dev/null || true
        rm -f "$prefix/lock.$$"
    done
    holding=yes
    await_leftovers
}

before() { # before NAME COMMAND...: keep what there is, unless a killed run has kept it already
    kept=$state/before/$1
    shift
    [ -e "$kept" ] || { "$@" > "$kept.new" || unlisted; mv -f "$kept.new" "$kept"; }
}
also() { # also NAME COMMAND...: more lines of a list; those of an older bundle in this place stay
    list=$state/$1
    shift
    touch "$list"
    { cat "$list" && "$@"; } | sort -u > "$list.new"
    mv -f "$list.new" "$list"
}
changed() { printf '%s\n' "$*" >> "$state/changed"; }

# A host whose rpm does not answer has packages all the same: an empty list would make all of them ours.
list_packages() {
    rpm -qa --queryformat '%{NAME}-%{EPOCHNUM}:%{VERSION}-%{RELEASE}.%{ARCH}\n' > "$scratch/listed" || return 1
    grep -v '^gpg-pubkey-' "$scratch/listed" | sort
}
list_keys() { rpm -qa 'gpg-pubkey*' > "$scratch/listed" && sort "$scratch/listed"; }
unlisted() {
    stop 31 "rpm cannot list what is installed" "what to do: rpm -qa says why; rpmdb --rebuilddb repairs its database"
}
# Between a kill and now somebody else may have been at work: what the bundle has not was not installed by it.
among() { # among LIST: of the lines on stdin those that are in the list, without their epochs
    awk 'NR == FNR { ours[$0]; next } { plain = $0; sub(/-[0-9]+:/, "-", plain); if (plain in ours) print }' "$1" -
}

settle_keys() {
    [ -e "$state/before/keys" ] || return 0
    list_keys > "$state/after" || return 1
    comm -13 "$state/before/keys" "$state/after" | among "$state/own-keys" | while read -r each; do changed "key $each"; done
    rm -f "$state/before/keys"
}

settle_packages() {
    [ -e "$state/before/packages" ] || return 0
    list_packages > "$state/after" || return 1
    comm -13 "$state/before/packages" "$state/after" | among "$state/own-packages" |
        while read -r each; do changed "installed $each"; done
    comm -23 "$state/before/packages" "$state/after" | while read -r each; do changed "replaced $each"; done
    last=$(cat "$state/before/history" 2> /dev/null || echo 0)
    history_since "${last:-0}" | while read -r each; do changed "history $each"; done
    rm -f "$state/after" "$state/before/packages" "$state/before/history"
}

tell_changes() { # tell_changes CODE: for people, whatever the end was
    settle_keys || true
    settle_packages || true
    touch "$state/changed"
    if [ "$1" -eq 0 ] && [ "$verbose" = no ]; then
        awk '{ n[$1]++ } END {
            printf "changed on this host: packages installed %d, replaced %d; ", n["installed"], n["replaced"]
            printf "keys %d, module streams %d, images %d\n", n["key"], n["module"], n["image"] }' "$state/changed"
        printf '  and the folder %s. The receipt names them all.\n' "$prefix"
        return 0
    fi
    printf 'changed on this host so far:\n  folder %s\n' "$prefix"
    sed -n '1,40s/^/  /p' "$state/changed"
    more=$(($(wc -l < "$state/changed") - 40))
    [ "$more" -le 0 ] || printf '  ... and %s more: %s\n' "$more" "$state/changed"
    [ "$1" -eq 0 ] || printf 'Run it again when the cause is gone, or undo it all: sh %s/uninstall.sh\n' "$state"
}

# --- JSON -------------------------------------------------------------------------------------------------------------

js() { # js TEXT: a string of JSON; other signs than printable ASCII are left out
    printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -cd '\040-\176' | sed 's/\\/\\\\/g; s/"/\\"/g')"
}
js_lines() { # an array of the lines on stdin
    printf '['
    comma=''
    while read -r each; do
        printf '%s' "$comma"
        js "$each"
        comma=', '
    done
    printf ']'
}
js_changed() { sed -n "s/^$1 //p" "$state/changed" | awk '!seen[$0]++' | js_lines; }

write_receipt() { # write_receipt CODE
    result=failed
    [ "$1" -ne 0 ] || result=installed
    {
        printf '{\n  "schema": "envbuild.receipt/1",\n  "result": "%s",\n  "exit_code": %d,\n  "failure": %s,\n' "$result" "$1" \
            "$(if [ "$1" -eq 0 ]; then printf null; else js "$failure"; fi)"
        printf '  "bundle": {"name": %s, "sums_sha256": "%s", "signed_by": %s, "fingerprint_given": %s},\n' "$(js "$name")" \
            "$(sha256sum < "$sums" | cut -c1-64)" "$(if [ -n "$signer" ]; then js "$signer"; else printf null; fi)" \
            "$(if [ -n "$fingerprint" ]; then printf true; else printf false; fi)"
        printf '  "host": {"system": %s, "release": %s, "arch": %s, "kernel": %s, "fips": %s},\n' \
            "$(js "$host_name")" "$(js "$host_version")" "$(js "$host_arch")" "$(js "$(uname -r)")" \
            "$(if [ "$host_fips" = yes ]; then printf true; else printf false; fi)"
        printf '  "started": "%s",\n  "finished": "%s",\n' "$started" "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
        printf '  "parts": %s,\n  "prefix": %s,\n' "$(each_part | js_lines)" "$(js "$prefix")"
        printf '  "steps": ['
        comma=''
        printf '%s' "$steps" | while IFS='|' read -r title told; do
            printf '%s\n    {"step": %s, "outcome": %s}' "$comma" "$(js "$title")" "$(js "$told")"
            comma=','
        done
        printf '\n  ],\n  "changed": {"packages_installed": %s, "packages_replaced": %s, "history": %s,\n' \
            "$(js_changed installed)" "$(js_changed replaced)" "$(js_changed history)"
        printf '    "keys": %s, "modules": %s, "images": %s},\n' "$(js_changed key)" "$(js_changed module)" "$(js_changed image)"
        printf '  "proof": {%s}\n}\n' "$proof"
    } > "$prefix/receipt.json.new"
    # One of each run stays with the logs: a later run may have proved less.
    cp "$prefix/receipt.json.new" "$logs/receipt-$(printf '%s' "$started" | tr -d ':-').json" || true
    mv -f "$prefix/receipt.json.new" "$prefix/receipt.json"
}
proof=''
proved() { # proved NAME JSON
    proof="$proof${proof:+, }\"$1\": $2"
}
