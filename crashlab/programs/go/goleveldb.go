// goleveldb: batches of two records, written with Sync, and a new file of tables after every second.
//
// Promise: a batch is atomic, and "Sync being true means write followed by fsync"; without it, "if the machine crashes,
// then some recent writes may be lost" (https://pkg.go.dev/github.com/syndtr/goleveldb/leveldb/opt#WriteOptions).
// Install: go, https://go.dev/doc/install
package main

import (
	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/opt"
)

func runGoleveldb(verb string) error {
	// So small a buffer is full after every second batch.
	store, err := leveldb.OpenFile("db", &opt.Options{WriteBuffer: 1000, Compression: opt.NoCompression})
	if err != nil {
		return err
	}
	switch verb {
	case "setup":
		return store.Close()
	case "work":
		return makeChanges(func(_ int, records map[string]string) error {
			batch := new(leveldb.Batch)
			for key, value := range records {
				batch.Put([]byte(key), []byte(value))
			}
			return store.Write(batch, &opt.WriteOptions{Sync: true})
		})
	}
	found := map[string]string{}
	entries := store.NewIterator(nil, nil)
	for entries.Next() {
		found[string(entries.Key())] = string(entries.Value())
	}
	if err := entries.Error(); err != nil {
		return err
	}
	return check(found)
}
