#!/usr/bin/env bash
# Proves that the tests can see a missing wait: each call in the source of replay that orders
# streams or threads through an event (wait, record, query, sync) is replaced by success in turn, and
# the same-bits property must fail under ThreadSanitizer (a race, other bits, an error, or no end). One
# more mutant lets a stream start before the transfer that it waits for is complete.
# Needs build/tsan.
set -uo pipefail
cd "$(dirname "$0")/.."
build=build/tsan
work=$build/mutants
mkdir -p "$work"
python3 - "$work" <<'PY'
import re, sys
number = 0
for path in ("offload/driver.c", "offload/replay.c", "offload/replay_events.c"):
    text = open(path).read()
    for call in re.finditer(r"(?:\w+(?:->|\.))+table->(event_wait|event_record|event_query|event_sync|stream_sync)\(", text):
        depth, end = 1, call.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        line = text.count("\n", 0, call.start()) + 1
        name = f"{sys.argv[1]}/{number:02d}"
        open(name + ".c", "w").write(text[: call.start()] + "WEIR_OK" + text[end:])
        open(name + ".txt", "w").write(f"{path}:{line} {call[1]}\n{path}\n")
        number += 1
path, wait = "offload/driver.c", "(apart ? on->complete : on->begun)"
text = open(path).read()
assert text.count(wait) == 1
name = f"{sys.argv[1]}/{number:02d}"
open(name + ".c", "w").write(text.replace(wait, "(weir_lane_is_io(op->lane) ? on->complete : on->begun)"))
open(name + ".txt", "w").write(f"{path}:{text.count(chr(10), 0, text.index(wait)) + 1} waits_met\n{path}\n")
PY
# A test that fails by itself would report every mutant.
(cd tests && WEIR_DRAWS=12 TSAN_OPTIONS="suppressions=$PWD/tsan.supp halt_on_error=1" \
    ../$build/tests/prop_replay >"../$work/none.log" 2>&1) ||
    { tail -n 20 "$work/none.log"; echo "prop_replay fails without any mutant"; exit 1; }
status=0
count=0
link=$(ninja -C $build -t commands tests/prop_replay | tail -n 1 | sed 's/^: && //; s/ && :$//')
for mutant in "$work"/*.c; do
    { read -r what; read -r path; } <"${mutant%.c}.txt"
    compile=$(ninja -C $build -t commands "CMakeFiles/weir_objects.dir/$path.o" | tail -n 1)
    object=$PWD/${mutant%.c}.o
    compile=${compile/ -o CMakeFiles*/ -Wno-error -o $object -c $PWD/$mutant}
    (cd $build && eval "${compile/ -MD / }" 2>/dev/null) || { echo "$what: does not compile"; status=1; continue; }
    (cd $build && eval "${link/ -o tests\/prop_replay / -o mutants/test $object }") || { status=1; continue; }
    count=$((count + 1))
    if (cd tests && WEIR_DRAWS=12 TSAN_OPTIONS="suppressions=$PWD/tsan.supp halt_on_error=1" \
        timeout 60 "../$build/mutants/test" >/dev/null 2>&1); then
        echo "NOT SEEN: $what"
        status=1
    else
        echo "reported: $what"
    fi
done
echo "$count mutants of waits"
[ "$count" -gt 0 ] && [ $status -eq 0 ]
