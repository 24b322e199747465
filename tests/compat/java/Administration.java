import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Asks a broker, whose id is 0, for all that Java's Admin can ask of it: for the sake of the requests.
 *
 * <p>Arguments: bootstrap and a topic with records in its partition 0, which stays. Exits with 0 if
 * nothing was refused but what one broker alone has to refuse.
 */
public final class Administration {
    private Administration() {}

    private static void maybeRefused(KafkaFuture<?> future) throws InterruptedException {
        try {
            future.get();
        } catch (ExecutionException refused) {
            // An election with nothing to elect, a reassignment that is not under way.
        }
    }

    private static void topics(Admin admin, String kept) throws Exception {
        var made = new NewTopic("made", 2, (short) 1).configs(Map.of("retention.ms", "100000"));
        var placed = new NewTopic("placed", Map.of(0, List.of(0), 1, List.of(0)));
        var defaults = new NewTopic("defaults", Optional.empty(), Optional.empty());
        var all = List.of(made, placed, defaults);
        admin.createTopics(all, new CreateTopicsOptions().validateOnly(true)).all().get();
        admin.createTopics(all).all().get();
        admin.listTopics().names().get();
        var found = admin.describeTopics(List.of("made", kept)).allTopicNames().get();
        var ids = TopicCollection.ofTopicIds(List.of(found.get("made").topicId()));
        admin.describeTopics(ids).allTopicIds().get();
        admin.createPartitions(Map.of("made", NewPartitions.increaseTo(3))).all().get();
        admin.createPartitions(Map.of("placed", NewPartitions.increaseTo(3, List.of(List.of(0)))))
                .all()
                .get();
        admin.deleteTopics(ids).all().get();
        admin.deleteTopics(List.of("placed", "defaults")).all().get();
    }

    private static void configs(Admin admin, String kept) throws Exception {
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, kept);
        var broker = new ConfigResource(ConfigResource.Type.BROKER, "0");
        admin.describeConfigs(List.of(topic, broker)).all().get();
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        admin.describeConfigs(List.of(topic), options).all().get();
        for (var kind : List.of(AlterConfigOp.OpType.SET, AlterConfigOp.OpType.DELETE)) {
            var changed = new AlterConfigOp(new ConfigEntry("retention.ms", "604800001"), kind);
            admin.incrementalAlterConfigs(Map.of(topic, List.of(changed))).all().get();
        }
    }

    private static void partitions(Admin admin, TopicPartition at) throws Exception {
        for (var spec :
                List.of(
                        OffsetSpec.earliest(),
                        OffsetSpec.latest(),
                        OffsetSpec.maxTimestamp(),
                        OffsetSpec.forTimestamp(1_000_000))) {
            admin.listOffsets(Map.of(at, spec)).all().get();
        }
        admin.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(1))).all().get();
        maybeRefused(admin.electLeaders(ElectionType.PREFERRED, Set.of(at)).all());
        maybeRefused(admin.electLeaders(ElectionType.UNCLEAN, null).all());
        var moved = Optional.of(new NewPartitionReassignment(List.of(0)));
        maybeRefused(admin.alterPartitionReassignments(Map.of(at, moved)).all());
        maybeRefused(admin.alterPartitionReassignments(Map.of(at, Optional.empty())).all());
        admin.listPartitionReassignments().reassignments().get();
        admin.listPartitionReassignments(Set.of(at)).reassignments().get();
    }

    private static void logDirs(Admin admin, TopicPartition at) throws Exception {
        var found = admin.describeLogDirs(List.of(0)).allDescriptions().get().get(0);
        var replica = new TopicPartitionReplica(at.topic(), at.partition(), 0);
        admin.describeReplicaLogDirs(List.of(replica)).all().get();
        var path = found.keySet().iterator().next();
        admin.alterReplicaLogDirs(Map.of(replica, path)).all().get();
    }

    private static void groups(Admin admin, TopicPartition at) throws Exception {
        var given = Map.of(at, new OffsetAndMetadata(1));
        admin.alterConsumerGroupOffsets("given", given).all().get();
        admin.listConsumerGroupOffsets("given").partitionsToOffsetAndMetadata().get();
        admin.listConsumerGroups().all().get();
        admin.describeConsumerGroups(List.of("given")).all().get();
        var everybody = new RemoveMembersFromConsumerGroupOptions();
        maybeRefused(admin.removeMembersFromConsumerGroup("given", everybody).all());
        admin.deleteConsumerGroupOffsets("given", Set.of(at)).all().get();
        admin.alterConsumerGroupOffsets("given", given).all().get();
        admin.deleteConsumerGroups(List.of("given")).all().get();
    }

    private static void transactions(Admin admin, TopicPartition at) throws Exception {
        admin.fenceProducers(List.of("fenced")).all().get();
        admin.describeTransactions(List.of("fenced")).all().get();
        admin.listTransactions().all().get();
        admin.describeProducers(List.of(at)).all().get();
        var hanging = new AbortTransactionSpec(at, 12345, (short) 0, 0);
        maybeRefused(admin.abortTransaction(hanging).all());
    }

    public static void main(String[] arguments) throws Exception {
        var at = new TopicPartition(arguments[1], 0);
        try (var admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            var cluster = admin.describeCluster();
            cluster.nodes().get();
            cluster.clusterId().get();
            topics(admin, at.topic());
            configs(admin, at.topic());
            partitions(admin, at);
            logDirs(admin, at);
            groups(admin, at);
            transactions(admin, at);
        }
    }
}
