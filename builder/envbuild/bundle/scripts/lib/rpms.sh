# shellcheck shell=sh disable=SC2154,SC2034
# Read by install.sh. Packages go in by dnf or yum, by name, from the bundle alone, with every signature checked.
# Never --nogpgcheck, --nodeps or --allowerasing. What yum 3 does with these options is taken from its manual.

# A name may have signs that a shell would expand.
with_roots() { # with_roots COMMAND...: and the names of the packages
    set -f
    # shellcheck disable=SC2046 # one word each
    set -- "$@" $(conf root)
    set +f
    "$@"
}
keys() { cut -c67- "$sums" | grep '^keys/.*\.asc$' | grep -vx 'keys/bundle.asc' || true; }
of_bundle() { sed -n 's|.*  rpms/Packages/\(.*/\)\{0,1\}\([^/]*\)\.rpm$|\2|p' "$sums" | sort; }
installed() { rpm -q "$1" > /dev/null 2>&1 || rpm -q --whatprovides "$1" > /dev/null 2>&1; }
all_installed() {
    conf root > "$scratch/roots"
    while read -r root; do
        case $root in
            @*) continue ;;
        esac
        installed "$root" || return 1
    done < "$scratch/roots"
}

# The host's own settings stay in force (excluded packages, for one), its repositories do not; what the packager writes
# besides packages goes into a folder that is removed again.
write_packager_conf() {
    hosts=/etc/dnf/dnf.conf
    ours='reposdir|cachedir|logdir|logfile|gpgcheck|localpkg_gpgcheck|install_weak_deps|skip_if_unavailable|tsflags'
    ours="$ours|best|assumeno|assumeyes|exit_on_lock|proxy|color|keepcache|metadata_expire"
    case $packager in
        */yum) [ ! -e /etc/yum.conf ] || hosts=/etc/yum.conf ;;
    esac
    {
        printf '[main]\n'
        # Of its own section alone, and a line that is left out with all that continues it.
        awk -v ours="^($ours)[ \t]*=" '
            /^\[/ { main = $0 ~ /^\[main\]/; next }
            /^[^ \t]/ { kept = $0 !~ ours }
            main && kept' "$hosts" 2> /dev/null || true
        # The best version of what is named, as it was resolved: without, what is installed already is never updated.
        printf '%s\n' reposdir=/dev/null "cachedir=$work/cache" gpgcheck=1 install_weak_deps=0 skip_if_unavailable=0 best=1 \
            assumeyes=1 exit_on_lock=1 color=never keepcache=0
        # Even a question is written into the history otherwise.
        [ "$dry_run" = no ] || printf '%s\n' "persistdir=$work/persist" "logdir=$work" "logfile=$work/packager.log"
        printf '%s\n' "[envbuild-$name]" "name=envbuild bundle $name" "baseurl=file://$work/bundle/rpms" enabled=1 gpgcheck=1 \
            skip_if_unavailable=0 metadata_expire=1
        # Its index is signed with the key of the bundle, as its sums are; packages with the keys of those who made them.
        ! grep -q '  rpms/repodata/repomd\.xml\.asc$' "$sums" || printf 'repo_gpgcheck=1\n'
        conf module | grep -q ' hotfixes$' && printf 'module_hotfixes=1\n'
        printf 'gpgkey=file://%s/keys/bundle.asc\n' "$believed"
        keys | while read -r key; do printf '    file://%s/%s\n' "$believed" "$key"; done
    } > "$work/packager.conf"
    packager_conf=$work/packager.conf
}

