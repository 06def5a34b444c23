# shellcheck shell=sh disable=SC2154,SC2034
# Read by install.sh. Whether the bundle is for this host, and whether it can take it: all that is wrong is told at once.

problems=0 worst=0
lacks() { # lacks CODE MESSAGE [LINE...]
    problems=$((problems + 1))
    [ "$worst" -ne 0 ] || worst=$1
    shift
    printf 'error: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '  %s\n' "$line" >&2; done
}

release() { sed -n "s/^$1=//p" /etc/os-release 2> /dev/null | head -n 1 | sed "s/^[\"']//; s/[\"']\$//"; }

look_at_release() {
    distro=$(conf distro) major=$(conf major) releasever=$(conf releasever)
    host_id=$(release ID) host_version=$(release VERSION_ID) host_name=$(release PRETTY_NAME)
    case $host_version in
        *.*) ;;
        *)
            # CentOS 7 says its minor release in another file.
            longer=$(sed -n 's/.*release \([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p' /etc/redhat-release 2> /dev/null | head -n 1)
            case $longer in
                "$host_version".*) host_version=$longer ;;
            esac
            ;;
    esac
    case " $host_id $(release ID_LIKE) " in
        *" $distro "*) ;;
        *" rhel "* | *" centos "*)
            # Rebuilds of one another: what differs between them is refused by rpm's test of the transaction.
            case $distro in
                rhel | centos | rocky | almalinux | ol)
                    warn "the bundle is made for $distro, and this host is ${host_name:-$host_id}: a close relative"
                    ;;
                *)
                    lacks 20 "the bundle is for $distro $major, and this host is ${host_name:-$host_id}" \
                        "what to do: export one for this system"
                    ;;
            esac
            ;;
        *) lacks 20 "the bundle is for $distro $major, and this host is ${host_name:-of an unknown system}" \
            "what to do: export one for this system" ;;
    esac
    if [ "${host_version%%.*}" != "$major" ]; then
        lacks 20 "the bundle is for release $major, and this host has release ${host_version:-unknown}" \
            "what to do: export a bundle for release ${host_version%%.*}"
        return 0
    fi
    case "$releasever $host_version" in
        *.*" "*.*)
            wanted=${releasever#*.} found=${host_version#*.}
            wanted=${wanted%%.*} found=${found%%.*}
            if [ "$found" -lt "$wanted" ] 2> /dev/null; then
                lacks 20 "the packages were resolved for release $releasever, and this host has $host_version" \
                    "They may need newer libraries of the system than it has." \
                    "what to do: on this host: sh collect-target.sh -o target.txt; then on the connected side:" \
                    "envbuild export ... --releasever $host_version --target-manifest target.txt"
            elif [ "$found" -gt "$wanted" ] 2> /dev/null; then
                warn "the packages were resolved for release $releasever, and this host has $host_version:" \
                    "rpm decides whether they fit"
            fi
            ;;
    esac
}

look_at_machine() {
    arch=$(conf arch) host_arch=$(uname -m)
    [ "$arch" = "$host_arch" ] || lacks 20 "the bundle is for $arch, and this machine is $host_arch" \
        "what to do: envbuild export ... --arch $host_arch"
    host_fips=no
    [ "$(cat /proc/sys/crypto/fips_enabled 2> /dev/null || true)" != 1 ] || host_fips=yes
    if [ "$host_fips" = yes ] && [ "$(conf fips)" != yes ]; then
        lacks 22 "this host is in FIPS mode, and the bundle was not made for that" \
            "Its packages may have digests and signatures that are refused here." \
            "what to do: envbuild export ... --fips"
    fi
}

look_at_tools() {
    if has rpms && [ "$dry_run" = no ] && [ "$(id -u)" -ne 0 ]; then
        lacks 2 "packages can only be installed by root" "what to do: sudo sh install.sh ..., or leave them out: --only wheels"
    fi
    packager=''
    if has rpms; then
        command -v rpm > /dev/null 2>&1 || lacks 20 "there is no rpm on this host"
        for each in dnf yum; do
            [ -n "$packager" ] || packager=$(command -v "$each" 2> /dev/null) || true
        done
        [ -n "$packager" ] || lacks 20 "there is neither dnf nor yum on this host" \
            "what to do: install the packages of the bundle by hand, or leave them out: --only wheels"
    fi
}

