package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

// member hands on what it reads, once its offset is committed.
type member struct {
	read chan *sarama.ConsumerMessage
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			session.Commit()
			m.read <- message
		case <-session.Context().Done():
			return nil
		}
	}
}

func shown(bytes []byte) string {
	if bytes == nil {
		return "NULL"
	}
	return string(bytes)
}

// Consumes so many records of a topic as a member of a group, prints their partitions, offsets, keys,
// values and headers, and leaves.
func consumeInGroup(bootstrap, topic, group, records string) {
	count, err := strconv.Atoi(records)
	check(err)
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Return.Errors = true
	consumer, err := sarama.NewConsumerGroup(strings.Split(bootstrap, ","), group, config)
	check(err)
	reads := &member{make(chan *sarama.ConsumerMessage, count)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- consumer.Consume(ctx, []string{topic}, reads) }()
	for range count {
		select {
		case message := <-reads.read:
			headers := make([]string, len(message.Headers))
			for n, header := range message.Headers {
				headers[n] = string(header.Key) + "=" + shown(header.Value)
			}
			fmt.Printf("%d\t%d\t%s\t%s\t%s\n", message.Partition, message.Offset,
				shown(message.Key), shown(message.Value), strings.Join(headers, ","))
		case err := <-consumer.Errors():
			log.Fatal(err)
		case <-time.After(patience):
			log.Fatal("no further record came")
		}
	}
	cancel()
	check(<-done)
	check(consumer.Close())
}
