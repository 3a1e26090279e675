# What the programs here share; each sources it and ends with: main "$@"
#   PROGRAM --prepare      installs what it needs and fetches its input into $APPS_CACHE; not timed. Defines prepare() for that.
#   PROGRAM DIRECTORY      does its work in an empty directory and verifies it: work() and, in it, timed() for what is measured.
# Set by the runner: APPS_CACHE, APPS_SCRATCH (a folder elsewhere), APPS_TIMES, APPS_SIZE (quick, middle, full), and on Syncline SYNCLINE, SYNCLINE_DEVICE,
# SYNCLINE_MOUNT and SYNCLINE_PID.
set -euo pipefail
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../..")

fail() { printf '%s\n' "$*" >&2; exit 1; }
skip() { printf 'skipped: %s\n' "$*"; exit 77; }

# sized QUICK [MIDDLE] FULL: one of them; without MIDDLE that is FULL too
sized() { case ${APPS_SIZE:-full} in quick) echo "$1" ;; middle) echo "$2" ;; *) echo "${@: -1}" ;; esac; }

# timed LABEL COMMAND...: the seconds that it takes become a line of the table
timed() {
  local label=$1 begin=$EPOCHREALTIME; shift
  "$@"
  awk -v a="$begin" -v b="$EPOCHREALTIME" -v label="$label" 'BEGIN{printf "%s\t%.3f\n", label, b - a}' >>"$APPS_TIMES"
}

# need COMMAND:PACKAGE...: installs what is missing
need() {
  local pair missing=()
  for pair; do command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || skip "not installed: ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } ||
    skip "could not be installed: ${missing[*]}"
}

# same A B: two trees are the same, with hard links, owners, modes, times, xattrs and access control lists
same() {
  local difference
  difference=$(rsync -naHAXi --checksum --delete --numeric-ids "$1/" "$2/")
  [ -z "$difference" ] || fail "$1 and $2 differ: $(head -n 20 <<<"$difference")"
}

# crash_syncline: kills the daemon under whatever is running; mount_again: what a reboot would do
crash_syncline() {
  kill -9 "$SYNCLINE_PID"
  while kill -0 "$SYNCLINE_PID" 2>/dev/null && [ "$(awk '{print $3}' "/proc/$SYNCLINE_PID/stat" 2>/dev/null)" != Z ]; do sleep 0.01; done
  umount -l "$SYNCLINE_MOUNT"
}
mount_again() {
  "$SYNCLINE" check "$SYNCLINE_DEVICE" >/dev/null || { "$SYNCLINE" check "$SYNCLINE_DEVICE" || true; fail "the image does not check clean after the crash"; }
  "$SYNCLINE" mount "$SYNCLINE_DEVICE" "$SYNCLINE_MOUNT"
}

main() {
  if [ "$1" = --prepare ]; then
    if declare -F prepare >/dev/null; then prepare; fi
  else
    directory=$(realpath "$1")
    work
  fi
}
