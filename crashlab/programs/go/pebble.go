// Pebble: batches of two records, committed with Sync, and a flush after every second.
//
// Promise: a batch is atomic, and Sync is "whether to sync writes through the OS buffer cache and down
// onto the actual disk" (https://pkg.go.dev/github.com/cockroachdb/pebble#WriteOptions).
// Install: go, https://go.dev/doc/install
package main

import (
	"fmt"
	"os"

	"github.com/cockroachdb/pebble"
)

func runPebble(verb string) error {
	store, err := pebble.Open("db", &pebble.Options{Logger: quiet{}})
	if err != nil {
		return err
	}
	switch verb {
	case "setup":
		return store.Close()
	case "work":
		return makeChanges(func(number int, records map[string]string) error {
			batch := store.NewBatch()
			for key, value := range records {
				if err := batch.Set([]byte(key), []byte(value), nil); err != nil {
					return err
				}
			}
			if err := batch.Commit(pebble.Sync); err != nil {
				return err
			}
			if number%2 == 0 {
				return store.Flush()
			}
			return nil
		})
	}
	found := map[string]string{}
	entries, err := store.NewIter(nil)
	if err != nil {
		return err
	}
	for entries.First(); entries.Valid(); entries.Next() {
		found[string(entries.Key())] = string(entries.Value())
	}
	if err := entries.Error(); err != nil {
		return err
	}
	return check(found)
}

// quiet keeps what Pebble logs away from the output, which crashlab records.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, arguments ...any) {
	fmt.Printf(format+"\n", arguments...)
	os.Exit(1)
}
