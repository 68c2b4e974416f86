#!/bin/sh
# Keeps vpnd's command-line contract for the adapter's tests. Its "tunnel" is a macvlan device on the client's link;
# the kernel of the gateway routes between the inner addresses. It can be told to lead the traffic past itself:
#   STAND_IN_NO_ROUTE    no route for the inner addresses, so they are reached by the plain link
#   STAND_IN_BYPASS      routes that look right, and a rule that sends TCP over the plain link
#   STAND_IN_OTHER_LINK  a tunnel device that leads to the gateway past the lab's link
set -eu
option() { # option NAME ARGUMENTS...: the value after --NAME
    wanted=$1
    shift
    while [ $# -gt 1 ]; do
        [ "$1" = "--$wanted" ] && echo "$2" && return
        shift
    done
}
has() { # has NAME ARGUMENTS...: whether --NAME is there
    wanted=$1
    shift
    for word; do [ "$word" = "--$wanted" ] && return 0; done
    return 1
}
case $1 in
--version) echo "vpnd 0.0.0 (stand-in)" ;;
init)
    printf '[policy]\nclient_to_client = false\n' >"$(option dir "$@")/server.toml"
    ;;
user)
    [ -s "$(option password-file "$@")" ]
    echo "$3" >"$(option profile-out "$@")"
    ;;
server)
    config=$(option config "$@")
    grep -q 'client_to_client = true' "$config"
    if grep -q 'suites = \["none"\]' "$config"; then has insecure-lab "$@"; fi
    for n in 1 2 3 4; do ip route add "10.86.0.$n/32" dev "c$n" 2>/dev/null || true; done
    [ -n "${STAND_IN_NEVER_UP:-}" ] || touch "$(dirname "$config")/ready"
    exec sleep 1000
    ;;
status)
    directory=$(dirname "$(option socket "$@")")
    [ -e "$directory/ready" ]
    suite=$(sed -n 's/^suites = \["\(.*\)"\]$/\1/p' "$directory/server.toml")
    printf '{"sessions":['
    comma=
    for up in "$directory"/*.up; do
        [ -e "$up" ] || continue
        user=$(basename "$up" .up)
        printf '%s{"user":"%s","inner_v4":"10.86.0.%s","suite":"%s","backend":"shell"}' \
            "$comma" "$user" "${user#client}" "$suite"
        comma=,
    done
    echo ']}'
    ;;
connect)
    user=$(cat "$2")
    if [ "${STAND_IN_REFUSES:-}" = "$user" ]; then
        echo "login refused: wrong password" >&2
        exit 1
    fi
    [ -s "$(option credentials "$@")" ] && has no-dns "$@"
    suite=$(sed -n 's/^suites = \["\(.*\)"\]$/\1/p' "$(dirname "$2")/server.toml")
    [ "$(option suite "$@")" = "$suite" ]
    n=${user#client}
    # Each inner address belongs to the tunnel's device alone, also when the gateway asks for its owner.
    echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
    if [ -n "${STAND_IN_OTHER_LINK:-}" ]; then
        own=$(ip netns identify $$)
        gateway=${own%c*}g
        ip link add tun0 type veth peer name "other$n" netns "$gateway"
        ip -n "$gateway" link set "other$n" up
        ip -n "$gateway" route replace "10.86.0.$n/32" dev "other$n"
    else
        ip link add link eth0 name tun0 type macvlan
    fi
    ip addr add "10.86.0.$n/32" dev tun0
    ip link set tun0 up
    [ -n "${STAND_IN_NO_ROUTE:-}" ] || ip route add 10.86.0.0/24 via "198.18.$n.1" dev tun0 onlink src "10.86.0.$n"
    if [ -n "${STAND_IN_BYPASS:-}" ]; then
        ip route add default via "198.18.$n.1" dev eth0 table 100
        ip rule add ipproto tcp lookup 100
    fi
    touch "$(dirname "$2")/$user.up"
    exec sleep 1000
    ;;
*) exit 2 ;;
esac
