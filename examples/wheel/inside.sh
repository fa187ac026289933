#!/bin/bash
# inside.sh ARCH JOBS: what make.sh runs in the minimal Debian 11, with the repository as /src: libraries, rollcall, the package.
# ARCH 'none': without the CUDA back end. Each part that is there already is not made again.
set -euo pipefail
arch=$1 jobs=$2
to=/opt/static here=/usr/lib/x86_64-linux-gnu
export PATH=/opt/py/bin:$PATH PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1
packages=(libgmp-dev libjansson-dev libmpfr-dev libncurses-dev libsnappy-dev libsqlite3-dev libzstd-dev zlib1g-dev
    libseccomp-dev libmsgpack-dev)    # these have the code to link in
# These come from the newer suite: libfyaml is not in this one, Arb is a shared library alone and the newer one wants a newer FLINT, the Unicode tables of
# utf8proc and PCRE2 are those that the tokenizers were compared with, and the TLS libraries are still mended.
sources=(libfyaml nng mbedtls openssl curl utf8proc pcre2 flint flint-arb)

if [ ! -x /opt/py/bin/auditwheel ]; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${packages[@]}" dpkg-dev file g++ gcc libc6-dev m4 make ninja-build patch perl pkg-config python3 \
        python3-venv xz-utils >/dev/null
    python3 -m venv /opt/py
    pip install -q 'cmake>=3.22,<4' auditwheel
fi
# The linker takes an archive where there is no shared library.
for so in $here/lib*.so; do
    [ ! -L "$so" ] || [ ! -e "${so%.so}.a" ] || dpkg -S "$so" 2>/dev/null | grep -q "^libc6-dev" || rm "$so"
done

mkdir -p /opt/src $to
cd /opt/src
for name in "${sources[@]}"; do
    ls -d "$name"-[0-9]*/ >/dev/null 2>&1 || apt-get source -qq --only-source "$name" 2>&1 | tail -n 1
done
export CFLAGS='-O2 -g0 -fPIC'
by_cmake() {
    local name=$1
    shift
    cmake -S /opt/src/"$name"-[0-9]*/ -B "/opt/work/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$to -DCMAKE_PREFIX_PATH=$to \
        -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF "$@" >/dev/null
    cmake --build "/opt/work/$name" -j "$jobs" --target install >/dev/null
}
built() { [ -e "$to/lib/lib$1.a" ]; }
built utf8proc || by_cmake utf8proc
built pcre2-8 || by_cmake pcre2 -DPCRE2_SUPPORT_JIT=ON -DPCRE2_BUILD_TESTS=OFF -DPCRE2_BUILD_PCRE2GREP=OFF
built mbedtls || by_cmake mbedtls -DENABLE_TESTING=OFF -DENABLE_PROGRAMS=OFF -DUSE_STATIC_MBEDTLS_LIBRARY=ON
built nng || by_cmake nng -DNNG_ENABLE_TLS=ON -DNNG_TESTS=OFF -DNNG_TOOLS=OFF -DMBEDTLS_ROOT_DIR=$to
built fyaml || (
    cd libfyaml-*/
    ./configure --prefix=$to --disable-shared --disable-network >/dev/null
    make -j "$jobs" install >/dev/null
)
built flint || (
    cd flint-[0-9]*/
    ./configure --prefix=$to --disable-shared --with-gmp=/usr --with-mpfr=/usr CFLAGS='-O2 -fPIC -ansi -pedantic -funroll-loops' >/dev/null
    make -j "$jobs" library >/dev/null
    make install >/dev/null
)
built arb || (
    cd flint-arb-[0-9]*/
    ./configure --prefix=$to --disable-shared --with-flint=$to >/dev/null
    make -j "$jobs" library >/dev/null
    make install >/dev/null
)
# Its certificates are the system's; nothing of it is loaded at run time.
built crypto || (
    cd openssl-*/
    ./Configure --prefix=$to --libdir=lib --openssldir=/etc/ssl no-shared no-tests no-engine no-module no-dso no-legacy no-cmp no-cms no-ts \
        no-srp no-idea no-camellia no-seed no-bf no-cast no-rc2 no-rc4 no-sm2 no-sm3 no-sm4 no-mdc2 no-whirlpool no-aria no-comp no-dtls \
        linux-x86_64 >/dev/null
    make -s build_generated
    make -s -j "$jobs" libcrypto.a libssl.a libcrypto.pc libssl.pc
    make -s install_dev >/dev/null
)
built curl || by_cmake curl -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DHTTP_ONLY=ON -DCURL_USE_LIBSSH2=OFF -DCURL_USE_OPENSSL=ON \
    -DOPENSSL_ROOT_DIR=$to -DOPENSSL_USE_STATIC_LIBS=ON -DENABLE_MANUAL=OFF -DUSE_LIBIDN2=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF -DUSE_NGHTTP2=OFF \
    -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_PATH=none
unset CFLAGS

cuda=(-DRC_CUDA=OFF) major=''
if [ "$arch" != none ]; then
    cuda=(-DRC_CUDA=ON -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc "-DRC_CUDA_ARCH=$arch")
    major=$(/usr/local/cuda/bin/nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
fi
# archives that use each other: what pkg-config does not know
rest='-Wl,--start-group -lnng -lmbedtls -lmbedx509 -lmbedcrypto -larb -lflint -lmpfr -lgmp -lcurl -lssl -lcrypto -lz -lsnappy -l:libstdc++.a -Wl,--end-group -lm -ldl -lpthread'
PKG_CONFIG_PATH=$to/lib/pkgconfig cmake -S /src -B /opt/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DRC_TESTS=OFF "${cuda[@]}" \
    -DCMAKE_PREFIX_PATH=$to -DPKG_CONFIG_ARGN=--static -DCMAKE_EXE_LINKER_FLAGS="-static-libgcc -L$to/lib" \
    -DCMAKE_SHARED_LINKER_FLAGS="-static-libgcc -static-libstdc++" -DCMAKE_C_STANDARD_LIBRARIES="$rest" >/dev/null
cmake --build /opt/build -j "$jobs" | tail -n 1
rm -rf /opt/stage
cmake --install /opt/build --prefix /opt/stage --strip >/dev/null

cd /src
[ -e build/starter/config.json ] || ROLLCALL=/opt/build/rollcall examples/make_starter.sh
mkdir -p /opt/licenses
for name in "${packages[@]}"; do cp "/usr/share/doc/$name/copyright" "/opt/licenses/${name%-dev}.txt"; done
for name in "${sources[@]}"; do cp /opt/src/"$name"-[0-9]*/debian/copyright "/opt/licenses/$name.txt"; done
glibc=$(objdump -T /opt/stage/bin/rollcall $(find /opt/stage/lib -name '*.so') | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -n 1)
rm -f build/wheel/rollcall-*.whl
python3 examples/wheel/pack.py /opt/stage build/wheel --glibc "${glibc#GLIBC_}" --starter build/starter --data build/data --licenses /opt/licenses \
    ${major:+--cuda "$major"}
echo "needs at run time, beside what brings a card's code: $(readelf -d /opt/stage/bin/rollcall $(find /opt/stage/lib -name '*.so') |
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | tr '\n' ' ')"
auditwheel show build/wheel/rollcall-*.whl || true
