// BuntDB: transactions with two records each, with SyncPolicy Always, and a Shrink after the third. Then
// another file is synced, as any program may do.
//
// Promise: ACID semantics, and Always is "fsync after every write, very durable, slower"
// (https://github.com/tidwall/buntdb#durability-and-fsync).
// Install: go, https://go.dev/doc/install
package main

import "github.com/tidwall/buntdb"

func runBuntdb(verb string) error {
	store, err := buntdb.Open("test.bunt")
	if err != nil {
		return err
	}
	var config buntdb.Config
	if err := store.ReadConfig(&config); err != nil {
		return err
	}
	config.SyncPolicy = buntdb.Always
	config.AutoShrinkDisabled = true
	if err := store.SetConfig(config); err != nil {
		return err
	}
	switch verb {
	case "setup":
		return store.Close()
	case "work":
		return makeChanges(func(number int, records map[string]string) error {
			err := store.Update(func(transaction *buntdb.Tx) error {
				for key, value := range records {
					if _, _, err := transaction.Set(key, value, nil); err != nil {
						return err
					}
				}
				return nil
			})
			if err == nil && number == 3 {
				if err = store.Shrink(); err == nil {
					err = writeSynced("other", "other")
				}
			}
			return err
		})
	}
	found := map[string]string{}
	err = store.View(func(transaction *buntdb.Tx) error {
		return transaction.Ascend("", func(key, value string) bool {
			found[key] = value
			return true
		})
	})
	if err != nil {
		return err
	}
	return check(found)
}
