# What the programs about PostgreSQL share.
. "$(dirname "$0")/common.sh"

prepare() { need_postgres; }
need_postgres() {
  find /usr/lib/postgresql/*/bin -name postgres 2>/dev/null | grep -q . || need initdb:postgresql pgbench:postgresql
}

# PostgreSQL refuses to run as root.
as_postgres() { (cd / && exec runuser -u postgres -- env PATH="$(dirname "$(find /usr/lib/postgresql/*/bin -name postgres | sort -V | tail -n 1)"):$PATH" PGHOST="$sockets" PGDATABASE=postgres "$@"); }

make_cluster() {
  data=$directory/data sockets=$(mktemp -d /tmp/syncline-postgres.XXXXXX)
  chown postgres "$sockets" && chmod 755 "$directory"
  mkdir "$data" && chown postgres "$data" && chmod 700 "$data"
  trap end_cluster EXIT
  timed initdb as_postgres initdb -D "$data" --auth=trust --data-checksums --no-instructions >/dev/null
  cat >>"$data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$sockets'
shared_buffers = 64MB
max_wal_size = 256MB
checkpoint_timeout = 30s
CONF
}
# The server is our child, so that somebody waits for it when it is killed.
start_cluster() {
  as_postgres postgres -D "$data" >>"$sockets/log" 2>&1 & server=$!
  until as_postgres pg_isready -q; do
    kill -0 "$server" 2>/dev/null || fail "the server ended: $(tail -n 30 "$sockets/log")"
    sleep 0.05
  done
  postmaster=$(sed -n 1p "$data/postmaster.pid")
}
stop_cluster() {
  kill -INT "$postmaster"
  wait "$server" || fail "the server ended with $?: $(tail -n 30 "$sockets/log")"
  postmaster=
}
# kill_cluster: the postmaster at once; with "all" its children too, as a power cut does. They else end when they see that it is gone, but not
# those that wait for a lock of one that was killed.
kill_cluster() {
  local children child
  [ -n "${postmaster:-}" ] || return 0
  children=$(pgrep -P "$postmaster" || true)
  kill -9 "$postmaster" 2>/dev/null || true
  [ "${1:-}" != all ] || kill -9 $children 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  for child in $children; do await_end "$child" || kill -9 "$child" 2>/dev/null || true; done
  postmaster=
}
# await_end PID: fails if it is still there after ten seconds
await_end() {
  local _
  for _ in $(seq 500); do
    if ! kill -0 "$1" 2>/dev/null || grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; then return 0; fi
    sleep 0.02
  done
  return 1
}
end_cluster() { kill_cluster all; rm -rf "$sockets"; }

sql() { as_postgres psql -qAtX -v ON_ERROR_STOP=1 -c "$1"; }

# Writers that print the number of each row once it is committed; begin_writers N FIRST, then end_writers
begin_writers() {
  local number
  writers=()
  for number in $(seq "$1"); do
    { local i=$2; while :; do echo "insert into acked values($number, $i) returning i;"; i=$((i + 1)); done; } 2>/dev/null |
      as_postgres stdbuf -oL psql -qAtX >"$APPS_SCRATCH/acked.$number" 2>/dev/null & writers+=($!)
  done
}
end_writers() { local pid; for pid in "${writers[@]}"; do wait "$pid" 2>/dev/null || true; done; }

# Every row that was printed is there, pgbench's sums agree, and every index and checksum is sound: verify N
verify() {
  local number last have total=0
  for number in $(seq "$1"); do
    last=$(grep -E '^[0-9]+$' "$APPS_SCRATCH/acked.$number" | tail -n 1); last=${last:-0}
    have=$(sql "select count(*) from acked where writer = $number and i <= $last")
    [ "$have" = "$last" ] || fail "writer $number: $last transactions were committed, $have are there"
    total=$((total + last))
  done
  [ "$total" -gt 20 ] || fail "only $total transactions were committed before the crash: this proves nothing"
  [ "$(sql 'select count(distinct s) from (select sum(abalance) s from pgbench_accounts union all select sum(tbalance) from pgbench_tellers
    union all select sum(bbalance) from pgbench_branches union all select sum(delta) from pgbench_history) sums')" = 1 ] || fail "pgbench's sums differ"
  sql 'set client_min_messages = warning; create extension if not exists amcheck'
  sql "select bt_index_check(c.oid, true) from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
    where a.amname = 'btree' and c.relpersistence = 'p' and i.indisvalid" >/dev/null
  as_postgres pg_dumpall >"$APPS_SCRATCH/dump.sql"
  echo "$total committed transactions, all there"
}
