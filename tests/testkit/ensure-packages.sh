#!/usr/bin/env bash
# Installs missing Debian packages: `ensure-packages.sh run` those of a node and its build,
# `ensure-packages.sh test` also those of the tests, `ensure-packages.sh soak` also those of the tests with large counts,
# `ensure-packages.sh bench` also those that Warren is measured beside. Programs from other packages count (for example a
# containerd from another repository), and apt is not called when nothing is missing.
set -euo pipefail
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

fail() {
    echo "error: $*" >&2
    exit 1
}

# need PACKAGE CONDITION...: adds the package when the condition is false.
missing=()
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

has_static_libc() {
    [[ -f $(cc -print-file-name=libc.a) ]]
}

# ldd fails for a program that needs no libraries.
has_static_busybox() {
    [[ -x /bin/busybox ]] && ! ldd /bin/busybox
}

check() {
    missing=()
    need containerd command -v containerd
    need runc command -v runc
    need iptables command -v iptables-restore
    need iproute2 command -v ip
    need nftables command -v nft
    need util-linux command -v setsid
    need gcc command -v cc
    need libc6-dev has_static_libc
    need protobuf-compiler command -v protoc
    need curl command -v curl
    need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
    if [[ $1 != run ]]; then
        [[ ! -d /sys/kernel/security/apparmor ]] || need apparmor command -v apparmor_parser
        need busybox-static has_static_busybox
        need containerd command -v ctr
        need docker-registry command -v docker-registry
        need e2fsprogs command -v mkfs.ext4
        need git command -v git
        need iproute2 command -v ss
        need mount command -v mount
        need procps command -v ps
        need util-linux command -v nsenter
    fi
    if [[ $1 == soak ]]; then
        need python3-docker /usr/bin/python3 -c 'import docker'
    fi
    if [[ $1 == bench ]]; then
        need haproxy command -v haproxy
    fi
}

[[ $# == 1 && ($1 == run || $1 == test || $1 == soak || $1 == bench) ]] ||
    fail "usage: ensure-packages.sh run|test|soak|bench"
[[ $(id -u) == 0 ]] ||
    fail "containers and network namespaces need root, but this runs as $(id -un): use sudo make $1"

command -v cargo >/dev/null ||
    fail "cargo is not in $PATH: install Rust from https://rustup.rs, or keep your PATH with" \
        "sudo env \"PATH=\$PATH\" make $1"

# extract PACKAGE PROGRAM: installs one program of a package that would start a service.
extract() {
    local package=$1 program=$2 directory
    command -v "$program" >/dev/null && return
    echo "installing $program of $package"
    directory=$(mktemp --directory)
    (
        cd "$directory"
        # As the user that downloads, apt must be able to write here.
        chmod 755 .
        apt-get update --quiet
        apt-get download --quiet "$package"
        dpkg-deb --extract ./*.deb .
        install -D --mode=755 "usr/bin/$program" "/usr/local/bin/$program"
    )
    rm --recursive --force "$directory"
}

check "$1"
if [[ ${#missing[@]} != 0 ]]; then
    command -v apt-get >/dev/null ||
        fail "these packages are missing and there is no apt-get to install them: ${missing[*]}; install them manually"
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet
    apt-get install --quiet --yes --no-install-recommends "${missing[@]}"
    check "$1"
    [[ ${#missing[@]} == 0 ]] || fail "still missing after their packages were installed: ${missing[*]}"
fi

if [[ $1 == soak ]]; then
    extract docker.io docker
    extract prometheus prometheus
fi
