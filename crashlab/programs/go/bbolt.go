// bbolt: transactions with two records each.
//
// Promise: "fully serializable ACID transactions" (https://github.com/etcd-io/bbolt).
// Install: go, https://go.dev/doc/install
package main

import bolt "go.etcd.io/bbolt"

func runBbolt(verb string) error {
	store, err := bolt.Open("test.bolt", 0o600, nil)
	if err != nil {
		return err
	}
	bucket := []byte("records")
	switch verb {
	case "setup":
		err := store.Update(func(transaction *bolt.Tx) error {
			_, err := transaction.CreateBucket(bucket)
			return err
		})
		if err != nil {
			return err
		}
		return store.Close()
	case "work":
		return makeChanges(func(_ int, records map[string]string) error {
			return store.Update(func(transaction *bolt.Tx) error {
				for key, value := range records {
					if err := transaction.Bucket(bucket).Put([]byte(key), []byte(value)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	found := map[string]string{}
	err = store.View(func(transaction *bolt.Tx) error {
		for damage := range transaction.Check() {
			return damage
		}
		return transaction.Bucket(bucket).ForEach(func(key, value []byte) error {
			found[string(key)] = string(value)
			return nil
		})
	})
	if err != nil {
		return err
	}
	return check(found)
}
