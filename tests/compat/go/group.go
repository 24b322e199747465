package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Consumes so many records of a topic as a member of a group, commits each poll's, prints their
// partitions and offsets, and leaves.
func consumeInGroup(bootstrap, topic, group, records string) error {
	count, err := strconv.Atoi(records)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for read := 0; read < count; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("%d of %d records came: %w", read, count, err)
		}
		if err := client.CommitRecords(ctx, fetches.Records()...); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			fmt.Printf("%d\t%d\n", record.Partition, record.Offset)
			read++
		}
	}
	return nil
}
