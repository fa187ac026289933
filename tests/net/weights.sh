#!/bin/bash
# weights.sh [RATE] [MIB]: how long a new version of the weights takes to a node over a network of RATE (10gbit), as root
#
# Two network namespaces with a link between them that tc limits both ways; 'tests/bench fetch' is the head in one and the node in
# the other, with MIB of bf16 weights (1024) and the change of an AdamW step at 1e-6: whole, as differences, and as differences that another
# node has got already. Prints a line of JSON each; scaled_to_7b_s is s times 15.2 GB by the bytes that were sent, on as many cores
# as 'cores' says, which head and node share here. The link's plain rate comes first, so that the figures can be judged by it.
#
# LINK="delay 40;loss 0.01": the link is build/release/tests/link (tests/net/link.c) with these orders, and no tc; RATE is ignored.
# DELTAS=1: not whole. PLAIN_MIB=N: so much of plain TCP (1024).
# Without ip or tc, or without the right to make namespaces, it says so and measures over this machine's loopback: no rate, no delay.
set -eu
cd "$(dirname "$0")/../.."
rate=${1-10gbit} mib=${2:-1024} rollcall=${ROLLCALL:-build/release/rollcall} at=10.213.7
link=$(dirname "$rollcall")/tests/link bench=$(dirname "$rollcall")/tests/bench
[ -x "$rollcall" ] || { echo "weights.sh: no '$rollcall'; build the release preset or set ROLLCALL" >&2; exit 2; }
dir=$(mktemp -d /dev/shm/rollcall-net-XXXXXX)    # memory, so that no disk is measured
trap 'eval "$undo"; rm -rf "$dir"' EXIT
undo=:
in_head=() in_node=() netns=()

# The namespaces head and node, joined by a link that tc limits. False: not possible here.
tc_link() {
    head=rcw$$h node=rcw$$n
    command -v ip >/dev/null && command -v tc >/dev/null && ip netns add $head 2>/dev/null || return 1
    undo='ip netns del $head 2>/dev/null; ip netns del $node 2>/dev/null'
    ip netns add $node && ip link add veth0 netns $head type veth peer name veth0 netns $node || return 1
    n=1
    for ns in $head $node; do
        ip -n $ns addr add $at.$n/24 dev veth0 && ip -n $ns link set lo up && ip -n $ns link set veth0 up &&
            tc -n $ns qdisc add dev veth0 root tbf rate "$rate" burst 8mb latency 50ms || return 1
        n=$((n + 1))
    done
    in_head=(ip netns exec $head) in_node=(ip netns exec $node) netns=(--netns $node)
}

# The same by the program link, with the orders of LINK.
own_link() {
    coproc LINK_PROGRAM { exec "$link" 1; }
    read -r ready head node <&"${LINK_PROGRAM[0]}" || { echo "weights.sh: there is no link" >&2; exit 2; }
    while read -r order; do
        echo "$order" >&"${LINK_PROGRAM[1]}"
        read -r answer <&"${LINK_PROGRAM[0]}"
        [ "$answer" = ok ] || { echo "weights.sh: $answer" >&2; exit 2; }
    done < <(tr ';' '\n' <<<"$LINK")
    in_head=(nsenter "--net=$head") in_node=(nsenter "--net=$node") netns=(--netns "$node")
}

if [ -n "${LINK:-}" ]; then
    own_link
elif ! tc_link; then
    eval "$undo"
    undo=:
    at=127.0.0 in_head=() in_node=() netns=()
    echo "weights.sh: no namespaces with ip and tc here: over loopback, which has no rate to keep to" >&2
fi
to=$at.1
[ "$at" = 127.0.0 ] || to=$at.2
# Plain TCP through the same link.
"${in_node[@]}" timeout 120 python3 - "$to" <<'PY' &
import socket, sys, time
s = socket.create_server((sys.argv[1], 29518))
c, _ = s.accept()
into, n, began = bytearray(1 << 20), 0, time.monotonic()
while (k := c.recv_into(into)):
    n += k
print('{"bench":"plain tcp","bytes":%d,"s":%.3f,"gb_per_s":%.4f}' % (n, time.monotonic() - began, n / (time.monotonic() - began) / 1e9))
PY
plain=$!
"${in_head[@]}" timeout 120 python3 - "$to" "${PLAIN_MIB:-1024}" <<'PY'
import socket, sys, time
end = time.monotonic() + 20
while True:
    try:
        c = socket.create_connection((sys.argv[1], 29518), timeout=60)
        break
    except OSError:
        if time.monotonic() > end:
            raise
data = bytes(1 << 20)
for _ in range(int(sys.argv[2])):
    c.sendall(data)
c.close()
PY
wait $plain
"${in_head[@]}" timeout 600 "$bench" fetch --listen $at.1:29517 "${netns[@]}" --mib "$mib" --dir "$dir" ${DELTAS:+--deltas}
