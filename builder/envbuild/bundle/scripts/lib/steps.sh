# shellcheck shell=sh disable=SC2154,SC2034
# Read by install.sh. Steps, and what is told of them: on the screen, in a log of each, in the receipt.

count_steps() {
    total=$(each_part | grep -c .)
    [ "$dry_run" = no ] || return 0
    # A test comes before the packages, and trying them after everything.
    total=$((total + 1))
    ! has rpms || total=$((total + 1))
    [ "$prove" = no ] || total=$((total + 1))
}
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
