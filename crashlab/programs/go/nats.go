// NATS JetStream: six messages are published to a stream in a file, with sync_interval: always, and at the
// same time as many to another stream.
//
// Promise: it "will make sure servers fsync after every message before it is acknowledged"
// (https://docs.nats.io/nats-concepts/jetstream#persistent-and-consistent-distributed-storage).
// Install: go, https://go.dev/doc/install
package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func runNats(verb string) error {
	options := &server.Options{
		JetStream: true, StoreDir: "data", DontListen: true, SyncAlways: true, NoSigs: true, NoLog: true,
		JetStreamMaxMemory: 1 << 20, JetStreamMaxStore: 1 << 30,
	}
	node, err := server.NewServer(options)
	if err != nil {
		return err
	}
	go node.Start()
	if !node.ReadyForConnections(30 * time.Second) {
		return fmt.Errorf("the server is not ready")
	}
	connection, err := nats.Connect("", nats.InProcessServer(node))
	if err != nil {
		return err
	}
	stream, err := connection.JetStream(nats.MaxWait(30 * time.Second))
	if err != nil {
		return err
	}
	switch verb {
	case "setup":
		for _, name := range []string{"records", "others"} {
			_, err := stream.AddStream(&nats.StreamConfig{Name: name, Subjects: []string{name}})
			if err != nil {
				return err
			}
		}
		node.Shutdown()
		node.WaitForShutdown()
		return nil
	case "work":
		return makeChanges(func(number int, _ map[string]string) error {
			other := make(chan error)
			go func() {
				_, err := stream.Publish("others", []byte(value(number)))
				other <- err
			}()
			_, err := stream.Publish("records", []byte(value(number)))
			return errors.Join(err, <-other)
		})
	}
	info, err := stream.StreamInfo("records")
	if err != nil {
		return fmt.Errorf("the stream is lost: %w", err)
	}
	if info.State.Msgs < uint64(stored()) {
		return fmt.Errorf("message %d was acknowledged, and only %d are there", stored(), info.State.Msgs)
	}
	for number := 1; number <= int(info.State.Msgs); number++ {
		message, err := stream.GetMsg("records", uint64(number))
		if err != nil {
			return fmt.Errorf("message %d: %w", number, err)
		}
		if string(message.Data) != value(number) {
			return fmt.Errorf("message %d is wrong", number)
		}
	}
	return nil
}
