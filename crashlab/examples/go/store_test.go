package store

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

var withoutSync = flag.Bool("without-sync", false, "leave out an fsync: the test has to fail")

func TestStoreSurvivesPowerCuts(t *testing.T) {
	program := func() error {
		store, err := Open(".")
		if err != nil {
			return err
		}
		store.withoutSync = *withoutSync
		for version := 1; version <= 3; version++ {
			if err := store.Put("key", fmt.Sprint("version ", version)); err != nil {
				return err
			}
			fmt.Println("stored version", version)
		}
		return nil
	}
	check := func(printed []string) error {
		store, err := Open(".")
		if err != nil {
			return err
		}
		value, err := store.Get("key")
		if err != nil {
			return err
		}
		// The value of the last promise, or a later one.
		promised, found := 0, 0
		if len(printed) > 0 {
			fmt.Sscanf(printed[len(printed)-1], "stored version %d", &promised)
		}
		if _, err := fmt.Sscanf(value, "version %d", &found); err != nil && value+strings.Join(printed, "") != "" {
			return fmt.Errorf("the value is %q", value)
		}
		if found < promised {
			return fmt.Errorf("version %d was stored, and now it is %d", promised, found)
		}
		return nil
	}
	testPowerCuts(t, program, check, "--model", "xfs")
}
