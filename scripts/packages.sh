# What weir builds with, on Debian and Ubuntu. Sourced by quickstart.sh and check.sh.
# install_packages NAME...: installs those that are missing, as root or through sudo.
build_packages="gcc cmake ninja-build pkg-config libdnnl-dev libjansson-dev libxxhash-dev liburing-dev libnuma-dev"
test_packages="g++ clang libomp-dev clang-format clang-tidy libcmocka-dev python3 python3-jsonschema"

install_packages() {
    missing=""
    for name in "$@"; do
        dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing="$missing $name"
    done
    if [ -z "$missing" ]; then
        echo "packages: all there"
        return
    fi
    echo "packages: installing$missing"
    sudo=""
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || { echo "need root or sudo to install:$missing" >&2; exit 1; }
        sudo="sudo"
    fi
    # An index that is a day old may still do; one that was never fetched does not.
    if ! $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1; then
        $sudo apt-get update -qq
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    fi
}
