#!/bin/sh
# Describes this host for `envbuild export --target-manifest`, so that a bundle is resolved for exactly what is installed
# here: packages with what they provide and need, module streams, release, architecture. It changes nothing, needs no
# root and no network, and writes no host name, no address, no repository and no secret.
#   sh collect-target.sh -o target.txt
set -eu
LC_ALL=C
export LC_ALL
umask 022

usage() {
    cat <<'ENVBUILD_USAGE'
Usage: sh collect-target.sh [-o FILE] [--name NAME]

Writes what is installed on this host, line by line, for the connected side:
envbuild export ... --target-manifest FILE. Nothing is changed here. It holds no
host name, address, user or secret; read it before it leaves your site.

  -o FILE        where to write it; without it to the screen
  --name NAME    what the bundle calls this kind of host, such as "login" or
                 "compute"; letters, digits and . _ -
  -h, --help     this text

Exit codes: 0 done, 2 usage, 20 this is no host with RPM packages, or its rpm
does not answer, 21 the file cannot be written, 130 interrupted.

Examples:
  sh collect-target.sh -o target.txt
  ssh node1 sh -s -- --name compute < collect-target.sh > compute.txt
ENVBUILD_USAGE
}

stop() { # stop CODE MESSAGE FIX
    printf 'error: %s\n  what to do: %s\n' "$2" "$3" >&2
    exit "$1"
}

out='' name=''
while [ $# -gt 0 ]; do
    case $1 in
        -o | --output) [ $# -ge 2 ] || stop 2 "$1 needs a file" "see --help" ; out=$2 ; shift 2 ;;
        --name) [ $# -ge 2 ] || stop 2 "--name needs a name" "see --help" ; name=$2 ; shift 2 ;;
        -h | --help) usage ; exit 0 ;;
        *) stop 2 "'$1' is no option" "see --help" ;;
    esac
done
case $name in
    *[!A-Za-z0-9._-]*) stop 2 "--name '$name' has other signs than letters, digits and . _ -" "give another name" ;;
esac
command -v rpm > /dev/null 2>&1 || stop 20 "there is no rpm on this host" "run this on the host that the bundle is for"

part=''
ended() { [ -z "$part" ] || rm -f "$part"; }
trap ended EXIT
trap 'exit 130' INT TERM HUP

release() { # release KEY: its value in os-release
    sed -n "s/^$1=//p" /etc/os-release 2> /dev/null | head -n 1 | sed "s/^[\"']//; s/[\"']\$//" | tr -cd '\040-\176'
}

minor() { # the release with its minor number; CentOS 7 says it in another file
    version=$(release VERSION_ID)
    case $version in
        *.*) ;;
        *)
            longer=$(sed -n 's/.*release \([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p' /etc/redhat-release 2> /dev/null | head -n 1)
            case $longer in
                "$version".*) version=$longer ;;
            esac
            ;;
    esac
    printf '%s' "$version"
}

state_of() { # state_of PROGRAM: absent, active or inactive
    command -v "$1" > /dev/null 2>&1 || [ -d "/etc/$1" ] || { printf absent; return 0; }
    for comm in /proc/[0-9]*/comm; do
        if [ "$(cat "$comm" 2> /dev/null)" = "$1" ]; then
            printf active
            return 0
        fi
    done
    printf inactive
}

modules() {
    for file in /etc/dnf/modules.d/*.module; do
        [ -r "$file" ] || continue
        awk -F= '
            function told() { if (module != "" && stream != "") print "module\t" module "\t" stream "\t" state }
            /^\[/ { told(); module = substr($0, 2, index($0, "]") - 2); stream = ""; state = "" }
            { key = $1; gsub(/[ \t]/, "", key); value = $2; gsub(/^[ \t]+|[ \t]+$/, "", value) }
            key == "stream" { stream = value }
            key == "state" { state = value }
            END { told() }' "$file"
    done
}

pythons() {
    for program in /usr/bin/python[23] /usr/bin/python[23].[0-9] /usr/bin/python[23].[0-9][0-9] \
        /opt/rh/rh-python*/root/usr/bin/python[23].[0-9]*; do
        case $program in
            *-config) continue ;;
        esac
        [ -x "$program" ] || continue
        version=$("$program" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2> /dev/null) || continue
        printf 'python\t%s\t%s\n' "$version" "$program"
    done
}

