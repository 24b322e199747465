// Traffic: what tests/compat/traffic.py has every client do, done by franz-go.
//
// It writes in rounds to all partitions, reads the first half of them once they are there and each
// later round as it comes, and checks every record. The settings are the client's defaults but for
// those given.
//
// Arguments: bootstrap, partitions of a topic, rounds, records of a round for each partition, then
// an argument for each run: topics and settings of its producer, with spaces between. Prints how
// many records each run has read; exits with 0 only if all was well.
//
// Or "administer", bootstrap and a topic: what administration.go does. Or "group", bootstrap, a
// topic, a group and a number of records: what group.go does. Or "member", bootstrap, a group, a
// topic, an assignor and possibly an instance: what member.go does.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	patience = 2 * time.Minute
	large    = 100_000
)

type place struct {
	topic     string
	partition int32
}

type traffic struct {
	partitions      []place
	recordsPerRound int
	read            map[place]int
	recordsRead     int
}

func key(at place, number int) []byte {
	if number%7 == 3 {
		return nil
	}
	return []byte(fmt.Sprintf("%d:%d", at.partition, number))
}

func value(at place, number int) []byte {
	if number%14 == 5 {
		return nil
	}
	size := number * 37 % 400
	if at.partition == 0 && number < 12 {
		size = large
	}
	return []byte(fmt.Sprintf("%s/%d/%d %s", at.topic, at.partition, number, strings.Repeat("v", size)))
}

func headers(number int) []kgo.RecordHeader {
	if number%2 != 0 {
		return nil
	}
	return []kgo.RecordHeader{
		{Key: "number", Value: []byte(strconv.Itoa(number))},
		{Key: "empty", Value: []byte{}},
	}
}

func (t *traffic) write(ctx context.Context, producer *kgo.Client, round int) error {
	var records []*kgo.Record
	var offsets []int
	for n := range t.recordsPerRound {
		number := round*t.recordsPerRound + n
		for _, at := range t.partitions {
			records = append(records, &kgo.Record{
				Topic: at.topic, Partition: at.partition,
				Key: key(at, number), Value: value(at, number), Headers: headers(number),
			})
			offsets = append(offsets, number)
		}
	}
	if err := producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	for n, record := range records {
		if record.Offset != int64(offsets[n]) {
			return fmt.Errorf("acknowledged at %d, not %d", record.Offset, offsets[n])
		}
	}
	return nil
}

func (t *traffic) readUntil(ctx context.Context, consumer *kgo.Client, rounds int) error {
	wanted := rounds * t.recordsPerRound * len(t.partitions)
	for t.recordsRead < wanted {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("%d of %d records came: %w", t.recordsRead, wanted, err)
		}
		for _, record := range fetches.Records() {
			if err := t.verify(record); err != nil {
				return err
			}
			t.recordsRead++
		}
	}
	if t.recordsRead != wanted {
		return fmt.Errorf("%d records came, %d were sent", t.recordsRead, wanted)
	}
	return nil
}

func (t *traffic) verify(record *kgo.Record) error {
	at := place{record.Topic, record.Partition}
	number := t.read[at]
	t.read[at]++
	sent := value(at, number)
	same := record.Offset == int64(number) &&
		bytes.Equal(record.Key, key(at, number)) && (record.Key == nil) == (key(at, number) == nil) &&
		bytes.Equal(record.Value, sent) && (record.Value == nil) == (sent == nil) &&
		fmt.Sprint(record.Headers) == fmt.Sprint(headers(number))
	if !same {
		return fmt.Errorf("%v: another record than was sent at %d: %v", at, number, record)
	}
	return nil
}

func (t *traffic) run(ctx context.Context, producing, consuming []kgo.Opt, rounds int) error {
	producer, err := kgo.NewClient(producing...)
	if err != nil {
		return err
	}
	defer producer.Close()
	half := rounds / 2
	for round := range half {
		if err := t.write(ctx, producer, round); err != nil {
			return err
		}
	}
	consumer, err := kgo.NewClient(consuming...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for round := half; round < rounds; round++ {
		if err := t.readUntil(ctx, consumer, round); err != nil {
			return err
		}
		if err := t.write(ctx, producer, round); err != nil {
			return err
		}
	}
	return t.readUntil(ctx, consumer, rounds)
}

// The settings that the tests give, by the names that Kafka has for them.
var settings = map[string]kgo.Opt{
	"compression.type=none":    kgo.ProducerBatchCompression(kgo.NoCompression()),
	"compression.type=gzip":    kgo.ProducerBatchCompression(kgo.GzipCompression()),
	"compression.type=snappy":  kgo.ProducerBatchCompression(kgo.SnappyCompression()),
	"compression.type=lz4":     kgo.ProducerBatchCompression(kgo.Lz4Compression()),
	"compression.type=zstd":    kgo.ProducerBatchCompression(kgo.ZstdCompression()),
	"acks=1":                   kgo.RequiredAcks(kgo.LeaderAck()),
	"enable.idempotence=false": kgo.DisableIdempotentWrite(),
	"linger.ms=0":              kgo.ProducerLinger(0),
	"linger.ms=5":              kgo.ProducerLinger(5 * time.Millisecond),
}

// What else it does, by its first argument; the others are given.
var programs = map[string]func([]string) error{
	"administer": func(given []string) error { return administer(given[0], given[1]) },
	"group": func(given []string) error {
		return consumeInGroup(given[0], given[1], given[2], given[3])
	},
}

func main() {
	if program, known := programs[os.Args[1]]; known {
		if err := program(os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	var numbers [3]int
	for n := range numbers {
		var err error
		if numbers[n], err = strconv.Atoi(os.Args[n+2]); err != nil {
			log.Fatal(err)
		}
	}
	partitionsEach, rounds, recordsPerRound := numbers[0], numbers[1], numbers[2]
	bootstrap := kgo.SeedBrokers(strings.Split(os.Args[1], ",")...)
	for _, one := range os.Args[5:] {
		t := traffic{recordsPerRound: recordsPerRound, read: map[place]int{}}
		starts := map[string]map[int32]kgo.Offset{}
		// The records say which partition they are for.
		producing := []kgo.Opt{bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner())}
		for _, word := range strings.Split(one, " ") {
			if strings.Contains(word, "=") {
				setting, known := settings[word]
				if !known {
					log.Fatalf("unknown: %s", word)
				}
				producing = append(producing, setting)
				continue
			}
			starts[word] = map[int32]kgo.Offset{}
			for partition := range int32(partitionsEach) {
				starts[word][partition] = kgo.NewOffset().AtStart()
				t.partitions = append(t.partitions, place{word, partition})
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		consuming := []kgo.Opt{bootstrap, kgo.ConsumePartitions(starts)}
		if err := t.run(ctx, producing, consuming, rounds); err != nil {
			log.Fatal(err)
		}
		cancel()
		fmt.Println(t.recordsRead)
	}
}
