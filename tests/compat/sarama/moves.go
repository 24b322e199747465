package main

import (
	"fmt"
	"log"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

// pause is between two records, so that there are leader moves among them.
const pause = 5 * time.Millisecond

// Writes so many records to each partition of a topic by an idempotent producer, and reads them
// meanwhile. Every record has to be acknowledged at its number, and read there. Prints how many.
func writeAndRead(bootstrap, topic, partitionsOfTopic, recordsOfEach string) {
	partitions, err := strconv.Atoi(partitionsOfTopic)
	check(err)
	count, err := strconv.Atoi(recordsOfEach)
	check(err)
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	// Its default gives up after 300 ms.
	config.Producer.Retry.Max = 100
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Return.Errors = true
	client, err := sarama.NewClient(strings.Split(bootstrap, ","), config)
	check(err)
	awaitTopic(client, topic)
	producer, err := sarama.NewSyncProducerFromClient(client)
	check(err)
	consumer, err := sarama.NewConsumerFromClient(client)
	check(err)
	ends := make(chan int)
	for index := range partitions {
		go func() { ends <- readPartition(consumer, topic, int32(index), count) }()
	}
	for n := range count {
		for index := range partitions {
			_, offset, err := producer.SendMessage(&sarama.ProducerMessage{
				Topic: topic, Partition: int32(index), Value: sarama.StringEncoder(text(index, n)),
			})
			check(err)
			if offset != int64(n) {
				log.Fatalf("record %d of partition %d is at offset %d", n, index, offset)
			}
		}
		time.Sleep(pause)
	}
	check(producer.Close())
	total := 0
	for range partitions {
		total += <-ends
	}
	check(client.Close())
	fmt.Println(total)
}

func text(partition, number int) string {
	return fmt.Sprintf("%d/%d", partition, number)
}

func readPartition(consumer sarama.Consumer, topic string, index int32, count int) int {
	reading, err := consumer.ConsumePartition(topic, index, sarama.OffsetOldest)
	check(err)
	for number := 0; number < count; {
		select {
		case message := <-reading.Messages():
			if message.Offset != int64(number) || string(message.Value) != text(int(index), number) {
				log.Fatalf("partition %d: %q at %d, not %d", index, message.Value, message.Offset, number)
			}
			number++
		case err := <-reading.Errors():
			// It looks for the leader and goes on by itself.
			log.Printf("partition %d: %v", index, err)
		case <-time.After(patience):
			log.Fatalf("partition %d: no record came after %d", index, number)
		}
	}
	check(reading.Close())
	return count
}