# fapolicyd lets nothing run that no package brought, unless a rule names its folder, before those that deny (40 and up;
# fapolicyd.rules(5), and README-rules beside its sample rules).
look_at_policy() {
    for comm in /proc/[0-9]*/comm; do
        [ "$(cat "$comm" 2> /dev/null)" = fapolicyd ] || continue
        if grep -Eqs '^[[:space:]]*permissive[[:space:]]*=[[:space:]]*1' /etc/fapolicyd/fapolicyd.conf; then
            warn "fapolicyd runs on this host, in permissive mode: it will write about $prefix into its log"
        elif ! grep -Eqs "^[[:space:]]*allow .*dir=$prefix/" /etc/fapolicyd/compiled.rules /etc/fapolicyd/fapolicyd.rules \
            /etc/fapolicyd/rules.d/*.rules; then
            lacks 22 "fapolicyd runs on this host, and would let no program of $prefix run" \
                "what to do: allow that folder, then run this again:" \
                "echo 'allow perm=any all : dir=$prefix/' > /etc/fapolicyd/rules.d/31-envbuild.rules && fagenrules --load" \
                "or leave the wheels out: --only rpms,image"
        fi
        return 0
    done
}

existing() { # existing PATH: the part of it that is there
    path=$1
    while [ ! -d "$path" ]; do
        path=${path%/*}
        [ -n "$path" ] || path=/
    done
    printf '%s' "$path"
}

look_at_prefix() {
    folder=$(existing "$prefix")
    # Shared objects of a file system that is mounted noexec cannot be loaded.
    mounted=$(df -P "$folder" 2> /dev/null | awk 'NR == 2 { sub(/^.*% */, ""); print }')
    if awk -v m="$mounted" '$2 == m { o = $4 } END { exit ("," o "," ~ /,noexec,/) ? 0 : 1 }' /proc/mounts 2> /dev/null; then
        lacks 22 "$prefix lies on $mounted, which is mounted noexec: nothing installed there could run" \
            "what to do: name another folder: --prefix DIR; or mount -o remount,exec $mounted"
    fi
    [ -w "$folder" ] || [ "$dry_run" = yes ] || lacks 21 "$folder cannot be written" \
        "what to do: run this as root, or name another folder: --prefix DIR"
}

# Needs are summed up for every file system. What is installed already needs nothing.
: > "$scratch/needs"
needs() { # needs BYTES FOLDER WHAT
    case $1 in
        '' | *[!0-9]*) return 0 ;;
    esac
    df -Pk "$(existing "$2")" 2> /dev/null | awk -v n="$1" -v what="$3" '
        NR == 2 { free = $4; sub(/^.*% */, ""); printf "%.0f %s %s\t%s\n", n / 1024 + 1, free, what, $0 }' >> "$scratch/needs"
}

look_at_space() {
    if has rpms && ! all_installed; then needs "$(conf rpm_installed_bytes)" /usr packages; fi
    # Wheels are compressed to a half at best; what is unpacked lies there twice for a moment.
    if has wheels && ! wheels_done; then
        wheels_bytes=$(conf wheels_bytes)
        needs $((${wheels_bytes:-0} * 3)) "$prefix" wheels
    fi
    if has image && ! image_done; then
        needs $(($(wc -c < "$here/$(conf image_path)") * 3)) "$(engine_folder)" image
    fi
    awk -F'\t' '
        { split($1, w, " "); need[$2] += w[1]; free[$2] = w[2]; what[$2] = what[$2] (what[$2] == "" ? "" : ", ") w[3] }
        END { for (m in need) if (need[m] + 102400 > free[m])
            printf "%s\t%.0f\t%.0f\t%s\n", m, (need[m] + 102400) / 1024 + 1, free[m] / 1024, what[m] }
        ' "$scratch/needs" > "$scratch/short"
    while IFS='	' read -r mount need free what; do
        lacks 21 "$mount has $free MB free, and $need MB are needed there ($what)" \
            "what to do: free $((need - free)) MB there, or name another folder: --prefix DIR (wheels), --only PARTS"
    done < "$scratch/short"
}

look_at_host() {
    look_at_release
    look_at_machine
    look_at_tools
    if has wheels; then
        look_at_policy
        find_python
        [ -n "$python" ] || has rpms || lacks 40 "there is no Python $python_wanted on this host" \
            "what to do: install it, or take the packages of the bundle along: --only rpms,wheels"
    fi
    look_at_prefix
    if has image; then find_engine; fi
    [ "$worst" -ne 0 ] || look_at_space
    if [ "$worst" -ne 0 ]; then
        failure="$problems problem(s) with this host" explained=yes
        exit "$worst"
    fi
    say "  ${host_name:-$host_id} $host_arch: the bundle is for such hosts"
}
