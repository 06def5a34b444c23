# shellcheck shell=sh disable=SC2154,SC2034
# Read by install.sh. What is to be installed of the bundle, and into which folder.

each_part() { for part in $parts; do printf '%s\n' "$part"; done; }
has() { each_part | grep -qx "$1"; }

what_is_wanted() {
    [ "$(conf schema)" = 1 ] || stop 12 "bundle.conf has the form '$(conf schema)', and this installer reads form 1"
    name=$(conf name)
    case $name in
        '' | *[!A-Za-z0-9._-]* | .* | -*) stop 12 "bundle.conf: '$name' is no name of a bundle" ;;
    esac
    parts=$(conf part | tr '\n' ' ')
    for each in $only; do
        has "$each" || stop 2 "--only $each: this bundle has ${parts% }"
    done
    [ -z "$only" ] || parts="$only "
    [ -n "$parts" ] || stop 12 "bundle.conf names no parts" "what to do: export the bundle again"
    for each in "rpms rpms/repodata/repomd.xml" "wheels wheels/requirements.lock" "image $(conf image_path)" \
        "doctor doctor.pyz"; do
        has "${each%% *}" || continue
        cut -c67- "$sums" | grep -qxF "${each#* }" || stop 12 \
            "the bundle has no '${each#* }', which its part ${each%% *} needs" "what to do: export the bundle again"
    done
}

where_it_goes() {
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
}
