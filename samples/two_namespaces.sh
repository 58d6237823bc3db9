#!/bin/sh
# Two network namespaces, each with one end of a link of limited rate. As root; netem is not needed.
#
#     two_namespaces.sh up 200mbit      make namespaces spyre-a (10.77.0.1) and spyre-b (10.77.0.2)
#     two_namespaces.sh down            delete them, and the link with them
set -eu

up() {
    rate=$1
    ip netns add spyre-a
    ip netns add spyre-b
    ip link add link-a type veth peer name link-b
    for end in a:1 b:2; do
        name=${end%:*}
        ip link set "link-$name" netns "spyre-$name"
        # the same name inside both, so that one GLOO_SOCKET_IFNAME serves both ranks
        ip -n "spyre-$name" link set "link-$name" name wire
        ip -n "spyre-$name" address add "10.77.0.${end#*:}/24" dev wire
        ip -n "spyre-$name" link set lo up
        ip -n "spyre-$name" link set wire up
        tc -n "spyre-$name" qdisc replace dev wire root tbf rate "$rate" burst 64kb latency 100ms
    done
}

down() {
    for name in spyre-a spyre-b; do
        ip netns delete "$name" 2>/dev/null || true
    done
}

case "${1:-}" in
    up) up "${2:?a rate is missing, such as 200mbit}" ;;
    down) down ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