# Plugins that ask servers for news have nothing to ask here. One that is not there is no error.
packager() { # packager COMMAND ARGUMENT...
    command=$1
    shift
    "$packager" -c "$packager_conf" --disablerepo='*' --enablerepo="envbuild-$name" \
        --disableplugin='subscription-manager,product-id,rhnplugin,fastestmirror,spacewalk' "$command" "$@"
}
# What would be done, without doing it. That ends with 1 when all is well, so the last word counts. A packager that may do
# nothing may take no key either, so the index is not checked once more: its sum is signed, and was right.
only_resolve() {
    sed 's/^assumeyes=1/assumeno=1/; s/^repo_gpgcheck=1/repo_gpgcheck=0/' "$work/packager.conf" > "$work/resolving.conf"
    resolved=0
    packager_conf=$work/resolving.conf
    packager install "$@" > "$work/resolved" 2>&1 || resolved=$?
    packager_conf=$work/packager.conf
    ! grep -Eq 'Operation aborted|Exiting on user command' "$work/resolved" || resolved=0
    cat "$work/resolved"
    return "$resolved"
}
# dnf lets rpm test the transaction and says how that went. What yum 3 says then is not known here, so it only resolves;
# rpm's test is the first thing of its real run, too.
try() {
    case $packager in
        */yum) only_resolve "$@" ;;
        *) packager install --setopt=tsflags=test "$@" ;;
    esac
}

# What an earlier run has brought along with what is named, and this bundle has in another version. What a package of the host is tied to
# stays as it is: that is no reason to refuse the rest.
older() {
    sed -n 's/^installed //p' "$state/changed" 2> /dev/null | sed 's/-[0-9]*:[^-]*-[^-]*$//' | sort -u > "$scratch/ours"
    conf root | sort > "$scratch/named"
    of_bundle | sed 's/-[^-]*-[^-]*$//' | sort -u | comm -12 "$scratch/ours" - | comm -23 - "$scratch/named" | while read -r each; do
        rpm -q --queryformat '%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}\n' "$each" 2> /dev/null | sort > "$scratch/has" || continue
        of_bundle | comm -13 - "$scratch/has" | grep -q . && printf '%s\n' "$each"
    done || true
}
update_older() {
    [ -s "$scratch/older" ] || return 0
    set -f
    # shellcheck disable=SC2046 # one word each
    set -- $(cat "$scratch/older")
    set +f
    updated=0
    packager upgrade --setopt=best=0 "$@" > "$work/updated" 2>&1 || updated=$?
    cat "$work/updated"
    # Held back by the host, all of them: that is its right.
    ! grep -q 'No packages marked for upgrade' "$work/updated" || updated=0
    return "$updated"
}

history() { "$packager" -c "$work/packager.conf" history "$@" 2> /dev/null; }
history_top() { history list | awk -F'|' '$1 ~ /^ *[0-9]+ *$/ { print $1 + 0; exit }'; }
history_since() { # the transactions since ID that were made with this bundle
    history list | awk -F'|' -v after="$1" '$1 ~ /^ *[0-9]+ *$/ && $1 + 0 > after { print $1 + 0 }' |
        while read -r id; do
            history info "$id" | grep -q "envbuild-$name" && printf '%s\n' "$id"
        done || true
}

# The stream that the host has chosen of a module.
stream_of() { sed -n 's/^stream *= *//p' "/etc/dnf/modules.d/$1.module" 2> /dev/null | head -n 1; }
to_enable() { # modules that are to be enabled, and are not
    conf module | sed -n 's/ enable$//p' | while read -r each; do
        [ "$(stream_of "${each%%:*}")" = "${each#*:}" ] || printf '%s\n' "$each"
    done
}
check_streams() {
    to_enable > "$scratch/streams"
    while read -r each; do
        chosen=$(stream_of "${each%%:*}")
        [ -z "$chosen" ] || stop 30 \
            "this host has chosen the stream '$chosen' of the module ${each%%:*}, and the bundle needs '${each#*:}'" \
            "what to do: if nothing needs the other one: dnf module reset ${each%%:*}; then run this again"
    done < "$scratch/streams"
}

