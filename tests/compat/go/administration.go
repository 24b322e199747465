package main

import (
	"context"
	"errors"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// administer asks a broker, whose id is 0, for all that kadm can ask of it: for the sake of the
// requests. The topic is one with records in its partition 0, which stays.
//
// Only a request that fails as a whole is an error: one broker alone has to refuse some of what is
// asked.
func administer(bootstrap, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	admin := kadm.NewClient(client)

	retention := "604800001"
	configs := map[string]*string{"retention.ms": &retention}
	sets := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &retention}}
	deletes := []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: "retention.ms"}}
	first := kadm.TopicsSet{}
	first.Add(topic, 0)
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, 1, -1)
	epochs := kadm.OffsetForLeaderEpochRequest{}
	epochs.Add(topic, 0, 0)
	var moves, cancels kadm.AlterPartitionAssignmentsReq
	moves.Assign(topic, 0, []int32{0})
	cancels.CancelAssign(topic, 0)
	dirs, err := admin.DescribeBrokerLogDirs(ctx, 0, first)
	if err != nil {
		return err
	}
	directories := kadm.AlterReplicaLogDirsReq{}
	for path := range dirs {
		directories.Add(path, first)
	}

	return errors.Join(
		failure(admin.ApiVersions(ctx)),
		failure(admin.BrokerMetadata(ctx)),
		failure(admin.Metadata(ctx, topic)),
		failure(admin.ListTopics(ctx)),
		failure(admin.ValidateCreateTopics(ctx, 2, 1, configs, "made")),
		failure(admin.CreateTopics(ctx, 2, 1, configs, "made", "other")),
		failure(admin.ValidateCreatePartitions(ctx, 1, "made")),
		failure(admin.CreatePartitions(ctx, 1, "made")),
		failure(admin.DeleteTopics(ctx, "made", "other")),
		failure(admin.DescribeTopicConfigs(ctx, topic)),
		failure(admin.DescribeBrokerConfigs(ctx, 0)),
		failure(admin.AlterTopicConfigs(ctx, sets, topic)),
		failure(admin.AlterTopicConfigs(ctx, deletes, topic)),
		failure(admin.AlterTopicConfigsState(ctx, sets, topic)),
		failure(admin.ListStartOffsets(ctx, topic)),
		failure(admin.ListEndOffsets(ctx, topic)),
		failure(admin.ListOffsetsAfterMilli(ctx, 1_000_000, topic)),
		failure(admin.OffetForLeaderEpoch(ctx, epochs)), // so it is called
		failure(admin.DeleteRecords(ctx, offsets)),
		failure(admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, first)),
		failure(admin.AlterPartitionAssignments(ctx, moves)),
		failure(admin.AlterPartitionAssignments(ctx, cancels)),
		failure(admin.ListPartitionReassignments(ctx, first)),
		failure(admin.AlterBrokerReplicaLogDirs(ctx, 0, directories)),
	)
}

func failure[T any](_ T, err error) error { return err }
