#!/bin/bash
# ssh.sh - train on a list of hosts over a real ssh: an sshd of its own on the loopback, with keys of its own, in a scratch folder
#
#   tests/ssh.sh [CASE...]       cases are those of tests/ssh_cases.py; all without a name
#
# Needs openssh-server (apt install openssh-server) and build/release/rollcall. Works as root and as an ordinary user, takes half a minute,
# touches no ~/.ssh, leaves nothing behind, and is no part of tests/run.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
sshd=$(PATH=$PATH:/usr/sbin command -v sshd) && ssh=$(command -v ssh) || { echo "ssh.sh: there is no sshd; apt install openssh-server" >&2; exit 2; }
D=$(mktemp -d "${TMPDIR:-/tmp}/rc-ssh-XXXXXX")
pid=
end() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$D"
}
trap end EXIT
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd    # where sshd's own separation of privileges wants to be
port=$((22000 + RANDOM % 4000))
ssh-keygen -q -t ed25519 -N '' -f "$D/host"
ssh-keygen -q -t ed25519 -N '' -f "$D/user"
cp "$D/user.pub" "$D/authorized"
cat >"$D/sshd_config" <<END
Port $port
ListenAddress 127.0.0.1
HostKey $D/host
AuthorizedKeysFile $D/authorized
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv TMPDIR=$D
PidFile $D/sshd.pid
END
cat >"$D/config" <<END
Host one two
    HostName 127.0.0.1
    Port $port
    IdentityFile $D/user
    IdentitiesOnly yes
    UserKnownHostsFile $D/known
    StrictHostKeyChecking accept-new
END
mkdir "$D/bin"
printf '#!/bin/sh\nexec %s -F %s "$@"\n' "$ssh" "$D/config" >"$D/bin/ssh"
chmod +x "$D/bin/ssh"
"$sshd" -D -e -f "$D/sshd_config" 2>"$D/sshd.log" &
pid=$!
for _ in $(seq 100); do
    "$D/bin/ssh" -o BatchMode=yes one true 2>/dev/null && break
    kill -0 "$pid" 2>/dev/null || { cat "$D/sshd.log" >&2; exit 1; }
    sleep 0.1
done
SSHD_PID=$pid PATH="$D/bin:$PATH" TMPDIR=$D python3 "$root/tests/ssh_cases.py" -v "$@"
