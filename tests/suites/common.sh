# Functions of the scripts that build suites. `$work` is the folder of the suite; nothing is written elsewhere.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")

die() {
    printf 'suites: %s\n' "$*" >&2
    exit 1
}

# Downloads Debian packages into $work/packages, if they are not there. Needs no root rights.
fetch_packages() {
    command -v apt-get >/dev/null || die 'apt-get is missing: the suites come from Debian packages'
    mkdir -p "$work/packages"
    local package
    for package; do
        compgen -G "$work/packages/${package}_*.deb" >/dev/null ||
            (cd "$work/packages" && apt-get -q download "$package") >>"$work/fetch.log" 2>&1 ||
            die "package $package cannot be downloaded: see $work/fetch.log"
    done
}

# Unpacks downloaded packages into a folder.
unpack_packages() {
    local folder=$1 package
    shift
    for package; do
        dpkg-deb --fsys-tarfile "$(compgen -G "$work/packages/${package}_*.deb" | head -n 1)" |
            tar -C "$folder" --keep-directory-symlink -x
    done
}

# Makes an empty root file system in $work/root, with busybox and the driver.
make_root() {
    rm -rf "$work/root"
    mkdir -p "$work"/root/{bin,dev,etc,proc,root,suite,sys,tmp,usr/bin,var/tmp}
    chmod 1777 "$work"/root/{tmp,var/tmp}
    cp /bin/busybox "$work/root/bin/busybox"
    local applet
    for applet in $(/bin/busybox --list); do
        [[ $applet == busybox ]] || ln -s busybox "$work/root/bin/$applet"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n' >"$work/root/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$work/root/etc/group"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$work/root/etc/hosts"
    printf 'hosts: files dns\n' >"$work/root/etc/nsswitch.conf"
    gcc -O1 -Wall -static -o "$work/root/suite/driver" "$here/driver.c"
    : >"$work/root/suite/programs"
}

# Adds a program to the list of the driver: a name, its time limit in seconds, its command.
program() { printf '%s %s %s\n' "$1" "$2" "$3" >>"$work/root/suite/programs"; }
