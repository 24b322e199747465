package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func shown(bytes []byte) string {
	if bytes == nil {
		return "NULL"
	}
	return string(bytes)
}

// Consumes so many records of a topic as a member of a group, commits each poll's, prints their
// partitions, offsets, keys, values and headers, and leaves.
func consumeInGroup(bootstrap, topic, group, records string) error {
	count, err := strconv.Atoi(records)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
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
			headers := make([]string, len(record.Headers))
			for n, header := range record.Headers {
				headers[n] = header.Key + "=" + shown(header.Value)
			}
			fmt.Printf("%d\t%d\t%s\t%s\t%s\n", record.Partition, record.Offset,
				shown(record.Key), shown(record.Value), strings.Join(headers, ","))
			read++
		}
	}
	return nil
}
