#!/bin/bash
# weights.sh [RATE] [MIB]: how long a new version of the weights takes to a node over a network of RATE (10gbit), as root
#
# Two network namespaces with a link between them that tc limits both ways; 'rollcall bench fetch' is the head in one and the node in
# the other, with MIB of bf16 weights (1024) and the change of an AdamW step at 1e-6: whole, as differences, and as differences that another
# node has got already. Prints a line of JSON each; scaled_to_7b_s is s times 15.2 GB by the bytes that were sent, on as many cores
# as 'cores' says, which head and node share here. The link's plain rate comes first, so that the figures can be judged by it.
set -eu
cd "$(dirname "$0")/../.."
rate=${1:-10gbit} mib=${2:-1024} rollcall=${ROLLCALL:-build/release/rollcall}
head=rcw$$h node=rcw$$n
[ "$(id -u)" = 0 ] || { echo "weights.sh: network namespaces need root" >&2; exit 2; }
[ -x "$rollcall" ] || { echo "weights.sh: no '$rollcall'; build the release preset or set ROLLCALL" >&2; exit 2; }
dir=$(mktemp -d /dev/shm/rollcall-net-XXXXXX)    # memory, so that no disk is measured
trap 'ip netns del $head 2>/dev/null; ip netns del $node 2>/dev/null; rm -rf "$dir"' EXIT
ip netns add $head
ip netns add $node
ip link add veth0 netns $head type veth peer name veth0 netns $node
n=1
for ns in $head $node; do
    ip -n $ns addr add 10.213.7.$n/24 dev veth0
    ip -n $ns link set lo up
    ip -n $ns link set veth0 up
    tc -n $ns qdisc add dev veth0 root tbf rate "$rate" burst 8mb latency 50ms
    n=$((n + 1))
done
# Plain TCP of 1 GiB through the same link.
ip netns exec $node timeout 120 python3 - <<'PY' &
import socket, time
s = socket.create_server(("10.213.7.2", 29518))
c, _ = s.accept()
into, n, began = bytearray(1 << 20), 0, time.monotonic()
while (k := c.recv_into(into)):
    n += k
print('{"bench":"plain tcp","bytes":%d,"s":%.3f,"gb_per_s":%.2f}' % (n, time.monotonic() - began, n / (time.monotonic() - began) / 1e9))
PY
plain=$!
ip netns exec $head timeout 120 python3 - <<'PY'
import socket, time
end = time.monotonic() + 20
while True:
    try:
        c = socket.create_connection(("10.213.7.2", 29518), timeout=60)
        break
    except OSError:
        if time.monotonic() > end:
            raise
data = bytes(1 << 20)
for _ in range(1024):
    c.sendall(data)
c.close()
PY
wait $plain
ip netns exec $head timeout 600 "$rollcall" bench fetch --listen 10.213.7.1:29517 --netns $node --mib "$mib" --dir "$dir"
