#!/usr/bin/env bash
# Makes container images of Debian packages: `debian-image.sh NAME DIRECTORY` writes a Docker archive of the images
# warren.local/NAME:1 and NAME:2, which differ in the variable VERSION, to DIRECTORY/image.tar, and their file system
# to DIRECTORY/root. NAME is redis, nginx or postgres.
#
# The packages are unpacked and not configured. Like the official images, each starts as root; its entry point takes
# the data directory over and continues as the user of the program.
set -euo pipefail

fail() {
    echo "error: $*" >&2
    exit 1
}

[[ $# == 2 ]] || fail "usage: debian-image.sh redis|nginx|postgres DIRECTORY"
name=$1 directory=$2

base=(base-files bash coreutils dash gcc-12-base libacl1 libattr1 libc-bin libc6 libcap-ng0 libcrypt1 libgcc-s1
    libgmp10 libpcre2-8-0 libselinux1 libssl3 libstdc++6 libtinfo6 util-linux zlib1g grep sed)
case $name in
redis)
    packages=(redis-server redis-tools libatomic1 libcap2 libgcrypt20 libgpg-error0 libhiredis0.14 libjemalloc2
        liblua5.1-0 liblz4-1 liblzf1 liblzma5 libsystemd0 libzstd1 lua-bitop lua-cjson)
    ;;
nginx)
    packages=(nginx nginx-common)
    ;;
postgres)
    packages=(postgresql-15 postgresql-client-15 libaudit1 libcap2 libcom-err2 libffi8 libgcrypt20 libgnutls30
        libgpg-error0 libgssapi-krb5-2 libhogweed6 libicu72 libidn2-0 libk5crypto3 libkeyutils1 libkrb5-3
        libkrb5support0 libldap-2.5-0 liblz4-1 liblzma5 libnettle8 libp11-kit0 libpam0g libpq5 libreadline8
        libsasl2-2 libsystemd0 libtasn1-6 libunistring2 libuuid1 libxml2 libxslt1.1 libzstd1 tzdata)
    ;;
*) fail "there is no image $name; there are redis, nginx and postgres" ;;
esac

mkdir -p "$(dirname "$directory")"
work=$(mktemp -d "$directory.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/debs" "$work/root" "$work/image"
chmod 755 "$work/root"

cd "$work/debs"
download() {
    apt-get -qq -o APT::Sandbox::User=root download "${base[@]}" "${packages[@]}"
}
# A fresh machine has no lists of packages, or outdated ones.
download 2>/dev/null || { apt-get -qq update && download; }
cd "$work/root"
mkdir -p usr/bin usr/sbin usr/lib usr/lib64
for merged in bin sbin lib lib64; do ln -s "usr/$merged" "$merged"; done
for deb in ../debs/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink
done
rm -rf usr/share/doc usr/share/man usr/share/info usr/share/locale usr/share/i18n usr/lib/postgresql/15/lib/bitcode
mkdir -p data run tmp etc var
chmod 1777 tmp
rm -rf var/run && ln -s /run var/run
ln -sf dash usr/bin/sh
ln -sf /proc/self/mounts etc/mtab
printf '%s\n' 'root:x:0:0:root:/root:/bin/bash' "$name:x:999:999:$name:/data:/bin/bash" \
    'www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin' 'nobody:x:65534:65534:nobody:/:/usr/sbin/nologin' >etc/passwd
printf '%s\n' 'root:x:0:' "$name:x:999:" 'adm:x:4:' 'www-data:x:33:' 'nogroup:x:65534:' >etc/group
chroot . ldconfig

# The entry point continues as the user of the program, with the data directory as its own. Stop signals are those of
# the official images.
stop_signal=SIGTERM
as_user="exec setpriv --reuid=$name --regid=$name --clear-groups"
case $name in
redis)
    # It acknowledges what is on its disk.
    options="--bind 0.0.0.0 --protected-mode no --appendonly yes --appendfsync always"
    entry="chown -R redis /data && cd /data && $as_user redis-server $options \"\$@\""
    ;;
nginx)
    # It drops root itself. It answers what it has accepted before it ends.
    stop_signal=SIGQUIT
    entry='exec nginx -g "daemon off; error_log stderr;" "$@"'
    mkdir -p var/log/nginx var/lib/nginx var/www/html
    rm -rf etc/nginx/sites-enabled etc/nginx/modules-enabled
    mkdir -p etc/nginx/conf.d etc/nginx/modules-enabled etc/nginx/sites-enabled
    printf '%s\n' 'server {' '    listen 80;' '    root /var/www/html;' '    access_log off;' '}' >etc/nginx/conf.d/default.conf
    echo 'nginx of Warren' >var/www/html/index.html
    ;;
postgres)
    bin=/usr/lib/postgresql/15/bin
    # It does not wait for clients to disconnect.
    stop_signal=SIGINT
    mkdir -p run/postgresql
    chown 999:999 run/postgresql
    cat >usr/bin/start-postgres <<'START'
#!/bin/bash
# Makes the database at the first start, as the user postgres, with the password of POSTGRES_PASSWORD(_FILE).
set -euo pipefail
bin=/usr/lib/postgresql/15/bin
if [[ ! -s $PGDATA/PG_VERSION ]]; then
    [[ -z ${POSTGRES_PASSWORD_FILE:-} ]] || POSTGRES_PASSWORD=$(<"$POSTGRES_PASSWORD_FILE")
    if [[ -z ${POSTGRES_PASSWORD:-} ]]; then
        echo 'Error: Database is uninitialized and superuser password is not specified.' >&2
        exit 1
    fi
    $bin/initdb --no-instructions --username=postgres --pwfile=<(echo "$POSTGRES_PASSWORD") --auth=scram-sha-256
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
fi
exec $bin/postgres -c listen_addresses='*' "$@"
START
    chmod 755 usr/bin/start-postgres
    for program in psql pg_isready; do ln -sf "$bin/$program" "usr/bin/$program"; done
    entry="mkdir -p /data/db && chown -R postgres /data && chmod 700 /data/db && export PGDATA=/data/db && $as_user start-postgres \"\$@\""
    ;;
esac
printf '#!/bin/sh\nset -e\n%s\n' "$entry" >usr/bin/start
chmod 755 usr/bin/start

# The format: https://github.com/moby/docker-image-spec
cd "$work/image"
tar -C ../root --sort=name --mtime=@0 --numeric-owner -cf layer.tar .
digest=$(sha256sum layer.tar | cut -d' ' -f1)
architecture=$(dpkg --print-architecture)
images=()
for version in 1 2; do
    printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/usr/bin/start"],"Env":["PATH=/usr/sbin:/usr/bin","VERSION=%s"],"StopSignal":"%s","WorkingDir":"/data"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$architecture" "$version" "$stop_signal" "$digest" >"config-$version.json"
    images+=("{\"Config\":\"config-$version.json\",\"RepoTags\":[\"warren.local/$name:$version\"],\"Layers\":[\"layer.tar\"]}")
done
printf '[%s,%s]' "${images[@]}" >manifest.json
mkdir ../result
tar -cf ../result/image.tar manifest.json config-*.json layer.tar
mv ../root ../result/root
cd ..
# Another test may have made it in the meantime.
rm -rf "$directory"
mv -T result "$directory" || [[ -f $directory/image.tar ]]
