#!/bin/sh
# A Docker Engine of our own, for machines that have none: own data folder, own socket, nothing shared with
# an engine that is installed later. Where an engine answers, this changes nothing.
#   engine.sh start | stop | answers | install PACKAGE... | install-asleep PACKAGE...
set -eu
run=/run/envbuild
data=/var/lib/envbuild-engine
socket=$run/docker.sock
log=$data/engine.log

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo > /dev/null 2>&1; then
        sudo "$@"
    else
        echo "engine: this needs root or sudo: $*" >&2
        return 3
    fi
}

install_packages() {
    if ! command -v apt-get > /dev/null 2>&1; then
        echo "engine: no Docker Engine answers and there is no apt-get to install one with." >&2
        echo "engine: install one (https://docs.docker.com/engine/install/), then try again." >&2
        return 3
    fi
    echo "engine: installing $*" >&2
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}

# Packages that bring services, for their programs alone: none is started, now or at the next boot. What was there
# before is left as it is.
install_asleep() {
    policy=/usr/sbin/policy-rc.d
    made=
    if [ ! -e "$policy" ]; then
        made=$policy
        trap 'as_root rm -f "$made"' EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" > /dev/null
        as_root chmod 0755 "$policy"
    fi
    before=$(units)
    install_packages "$@"
    if [ -d /run/systemd/system ]; then
        for unit in $(units); do
            case " $before " in
                *" $unit "*) ;;
                *) if systemctl is-enabled --quiet "$unit"; then as_root systemctl disable --quiet "$unit"; fi ;;
            esac
        done
    fi
    if [ -n "$made" ]; then
        as_root rm -f "$made"
        trap - EXIT
    fi
}

# The services that are installed, in one line.
units() {
    for path in /lib/systemd/system/*.service; do
        case $path in
            *@.service) ;; # a template: it has no state of its own
            *) printf '%s ' "${path##*/}" ;;
        esac
    done
}

# An engine answers when /_ping does, on DOCKER_HOST, the current context, the usual socket or our own.
client() {
    for program in /usr/bin/docker docker; do
        command -v "$program" > /dev/null 2>&1 && { command -v "$program"; return 0; }
    done
    return 1
}

answers() {
    program=$(client) || return 1
    "$program" version --format '{{.Server.Version}}' > /dev/null 2>&1 && return 0
    "$program" -H "unix://$socket" version --format '{{.Server.Version}}' > /dev/null 2>&1
}

# The pid in a file, while a program of that name runs under it. A file that a killed program left behind names
# nobody, somebody else, or a process that its parent has not yet reaped; those serve nobody.
living() {
    pid=$(as_root cat "$1" 2> /dev/null) || return 1
    [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = "$2" ] || return 1
    if grep -q '^State:[[:space:]]*Z' "/proc/$pid/status"; then
        return 1
    fi
    echo "$pid"
}

ours() {
    living "$run/docker.pid" dockerd
}

start() {
    if answers; then
        return 0
    fi
    missing=
    command -v dockerd > /dev/null 2>&1 || missing="docker.io iptables"
    command -v mmdebstrap > /dev/null 2>&1 || missing="$missing mmdebstrap"
    if [ -n "$missing" ]; then
        # shellcheck disable=SC2086  # a list of package names
        install_packages $missing
        # Where buildx is a package of its own, the client cannot build with BuildKit without it.
        if apt-cache show docker-buildx > /dev/null 2>&1; then
            install_packages docker-buildx
        fi
        # The package may have started an engine by itself.
        if answers; then
            return 0
        fi
    fi
    as_root mkdir -p "$run" "$data"
    # Either file makes a new engine believe that an old one runs.
    ours > /dev/null || as_root rm -f "$run/docker.pid"
    containerd=$run/exec/containerd/containerd.pid
    living "$containerd" containerd > /dev/null || as_root rm -f "$containerd"
    echo "engine: starting a Docker Engine on $socket (data: $data; stop it: make engine-stop)" >&2
    as_root sh -c "nohup dockerd --host unix://$socket --data-root $data/data --exec-root $run/exec \
        --pidfile $run/docker.pid --group $(id -gn) > $log 2>&1 &"
    tries=0
    until answers; do
        tries=$((tries + 1))
        if [ "$tries" -ge 60 ]; then
            echo "engine: it did not answer within 60 s; its log ends with:" >&2
            as_root tail -n 5 "$log" >&2
            return 3
        fi
        sleep 1
    done
}

stop() {
    if ! pid=$(ours); then
        echo "engine: none of ours is running" >&2
        return 0
    fi
    as_root kill "$pid"
    while [ -d "/proc/$pid" ]; do
        sleep 0.2
    done
    echo "engine: stopped; its images are kept in $data" >&2
}

case "${1:-}" in
    start) start ;;
    stop) stop ;;
    answers) answers ;;
    install)
        shift
        install_packages "$@"
        ;;
    install-asleep)
        shift
        install_asleep "$@"
        ;;
    *)
        echo "usage: engine.sh start | stop | answers | install PACKAGE... | install-asleep PACKAGE..." >&2
        exit 2
        ;;
esac
