#!/usr/bin/env bash
# Installs the Debian packages that are missing: `ensure-packages.sh run` for what a node and its build need,
# `ensure-packages.sh test` for what the tests need as well. What is there by whatever name is left alone (a
# containerd from another repository counts), and nothing is asked of apt when nothing is missing.
set -euo pipefail
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

fail() {
    echo "error: $*" >&2
    exit 1
}

# need PACKAGE CONDITION...: notes the package when the condition does not hold.
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
    need util-linux command -v setsid
    need gcc command -v cc
    need libc6-dev has_static_libc
    need protobuf-compiler command -v protoc
    need curl command -v curl
    need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
    if [[ $1 == test ]]; then
        need busybox-static has_static_busybox
        need containerd command -v ctr
        need docker-registry command -v docker-registry
        need e2fsprogs command -v mkfs.ext4
        need git command -v git
        need iproute2 command -v ss
        need mount command -v mount
        need nftables command -v nft
        need procps command -v ps
        need util-linux command -v nsenter
    fi
}

[[ $# == 1 && ($1 == run || $1 == test) ]] || fail "usage: ensure-packages.sh run|test"
[[ $(id -u) == 0 ]] ||
    fail "this needs root, for containers and network namespaces, but runs as $(id -un): use sudo make $1"

command -v cargo >/dev/null ||
    fail "there is no cargo in $PATH: install Rust from https://rustup.rs, or keep your PATH with" \
        "sudo env \"PATH=\$PATH\" make $1"

check "$1"
[[ ${#missing[@]} == 0 ]] && exit 0

command -v apt-get >/dev/null ||
    fail "these are missing and there is no apt-get to install them: ${missing[*]}; install them by hand"
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --quiet --yes --no-install-recommends "${missing[@]}"

check "$1"
[[ ${#missing[@]} == 0 ]] || fail "still missing after their packages were installed: ${missing[*]}"
