import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group, which prints what tests/compat/group_member.py does, until its
 * stdin ends.
 *
 * <p>Arguments: a topic, then key=value settings of the consumer. A topic that begins with ^ is an
 * expression that the broker matches (KIP-848), which releases before 4 have not.
 */
public final class GroupMember implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);

    private final Set<Integer> partitions = new TreeSet<>();

    private static void tell(String what, Collection<?> said) {
        System.out.println("{\"" + what + "\": " + said + "}");
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
        assigned.forEach(at -> partitions.add(at.partition()));
        tell("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        revoked.forEach(at -> partitions.remove(at.partition()));
        tell("assigned", partitions);
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer) {
        List<String> places = new ArrayList<>();
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
            places.add("[" + record.partition() + ", " + record.offset() + "]");
            ends.put(
                    new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1, record.leaderEpoch(), ""));
        }
        if (places.isEmpty()) {
            return;
        }
        tell("polled", places);
        try {
            consumer.commitSync(ends);
            List<String> committed = new ArrayList<>();
            ends.forEach(
                    (at, end) -> committed.add("[" + at.partition() + ", " + end.offset() + "]"));
            tell("committed", committed);
            tell("read", places);
        } catch (CommitFailedException | RebalanceInProgressException refused) {
            System.err.println("not committed: " + refused);
        }
    }

    private static void subscribe(KafkaConsumer<byte[], byte[]> consumer, String topic)
            throws ReflectiveOperationException {
        var listener = new GroupMember();
        if (!topic.startsWith("^")) {
            consumer.subscribe(List.of(topic), listener);
            return;
        }
        // By its name, as this is compiled with older releases too.
        Class<?> kind = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
        Object pattern = kind.getConstructor(String.class).newInstance(topic);
        consumer.getClass()
                .getMethod("subscribe", kind, ConsumerRebalanceListener.class)
                .invoke(consumer, pattern, listener);
    }

    private static AtomicBoolean endOfInput() {
        var over = new AtomicBoolean();
        var waiter =
                new Thread(
                        () -> {
                            try {
                                System.in.readAllBytes();
                            } catch (java.io.IOException gone) {
                                // The end as well.
                            }
                            over.set(true);
                        });
        waiter.setDaemon(true);
        waiter.start();
        return over;
    }

    public static void main(String[] arguments) throws ReflectiveOperationException {
        var settings = new Properties();
        for (int n = 1; n < arguments.length; n++) {
            String[] parts = arguments[n].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        var over = endOfInput();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
            subscribe(consumer, arguments[0]);
            while (!over.get()) {
                read(consumer);
            }
        }
    }
}
