#!/usr/bin/env bash
# Database servers under load, killed (-9) in the midst of it and started again; prints what must hold.
#
#   scripts/servers.sh postgres|redis|mariadb PLACE [COMMAND...]
#
# COMMAND is what stands before the server: nothing, or `pagekeeper run ... --`. PLACE is emptied, and
# must be in a directory that other users may enter: servers that do not run as root are started by it.
set -uo pipefail
which="$1" place="$2"
shift 2
before=("$@")
rm -rf "$place" && mkdir -p "$place" || exit 1
socket="$place/socket"

# start READY COMMAND...: in the background, until READY succeeds.
start() {
    local ready="$1"
    shift
    "${before[@]}" "$@" >>"$place/log" 2>&1 &
    for _ in $(seq 600); do
        sleep 0.1
        $ready >/dev/null 2>&1 && return
    done
    echo "$1 does not start"
    exit 1
}

# kill_all FILE: the process whose number is in a file, and its children.
kill_all() {
    local pid
    pid="$(head -1 "$1")"
    # shellcheck disable=SC2046
    kill -9 "$pid" $(pgrep -P "$pid") 2>/dev/null
    wait 2>/dev/null
    rm -f "$1" "$socket"
}

postgres() {
    local bin sums
    bin="$(find /usr/lib/postgresql -maxdepth 2 -name bin | sort -V | tail -1)"
    chown postgres "$place"
    runuser -u postgres -- "$bin/initdb" -k -A trust -D "$place/d" >/dev/null || exit 1
    export PGHOST="$place" PGPORT=5499 PGUSER=postgres PGDATABASE=postgres
    local server=(runuser -u postgres -- "$bin/postgres" -D "$place/d" -k "$place" -p "$PGPORT"
        -c listen_addresses= -c shared_buffers=16MB -c checkpoint_timeout=30s)
    sums="select count(*), sum(abalance) = (select sum(tbalance) from pgbench_tellers),
        sum(abalance) = (select sum(bbalance) from pgbench_branches),
        sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts"
    start "$bin/pg_isready -q" "${server[@]}"
    "$bin/pgbench" -i -q -s 6 >/dev/null 2>&1
    "$bin/pgbench" -n -c 4 -j 2 -t 1000 2>&1 | grep -o 'failed transactions: 0'
    psql -Atq -c "create extension amcheck" -c "vacuum full pgbench_accounts" \
        -c "create index on pgbench_accounts(abalance)" -c "$sums"
    "$bin/pgbench" -n -c 4 -j 2 -T 5 >/dev/null 2>&1 &
    sleep 2.5
    kill_all "$place/d/postmaster.pid"
    start "$bin/pg_isready -q" "${server[@]}"
    psql -Atqc "$sums"
    "$bin/pg_amcheck" --heapallindexed && echo "indexes agree"
    runuser -u postgres -- "$bin/pg_ctl" -D "$place/d" -m fast stop >/dev/null
    wait
    runuser -u postgres -- "$bin/pg_checksums" --check -D "$place/d" | grep 'Bad checksums'
}

redis() {
    local digest ask=(redis-cli -s "$socket")
    local server=(redis-server --port 0 --unixsocket "$socket" --dir "$place" --appendonly yes
        --appendfsync always --enable-debug-command yes --pidfile "$place/pid")
    start "${ask[*]} ping" "${server[@]}"
    redis-benchmark -s "$socket" -q -t set,lpush,hset -n 20000 -r 20000 -d 200 >/dev/null
    "${ask[@]}" bgrewriteaof >/dev/null
    "${ask[@]}" bgsave >/dev/null
    redis-benchmark -s "$socket" -q -t set -n 10000 -r 20000 -d 300 >/dev/null
    digest="$("${ask[@]}" debug digest)"
    kill_all "$place/pid"
    redis-check-aof "$place"/appendonlydir/*.manifest 2>&1 | grep 'All AOF'
    start "${ask[*]} ping" "${server[@]}"
    sleep 1
    [ -n "$digest" ] && [ "$digest" = "$("${ask[@]}" debug digest)" ] && echo "all is there"
    "${ask[@]}" shutdown 2>/dev/null
    wait
}

mariadb() {
    local sums load
    chown mysql "$place"
    mariadb-install-db --no-defaults --user=mysql --datadir="$place/d" --skip-test-db >/dev/null 2>&1
    local server=(mariadbd --no-defaults --user=mysql --datadir="$place/d" --socket="$socket"
        --skip-networking --pid-file="$place/d/pid" --innodb-buffer-pool-size=16M
        --myisam-use-mmap=1)
    ask() { command mariadb -uroot --socket="$socket" -N "$@"; }
    sums="select count(*), sum(crc32(v)) from a; select count(*), sum(crc32(v)) from m"
    start "mariadb-admin -uroot --socket=$socket ping" "${server[@]}"
    ask -e "create database d; use d;
        create table a (k int primary key, v varchar(200)) engine=aria
        as select seq k, repeat('x', seq % 200) v from seq_1_to_40000;
        create table m (k int primary key, v varchar(200)) engine=myisam as select * from a;
        update m set v = concat(v, 'y') where k % 3 = 0 and length(v) < 199;
        delete from m where k % 5 = 0; optimize table m;
        create table i (k int primary key auto_increment, v varchar(200)) engine=innodb"
    ask d -e "$sums"
    load="insert into i (v) select repeat('z', seq % 190) from seq_1_to_20; update i set v = '' where k % 7 = 3;"
    yes "$load" | ask d >/dev/null 2>&1 &
    sleep 3
    kill_all "$place/d/pid"
    start "mariadb-admin -uroot --socket=$socket ping" "${server[@]}"
    ask d -e "check table i, a extended; repair table m; $sums"
    # Whole inserts only.
    ask d -e "select count(*) > 0, count(*) % 20 from i"
    mariadb-admin -uroot --socket="$socket" shutdown
    wait
}

"$which"