# Into a database of rpm's own that is thrown away: whether every package is signed, with a key of the bundle.
check_packages() {
    mkdir -p "$scratch/rpmdb"
    keys > "$scratch/keys"
    [ -s "$scratch/keys" ] || stop 12 "the bundle has no key for its packages (keys/*.asc)" "what to do: export it again"
    while read -r key; do
        rpm --dbpath "$scratch/rpmdb" --import "$believed/$key" > "$scratch/said" 2>&1 || {
            named "$scratch/said" 5
            stop 30 "rpm does not take the key $key" \
                "what to do: its algorithm may be forbidden on this host (SHA-1 is, from release 9 on):" \
                "update-crypto-policies --show tells; ask the maker of the packages for a newer key, and export again"
        }
    done < "$scratch/keys"
    # Without that macro a package that nobody signed is fine for older rpms, so what is said is read too.
    (
        cd "$here/rpms/Packages" && find . -name '*.rpm' -exec \
            rpm --dbpath "$scratch/rpmdb" --define '_pkgverify_level all' -K {} + 2>&1
    ) > "$scratch/signatures" || true
    # Older ones name each check, what is wrong in capitals: "rsa sha1 MD5 NOT OK".
    {
        grep 'NOT OK' "$scratch/signatures"
        grep -Ev ': (digests signatures OK|.*(pgp|gpg|rsa).* OK)$' "$scratch/signatures"
    } > "$scratch/unsigned" || true
    if [ -s "$scratch/unsigned" ]; then
        named "$scratch/unsigned"
        stop 10 "packages of the bundle are not signed with a key of the bundle, or were changed" \
            "what to do: export it again; this check is made there too, so ask who changed it"
    fi
    # One that rpm did not even name was not looked at.
    [ "$(wc -l < "$scratch/signatures")" -ge "$(of_bundle | grep -c .)" ] || stop 10 \
        "rpm looked at $(wc -l < "$scratch/signatures") of $(of_bundle | grep -c .) packages, and then it ended" \
        "what to do: rpm -K says why; install nothing before it looks at all of them"
    check_streams
    say "  $(wc -l < "$scratch/signatures") packages: every signature is right"
}

summary() { # of the packager's log: what is going to happen, and which packages of the host are replaced
    awk '/^Transaction Summary/ { on = 1; next }
        on && /^(Install|Upgrade|Downgrade|Remove|Reinstall) / { $1 = $1; printf "%s%s", sep, $0; sep = ", " }' "$log"
}
would_lines() { # of the packager's log: every package, and where it comes under
    awk '/^(Installing|Upgrading|Updating|Downgrading|Removing|Reinstalling)[a-z ]*:/ { on = 1; print; next }
        /^[^ ]/ || /^$/ { on = 0 }
        on { print }' "$log"
}
replaced_lines() {
    awk '/^(Upgrading|Updating|Updating for dependencies|Downgrading|Removing|Reinstalling):/ { on = 1; print; next }
        /^[^ ]/ || /^$/ { on = 0 }
        on { print }' "$log"
}

refused() {
    failed 30 "rpm refused the transaction; no package was installed" \
        "what to do: 'nothing provides' names what the bundle lacks for this host: sh collect-target.sh -o target.txt here," \
        "then envbuild export ... --target-manifest target.txt. 'conflicts' names a package of this host that is in the way." \
        "'exclude' or 'versionlock': this host holds packages back. 'lock': another dnf or yum works; wait for it."
}

would_rpms() {
    step rpms "packages: what is to be done"
    if [ "$(id -u)" -ne 0 ]; then
        told="$(conf rpm_count) packages; whether they fit is only told to root"
        ! all_installed || told='all are installed'
        finished "$told"
        return 0
    fi
    write_packager_conf
    [ ! -s "$scratch/streams" ] || printf 'module_hotfixes=1\n' >> "$work/packager.conf"
    # Nothing is imported in a dry run, and a test with gpgcheck wants the keys: so what would be done is resolved only.
    logged with_roots only_resolve || refused
    would_lines | sed 's/^/  /'
    older | sed 's/^/  update, where what is installed allows it: /'
    if grep -q '^Nothing to do' "$log"; then finished "all are installed"; else finished "it would be: $(summary)"; fi
}
take_back() { # what the transaction needed, when it was refused
    settle_keys || true
    sed -n 's/^key //p' "$state/changed" > "$scratch/taken" 2> /dev/null || true
    while read -r each; do rpm -e --allmatches "$each" > /dev/null 2>&1 || true; done < "$scratch/taken"
    sed -n 's/^module //p' "$state/changed" > "$scratch/taken" 2> /dev/null || true
    while read -r each; do packager module reset "${each%%:*}" > /dev/null 2>&1 || true; done < "$scratch/taken"
    sed '/^key /d; /^module /d' "$state/changed" > "$state/changed.new" && mv -f "$state/changed.new" "$state/changed"
}

