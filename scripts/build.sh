# Sourced by quickstart.sh and check.sh.
# build_preset PRESET: configures and builds it; the log is build/PRESET/log, of which a failure shows the errors.
build_preset() {
    cmake --preset "$1" >/dev/null
    cmake --build --preset "$1" -j "$(nproc)" >"build/$1/log" 2>&1 ||
        { grep -E "error|warning|undefined" "build/$1/log" || cat "build/$1/log"; return 1; }
    tail -n 1 "build/$1/log"
}

# tool_14 NAME: that of LLVM 14, by whose form and checks this tree is kept; others have others. Prints nothing and
# fails where it is not there.
tool_14() {
    local name
    for name in "$1-14" "$1"; do
        if "$name" --version 2>/dev/null | grep -q "version 14\."; then
            echo "$name"
            return
        fi
    done
    return 1
}
