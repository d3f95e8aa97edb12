#!/usr/bin/env bash
# Installs what was built: the command with its preload library, and the library for C with header
# and pkg-config file. `install.sh library` installs the latter only.
# PREFIX (/usr/local), LIBDIR (PREFIX/lib), INCLUDEDIR (PREFIX/include), DESTDIR and BUILT
# (target/release) may be set.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
destdir=${DESTDIR:-}
built=${BUILT:-target/release}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
# As crates/capi/build.rs names it.
case $version in
0.*) abi=$(cut -d. -f1,2 <<<"$version") ;;
*) abi=${version%%.*} ;;
esac

# Installs a file without the debugging information of everything that is linked in.
put_stripped() { # mode from to
    install -D -m "$1" "$2" "$3"
    if command -v strip >/dev/null; then strip --strip-debug "$3"; fi
}

library() {
    put_stripped 755 "$built/libpagekeeper_capi.so" "$destdir$libdir/libpagekeeper.so.$version"
    put_stripped 644 "$built/libpagekeeper_capi.a" "$destdir$libdir/libpagekeeper.a"
    [ "$version" = "$abi" ] || ln -sf "libpagekeeper.so.$version" "$destdir$libdir/libpagekeeper.so.$abi"
    ln -sf "libpagekeeper.so.$abi" "$destdir$libdir/libpagekeeper.so"
    install -D -m 644 crates/capi/include/pagekeeper.h "$destdir$includedir/pagekeeper.h"
    install -d "$destdir$libdir/pkgconfig"
    sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|$libdir|; s|@INCLUDEDIR@|$includedir|" \
        -e "s|@VERSION@|$version|" crates/capi/pagekeeper.pc.in \
        >"$destdir$libdir/pkgconfig/pagekeeper.pc"
    chmod 644 "$destdir$libdir/pkgconfig/pagekeeper.pc"
}

# The command looks for its preload library in ../lib/pagekeeper.
program() {
    install -D -m 755 "$built/pagekeeper" "$destdir$prefix/bin/pagekeeper"
    install -D -m 755 "$built/libpagekeeper_preload.so" \
        "$destdir$prefix/lib/pagekeeper/libpagekeeper_preload.so"
}

[ "${1:-all}" = library ] || program
library
# The dynamic linker's cache, where it is ours to change.
if [ -z "$destdir" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then ldconfig; fi
echo "install: pagekeeper $version in $destdir$prefix"
