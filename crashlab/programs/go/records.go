// What the tests share: the changes, and what must be left of them.
//
// Change n writes a record with number n, and n as the record "count", in one transaction. So "count"
// says which records must be there.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const changes = 6
const countKey = "count"

func key(number int) string   { return fmt.Sprintf("key%04d", number) }
func value(number int) string { return strings.Repeat(fmt.Sprintf("value-%d-", number), 50) }

// makeChanges calls write with the records of each change, and says that it is stored. Then it ends
// the process, without closing the store.
func makeChanges(write func(number int, records map[string]string) error) error {
	for number := 1; number <= changes; number++ {
		records := map[string]string{key(number): value(number), countKey: strconv.Itoa(number)}
		if err := write(number, records); err != nil {
			return err
		}
		fmt.Println("stored", number)
	}
	os.Exit(0)
	return nil
}

// stored is the number of the last change that the program had called stored.
func stored() (last int) {
	printed, _ := os.ReadFile(os.Getenv("CRASHLAB_ACKED"))
	for _, line := range strings.Split(string(printed), "\n") {
		fmt.Sscanf(line, "stored %d", &last)
	}
	return last
}

// check demands that each change is there as a whole or not at all, in order, and none is lost that
// was stored.
func check(found map[string]string) error {
	count := 0
	if number, ok := found[countKey]; ok {
		var err error
		if count, err = strconv.Atoi(number); err != nil {
			return err
		}
	}
	if count < stored() {
		return fmt.Errorf("change %d was stored, and only %d are there", stored(), count)
	}
	for number := 1; number <= count; number++ {
		if found[key(number)] != value(number) {
			return fmt.Errorf("%d changes are there, but record %d is missing or wrong", count, number)
		}
	}
	expected := 0
	if count > 0 {
		expected = count + 1
	}
	if len(found) != expected {
		return fmt.Errorf("%d changes are there, but %d records", count, len(found))
	}
	return nil
}

// writeSynced writes a file and syncs it.
func writeSynced(name, text string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		return err
	}
	return file.Sync()
}
