package store

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// role says, in a process that crashlab runs, which function of the test it is: "program" or "check".
const role = "CRASHLAB_ROLE"

// testPowerCuts fails the test with a report if a power cut breaks program. crashlab runs this test again, as the
// program that it records, and then once for each state, as its checker. Both functions work on the files of the
// working folder. What program prints is a promise, and check gets the lines that it had certainly printed. The options
// are those of 'crashlab explore'. Copy this file into your own package.
func testPowerCuts(t *testing.T, program func() error, check func(printed []string) error, options ...string) {
	t.Helper()
	switch os.Getenv(role) {
	case "program":
		exit(program())
	case "check":
		printed, err := os.ReadFile(os.Getenv("CRASHLAB_ACKED"))
		if err != nil {
			exit(err)
		}
		exit(check(strings.FieldsFunc(string(printed), func(char rune) bool { return char == '\n' })))
	}
	crashlab := os.Getenv("CRASHLAB")
	if crashlab == "" {
		crashlab = "crashlab"
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The flags of this test, but for those of the package testing.
	again := []string{self, "-test.run=^" + t.Name() + "$"}
	for _, argument := range os.Args[1:] {
		if !strings.HasPrefix(argument, "-test.") {
			again = append(again, argument)
		}
	}
	// The report names the recording, so it stays if the test fails.
	folder, err := os.MkdirTemp("", "crashlab-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if !t.Failed() {
			os.RemoveAll(folder)
		}
	}()
	recording := filepath.Join(folder, "program.crashlab")
	record := exec.Command(crashlab, append([]string{"record", "-o", recording, "--"}, again...)...)
	record.Dir = t.TempDir()
	record.Env = append(os.Environ(), role+"=program")
	if output, err := record.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for i, word := range again {
		again[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	words := append([]string{"explore", "--check", "exec " + strings.Join(again, " ")}, options...)
	explore := exec.Command(crashlab, append(words, recording)...)
	explore.Env = append(os.Environ(), role+"=check")
	output, err := explore.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &failed) && failed.ExitCode() == 1:
		t.Fatalf("a power cut breaks it:\n%s", output)
	default:
		t.Fatalf("%v\n%s", err, output)
	}
}

func exit(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}
