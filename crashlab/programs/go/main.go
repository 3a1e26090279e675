// Tests of stores written in Go: programs NAME setup|work|check|version
package main

import (
	"fmt"
	"os"
	"runtime/debug"
)

var programs = map[string]struct {
	run     func(verb string) error
	library string
}{
	"badger":    {runBadger, "github.com/dgraph-io/badger/v4"},
	"bbolt":     {runBbolt, "go.etcd.io/bbolt"},
	"buntdb":    {runBuntdb, "github.com/tidwall/buntdb"},
	"goleveldb": {runGoleveldb, "github.com/syndtr/goleveldb"},
	"nats":      {runNats, "github.com/nats-io/nats-server/v2"},
	"pebble":    {runPebble, "github.com/cockroachdb/pebble"},
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "Usage: programs NAME setup|work|check|version")
		os.Exit(2)
	}
	program, verb := programs[os.Args[1]], os.Args[2]
	if program.run == nil {
		fmt.Fprintf(os.Stderr, "there is no program '%s'\n", os.Args[1])
		os.Exit(2)
	}
	if verb == "version" {
		fmt.Println(versionOf(program.library))
		return
	}
	if err := program.run(verb); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func versionOf(library string) string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == library {
			return module.Version
		}
	}
	return "unknown"
}
