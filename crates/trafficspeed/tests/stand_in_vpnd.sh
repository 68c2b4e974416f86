#!/bin/sh
# Keeps vpnd's command-line contract for the adapter's tests; "inner" addresses are routed plainly.
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
    for n in 1 2 3 4; do ip route add "10.86.0.$n/32" via "198.18.$n.2" 2>/dev/null || true; done
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
    ip addr add "10.86.0.${user#client}/32" dev lo
    touch "$(dirname "$2")/$user.up"
    exec sleep 1000
    ;;
*) exit 2 ;;
esac
