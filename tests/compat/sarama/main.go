// What tests/compat/test_other_clients.py has sarama do: write records and read them again.
//
// Arguments: bootstrap, topic, number of records, codec (none, gzip, snappy, lz4, zstd). Writes them
// to partition 0 by an idempotent producer, reads them by a partition's consumer, and prints for each
// its offset, key and value, with tabs between. Before that it makes the topic, and after it asks for
// the offsets at both ends.
//
// Or "group", bootstrap, topic, group and number of records: what group.go does. Or "moves",
// bootstrap, topic, its partitions and number of records of each: what moves.go does.
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const patience = 30 * time.Second

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// awaitTopic waits until all brokers know the topic. One that leads a partition may hear of it after
// the controller has answered, in Kafka too, and the idempotent producer gives up within 10 ms.
func awaitTopic(client sarama.Client, topic string) {
	for _, broker := range client.Brokers() {
		for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			_ = broker.Open(client.Config())
			known, err := broker.GetMetadata(sarama.NewMetadataRequest(client.Config().Version, []string{topic}))
			check(err)
			if known.Topics[0].Err == sarama.ErrNoError {
				break
			}
			if time.Now().After(until) {
				log.Fatal(known.Topics[0].Err)
			}
		}
	}
}

func main() {
	log.SetFlags(0)
	if len(os.Args) == 6 && os.Args[1] == "group" {
		consumeInGroup(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
		return
	}
	if len(os.Args) == 6 && os.Args[1] == "moves" {
		writeAndRead(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
		return
	}
	if len(os.Args) != 5 {
		log.Fatal("bootstrap, topic, records and codec are wanted")
	}
	brokers, topic := strings.Split(os.Args[1], ","), os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)

	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Return.Errors = true
	check(config.Producer.Compression.UnmarshalText([]byte(os.Args[4])))

	admin, err := sarama.NewClusterAdmin(brokers, config)
	check(err)
	retention := "7200000"
	check(admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions: 1, ReplicationFactor: 1,
		ConfigEntries: map[string]*string{"retention.ms": &retention},
	}, false))
	check(admin.Close())

	client, err := sarama.NewClient(brokers, config)
	check(err)
	awaitTopic(client, topic)
	producer, err := sarama.NewSyncProducerFromClient(client)
	check(err)
	for n := range count {
		_, offset, err := producer.SendMessage(&sarama.ProducerMessage{
			Topic: topic, Partition: 0,
			Key:   sarama.StringEncoder(fmt.Sprintf("k%d", n)),
			Value: sarama.StringEncoder(fmt.Sprintf("value %d", n)),
		})
		check(err)
		if offset != int64(n) {
			log.Fatalf("record %d is at offset %d", n, offset)
		}
	}
	check(producer.Close())

	consumer, err := sarama.NewConsumerFromClient(client)
	check(err)
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	check(err)
	for range count {
		select {
		case message := <-partition.Messages():
			fmt.Printf("%d\t%s\t%s\n", message.Offset, message.Key, message.Value)
		case err := <-partition.Errors():
			log.Fatal(err)
		case <-time.After(patience):
			log.Fatal("no further record came")
		}
	}
	check(partition.Close())
	for _, at := range []int64{sarama.OffsetOldest, sarama.OffsetNewest} {
		offset, err := client.GetOffset(topic, 0, at)
		check(err)
		fmt.Println(offset)
	}
	check(client.Close())
}
