# shellcheck shell=sh disable=SC2154
# Read by install.sh. The image is loaded by the engine that is there, and its digest is compared: an engine may load
# something else than what was proven.

find_engine() {
    wanted_engine=$engine engine=''
    for each in ${wanted_engine:-docker podman}; do
        if command -v "$each" > /dev/null 2>&1 && "$each" info > "$scratch/engine" 2>&1; then
            engine=$each
            look_at_name
            return 0
        fi
    done
    [ ! -s "$scratch/engine" ] || named "$scratch/engine" 5
    lacks 50 "no container engine answers on this host (${wanted_engine:-docker, podman})" \
        "what to do: systemctl start docker, or name the one that you have: --engine podman;" \
        "or leave the image out: --only rpms,wheels"
}

# A name that is taken stays with whoever has it.
look_at_name() {
    ref=$(conf image_ref)
    taken=$(image_id "$ref")
    [ -z "$taken" ] || is_proven "$taken" || lacks 50 "$engine has another image of the name $ref already" \
        "what to do: give that one another name first: $engine tag $ref OTHER && $engine rmi $ref"
}

engine_folder() {
    case $engine in
        docker) docker info --format '{{.DockerRootDir}}' 2> /dev/null || printf /var/lib ;;
        *) podman info --format '{{.Store.GraphRoot}}' 2> /dev/null || printf /var/lib ;;
    esac
}

# docker calls an image by the digest of its configuration, or with the containerd store of its manifest.
image_id() { "$engine" image inspect --format '{{.Id}}' "$1" 2> /dev/null | sed 's/^sha256://'; }
is_proven() {
    case $1 in
        "$(conf image_config | sed 's/^sha256://')" | "$(conf image_manifest | sed 's/^sha256://')") [ -n "$1" ] ;;
        *) return 1 ;;
    esac
}
image_done() { is_proven "$(image_id "$(conf image_ref)")"; }

would_image() {
    step image "container image"
    told="would be loaded into $engine"
    ! image_done || told='is there'
    finished "$(conf image_ref) $told"
}

install_image() {
    ref=$(conf image_ref)
    step image "container image $ref into $engine"
    if image_done; then
        finished "up to date"
        return 0
    fi
    # Written first: when the load is cut short, an undo knows of it.
    changed "image $engine $ref"
    logged "$engine" load -i "$work/bundle/$(conf image_path)" ||
        failed 50 "$engine could not load the image" \
            "what to do: free some space where $engine keeps its images ($(engine_folder))"
    found=$(image_id "$ref")
    if [ -z "$found" ]; then
        # Loaded, but without its name.
        for each in "$(conf image_config)" "$(conf image_manifest)"; do
            ! is_proven "$(image_id "$each")" || logged "$engine" tag "${each#sha256:}" "$ref" || true
        done
        found=$(image_id "$ref")
    fi
    is_proven "$found" || failed 50 "$engine has loaded another image than the proven one: ${found:-none}" \
        "expected: configuration $(conf image_config), or manifest $(conf image_manifest)" \
        "what to do: do not use it; $engine rmi $ref"
    finished "digest compared: sha256:$found"
}