# Files are told as far as the metadata of repositories tells them at once: others are hardly ever required.
packages() {
    rpm -qa --queryformat '%{NAME}\n' gpg-pubkey 2> /dev/null | grep -q . &&
        rpm -q --queryformat 'key\t%{VERSION}\t%{RELEASE}\n' gpg-pubkey
    format='package\t%{NAME}\t%{EPOCHNUM}\t%{VERSION}\t%{RELEASE}\t%{ARCH}\n'
    for relation in provides requires conflicts obsoletes; do
        tag=$(printf '%s' "${relation%s}" | tr '[:lower:]' '[:upper:]')
        format="${format}[$relation\\t%{${tag}FLAGS}\\t%{${tag}VERSION}\\t%{${tag}NAME}\\n]"
    done
    # Whose rpm does not answer has packages all the same: a description without them would be one of another host.
    { rpm -qa --queryformat "${format}[file\\t%{FILENAMES}\\n]" || printf 'failed\n'; } |
        awk -F'\t' '
            $1 == "failed" { print; next }
            $1 == "package" { kept = $2 != "gpg-pubkey" }
            !kept { next }
            $1 == "file" && $2 !~ /^\/etc\/|bin\/|^\/usr\/lib\/sendmail$/ { next }
            $1 == "requires" && $4 ~ /^rpmlib\(/ { next }
            $2 == "(none)" { next }
            { print }'
}

describe() {
    printf 'envbuild-target\t1\n'
    [ -z "$name" ] || printf 'name\t%s\n' "$name"
    printf 'os_id\t%s\n' "$(release ID)"
    printf 'os_like\t%s\n' "$(release ID_LIKE)"
    printf 'os_version\t%s\n' "$(minor)"
    printf 'os_name\t%s\n' "$(release PRETTY_NAME)"
    printf 'platform\t%s\n' "$(release PLATFORM_ID)"
    printf 'arch\t%s\n' "$(uname -m)"
    printf 'kernel\t%s\n' "$(uname -r)"
    printf 'glibc\t%s\n' "$(getconf GNU_LIBC_VERSION 2> /dev/null | cut -d' ' -f2)"
    printf 'rpm\t%s\n' "$(rpm --version 2> /dev/null | awk '{ print $NF }')"
    fips=no
    [ "$(cat /proc/sys/crypto/fips_enabled 2> /dev/null || true)" = 1 ] && fips=yes
    printf 'fips\t%s\n' "$fips"
    printf 'selinux\t%s\n' "$(getenforce 2> /dev/null | tr '[:upper:]' '[:lower:]' || true)"
    printf 'fapolicyd\t%s\n' "$(state_of fapolicyd)"
    pythons
    modules
    packages
}

# The last line counts the others: a copy that was cut short is not taken for a smaller host.
counted() { awk '$0 == "failed" { failed = 1; exit } { print } END { if (failed) exit 3; print "end\t" NR }'; }
unlisted() { stop 20 "rpm cannot list what is installed" "rpm -qa says why; rpmdb --rebuilddb repairs its database"; }

if [ -z "$out" ]; then
    describe | counted || unlisted
else
    part=$out.part code=0
    describe | counted > "$part" || code=$?
    [ "$code" -ne 3 ] || unlisted
    [ "$code" -eq 0 ] || stop 21 "$out cannot be written" "name another file with -o"
    mv -f "$part" "$out" || stop 21 "$out cannot be written" "name another file with -o"
    part=''
    printf 'wrote %s: %s packages; take it to the connected side and give it to envbuild export --target-manifest\n' \
        "$out" "$(grep -c '^package' "$out")" >&2
fi
