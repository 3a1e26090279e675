// Badger: transactions with two records each, with SyncWrites.
//
// Promise: transactions are ACID, and with SyncWrites they "survive hard reboots"
// (https://pkg.go.dev/github.com/dgraph-io/badger/v4#Options.WithSyncWrites).
// Install: go, https://go.dev/doc/install
package main

import "github.com/dgraph-io/badger/v4"

func runBadger(verb string) error {
	// Small files, since crashlab copies them for each check.
	options := badger.DefaultOptions("db").WithSyncWrites(true).WithLogger(nil).
		WithMemTableSize(1 << 20).WithValueLogFileSize(1 << 21).WithValueThreshold(1 << 10).
		WithBlockCacheSize(1 << 20).WithNumMemtables(2)
	store, err := badger.Open(options)
	if err != nil {
		return err
	}
	switch verb {
	case "setup":
		return store.Close()
	case "work":
		return makeChanges(func(_ int, records map[string]string) error {
			return store.Update(func(transaction *badger.Txn) error {
				for key, value := range records {
					if err := transaction.Set([]byte(key), []byte(value)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	found := map[string]string{}
	err = store.View(func(transaction *badger.Txn) error {
		entries := transaction.NewIterator(badger.DefaultIteratorOptions)
		defer entries.Close()
		for entries.Rewind(); entries.Valid(); entries.Next() {
			value, err := entries.Item().ValueCopy(nil)
			if err != nil {
				return err
			}
			found[string(entries.Item().Key())] = string(value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return check(found)
}
