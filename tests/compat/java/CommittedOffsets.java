import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Prints what a group has committed of a partition: the offset, the leader epoch (-1 if there is
 * none) and the metadata, a line each; then commits something else, as nobody that is in the group.
 *
 * <p>Arguments: bootstrap, group, topic, partition; offset, leader epoch and metadata to commit.
 */
public final class CommittedOffsets {
    private CommittedOffsets() {}

    public static void main(String[] arguments) {
        var settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("enable.auto.commit", "false");
        var at = new TopicPartition(arguments[2], Integer.parseInt(arguments[3]));
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            var found = consumer.committed(Set.of(at)).get(at);
            System.out.println(found.offset());
            System.out.println(found.leaderEpoch().orElse(-1));
            System.out.println(found.metadata());
            var epoch = Optional.of(Integer.parseInt(arguments[5]));
            var next = new OffsetAndMetadata(Long.parseLong(arguments[4]), epoch, arguments[6]);
            consumer.commitSync(Map.of(at, next));
        }
    }
}
