#!/bin/sh
# Emacs: a file is changed and saved.
#
# Variants: default, and fsync, with write-region-inhibit-fsync nil.
#
# Promise: save-buffer keeps the old text as a backup (manual, "Backup Files"), and if write-region-inhibit-fsync is
# nil it calls fsync (C-h v write-region-inhibit-fsync). So the file or its backup has the old text, or the file
# has the new one; with fsync the new one is there after Emacs has saved it.
# Install: apt install emacs-nox
set -eu

setup() {
    yes old | head -n 3000 > file
}

work() {
    # By default Emacs makes no backup in folders for temporary files, as this one.
    emacs --batch --quick --eval "(setq backup-enable-predicate (lambda (name) t)
        write-region-inhibit-fsync $inhibit)" \
        --visit file --eval '(progn (while (search-forward "old" nil t) (replace-match "new")) (save-buffer))' \
        2> /dev/null
    echo saved
}

check() {
    old=$(yes old | head -n 3000 | cksum)
    new=$(yes new | head -n 3000 | cksum)
    [ "$(text_of file)" != "$new" ] || exit 0
    [ $inhibit = t ] || ! grep -q saved "$CRASHLAB_ACKED" || fail "the new text was saved"
    [ "$(text_of file)" = "$old" ] || [ "$(text_of file~)" = "$old" ] ||
        fail "neither the file nor its backup is whole"
}

text_of() {
    if [ -e "$1" ]; then cksum < "$1"; fi
}

version() {
    emacs --version | awk 'NR == 1 { print $3 }'
}

fail() {
    echo "$1:"
    ls -la
    exit 1
}

verb=$1
case ${2:-} in
    fsync) inhibit=nil ;;
    *) inhibit=t ;;
esac
"$verb"
