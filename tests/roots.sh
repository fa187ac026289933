# root_enter ROOT [FROM:TO]... -- COMMAND...: run a command with the folder ROOT as the root of mounts and processes of its own, which end
# with it; FROM of this system is seen there as TO. Not chroot: in that no user namespace can be made, and the sandbox of code rewards
# needs one. ROOT_LIMIT_S: after so many seconds it is ended. Sourced by distros.sh, wheels.sh and examples/wheel/make.sh; needs root.
root_enter() {
    local root=$1 binds=()
    shift
    while [ "$1" != -- ]; do binds+=("$1"); shift; done
    shift
    # shellcheck disable=SC2016 # expanded inside
    timeout "${ROOT_LIMIT_S:-5400}" unshare --mount --pid --fork --kill-child --propagation private bash -euc '
        root=$1
        shift
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
        while [ "$1" != -- ]; do
            mkdir -p "$root/${1#*:}"
            mount --rbind "${1%%:*}" "$root/${1#*:}"
            shift
        done
        shift
        mkdir -p "$root/outside"
        cp /etc/resolv.conf "$root/etc/resolv.conf"
        cd "$root"
        pivot_root . outside
        umount -l /outside
        cd /
        exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
    ' root_enter "$root" "${binds[@]}" -- "$@"
}
