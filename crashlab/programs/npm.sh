#!/bin/sh
# npm: a package is installed from an archive.
#
# Promise: none of power cuts. The checker demands what a user might expect: package.json is whole, and
# if it names the package, or npm has ended, then the package's files are whole.
# Install: apt install npm
set -eu

setup() {
    echo '{"name": "app", "version": "1.0.0"}' > package.json
    mkdir package
    echo '{"name": "demo", "version": "1.0.0"}' > package/package.json
    echo 'module.exports = 1;' > package/index.js
    seq 1000 > package/data.txt
    tar -czf demo-1.0.0.tgz package
}

work() {
    # The cache is outside of the working folder, so it is not recorded.
    cache=$(mktemp -d)
    code=0
    HOME=$cache npm install --cache "$cache" --offline --no-audit --no-fund --silent \
        ./demo-1.0.0.tgz > "$cache/log" 2>&1 || code=$?
    rm -rf "$cache"
    [ $code -eq 0 ] || exit $code
    echo installed
}

check() {
    grep -q '"name": *"app"' package.json || fail "package.json is damaged"
    if grep -q installed "$CRASHLAB_ACKED"; then
        grep -q demo package.json || fail "the package was installed, and package.json lacks it"
    fi
    if grep -q demo package.json; then
        for file in package.json index.js data.txt; do
            cmp -s package/$file node_modules/demo/$file || fail "$file is missing or damaged"
        done
    fi
}

version() {
    npm --version
}

fail() {
    echo "$1"
    exit 1
}

"$1"