install_rpms() {
    step rpms-check "packages: keys, then a test of the transaction"
    : > "$log"
    write_packager_conf
    first=yes
    ! grep -q '^installed ' "$state/changed" 2> /dev/null || first=no
    also own-packages of_bundle
    also own-keys rpm --dbpath "$scratch/rpmdb" -qa 'gpg-pubkey*'
    before history history_top
    before packages list_packages
    before keys list_keys
    while read -r key; do logged rpm --import "$believed/$key" || failed 30 "rpm does not take the key $key"; done < "$scratch/keys"
    settle_keys || unlisted
    while read -r each; do
        changed "module $each"
        logged packager module enable "$each" || {
            [ "$first" = no ] || take_back
            failed 30 "the module stream $each cannot be enabled" "what to do: dnf module list --enabled tells what is in the way"
        }
    done < "$scratch/streams"
    logged with_roots try || {
        [ "$first" = no ] || take_back
        refused
    }
    replaced_lines | sed 's/^/  /'
    older > "$scratch/older"
    if grep -q '^Nothing to do' "$log" && [ ! -s "$scratch/older" ]; then
        finished "all packages are installed"
        step rpms "installing packages"
        finished "nothing to do"
    else
        told=$(summary)
        finished "rpm accepts: ${told:-nothing new of what is named}"
        step rpms "installing packages"
        say "  until this is done do not switch the host off; Ctrl-C is ignored"
        : > "$log"
        trap '' INT TERM HUP
        code=0
        logged with_roots packager install || code=$?
        [ "$code" -ne 0 ] || logged update_older || code=$?
        trap interrupted INT TERM HUP
        settle_packages || unlisted
        if [ "$code" -ne 0 ] && ! grep -q '^Running transaction$' "$log" && grep -Eqi 'transaction (check|test) error' "$log"; then
            [ "$first" = no ] || take_back
            refused
        fi
        [ "$code" -eq 0 ] || failed 31 "the transaction failed; what was installed until then is listed below" \
            "what to do: the lines above name the package and its script; run this again when the cause is gone"
        told=$(summary)
        finished "${told:-nothing to do}"
    fi
    settle_packages || unlisted
    older > "$scratch/kept"
    [ ! -s "$scratch/kept" ] ||
        say "  not in the bundle's version, as this host holds or has updated them: $(tr '\n' ' ' < "$scratch/kept")"
    # yum 3 is content when it found some of them.
    conf root > "$scratch/roots"
    while read -r root; do
        case $root in
            @*) continue ;;
        esac
        installed "$root" || failed 31 "$root is not installed, though ${packager##*/} said that all went well"
    done < "$scratch/roots"
    verify_packages
}

# Settings that an administrator has changed (c) and files that programs write (g) are no damage.
verify_packages() {
    of_bundle | while read -r each; do
        rpm -q "$each" > /dev/null 2>&1 || continue
        rpm -V "$each" 2>&1 | grep -Ev '^.{9,13} [cg] /|^missing +[cdg] ' | sed "s|^|$each: |" || true
    done > "$scratch/rpm-v"
    checked=$(of_bundle | while read -r each; do rpm -q "$each" 2> /dev/null | grep -v 'not installed' || true; done | wc -l)
    if [ -s "$scratch/rpm-v" ]; then
        named "$scratch/rpm-v"
        proved rpm_verify "$(js_lines < "$scratch/rpm-v")"
        failure="rpm -V"
        stop 60 "files of installed packages are not what the packages say (rpm -V)" \
            "what to do: rpm -V NAME explains the letters; dnf reinstall NAME restores its files"
    fi
    proved rpm_verify "\"clean: $checked packages\""
}
