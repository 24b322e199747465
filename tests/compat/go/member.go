//go:build !old

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const pollTime = 100 * time.Millisecond

// The client's name for an assignor of the broker.
var balancers = map[string]kgo.GroupBalancer{
	"uniform": kgo.StickyBalancer(),
	"range":   kgo.RangeBalancer(),
}

func tell(what string, said any) {
	line, err := json.Marshal(map[string]any{what: said})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}

// What the member has; a change of it is told.
type assignment struct {
	lock sync.Mutex
	has  map[int32]bool
}

func (a *assignment) add(_ context.Context, _ *kgo.Client, given map[string][]int32) {
	a.change(given, func(partition int32) { a.has[partition] = true })
}

func (a *assignment) take(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
	a.change(taken, func(partition int32) { delete(a.has, partition) })
}

func (a *assignment) change(places map[string][]int32, change func(int32)) {
	a.lock.Lock()
	defer a.lock.Unlock()
	for _, partitions := range places {
		for _, partition := range partitions {
			change(partition)
		}
	}
	tell("assigned", slices.AppendSeq([]int32{}, maps.Keys(a.has)))
}

func read(over context.Context, client *kgo.Client) error {
	ctx, cancel := context.WithTimeout(over, pollTime)
	defer cancel()
	// Nothing is revoked between a poll and the commit of what it gave.
	defer client.AllowRebalance()
	fetches := client.PollFetches(ctx)
	for _, failure := range fetches.Errors() {
		if ctx.Err() == nil || !errors.Is(failure.Err, ctx.Err()) {
			return failure.Err
		}
	}
	records := fetches.Records()
	if len(records) == 0 {
		return nil
	}
	if err := client.CommitRecords(context.Background(), records...); err != nil {
		log.Print("not committed: ", err)
		return nil
	}
	places := make([][2]int64, len(records))
	for n, record := range records {
		places[n] = [2]int64{int64(record.Partition), record.Offset}
	}
	tell("read", places)
	return nil
}

func init() { programs["member"] = member }

// A member of a group of the consumer protocol (KIP-848), which prints what ../group_member.py
// does, until its stdin ends. A topic that begins with ^ is an expression; the assignor is uniform
// or range. Releases before 1.22 know no such groups.
func member(given []string) error {
	bootstrap, group, topic, assignor := given[0], given[1], given[2], given[3]
	has := assignment{has: map[int32]bool{}}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(balancers[assignor]),
		kgo.ServerSideBalancer(),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(has.add),
		kgo.OnPartitionsRevoked(has.take),
		kgo.OnPartitionsLost(has.take),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelInfo, nil)),
	}
	if strings.HasPrefix(topic, "^") {
		options = append(options, kgo.ConsumeRegex())
	}
	if len(given) > 4 {
		options = append(options, kgo.InstanceID(given[4]))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	over, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.ReadAll(os.Stdin)
		end()
	}()
	for over.Err() == nil {
		if err := read(over, client); err != nil {
			return err
		}
	}
	client.CloseAllowingRebalance()
	return nil
}
