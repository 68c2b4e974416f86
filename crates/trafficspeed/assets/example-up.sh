#!/bin/sh
set -eu
n=0
for client in $TRAFFICSPEED_CLIENTS; do
    n=$((n + 1))
    # Your client would start here: ip netns exec "$client" my-vpn connect "$TRAFFICSPEED_SERVER_V4" &
    ip netns exec "$client" sleep 1000 &
    echo "process client $!" >>"$TRAFFICSPEED_ANSWER"
    ip netns exec "$client" sysctl -qw net.ipv4.conf.all.arp_ignore=1
    ip -n "$client" link add link eth0 name tun0 type macvlan
    ip -n "$client" addr add "10.88.0.$n/32" dev tun0
    ip -n "$client" addr add "fd88::$n/128" dev tun0 nodad
    ip -n "$client" link set tun0 up
    ip -n "$client" route add 10.88.0.0/24 via "198.18.$n.1" dev tun0 onlink src "10.88.0.$n"
    gateway_v6=2001:2:0:$(printf %x "$n")::1
    ip -n "$client" route add "$gateway_v6/128" dev tun0
    ip -n "$client" route add fd88::/64 via "$gateway_v6" dev tun0 src "fd88::$n"
    ip route add "10.88.0.$n/32" dev "c$n"
    ip route add "fd88::$n/128" dev "c$n"
    echo "client $n tun0 10.88.0.$n fd88::$n" >>"$TRAFFICSPEED_ANSWER"
done
sleep 1000 & # Your server would start before its clients: my-vpn server &
cat >>"$TRAFFICSPEED_ANSWER" <<END
process gateway $!
version example 1.0
cipher none, asked for $TRAFFICSPEED_CIPHER
END
