import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Consumes, transforms and produces, exactly once, as tests/compat/transactional_worker.py does,
 * until its stdin ends.
 *
 * <p>Arguments: source, target, which transactions to abort on purpose (every so-manieth, 0 for
 * none), how many ms after its first record a transaction ends (0: at once, with what one poll
 * returned), then key=value settings: of the producer where they begin with "producer.", else of
 * the consumer.
 */
public final class TransactionalWorker {
    private static final Duration POLL = Duration.ofMillis(100);

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;
    private final String target;
    private final int abortEvery;
    private final Duration each;
    private final int most;
    private int turns;

    private TransactionalWorker(
            KafkaConsumer<byte[], byte[]> consumer,
            KafkaProducer<byte[], byte[]> producer,
            String target,
            int abortEvery,
            Duration each,
            int most) {
        this.consumer = consumer;
        this.producer = producer;
        this.target = target;
        this.abortEvery = abortEvery;
        this.each = each;
        this.most = most;
    }

    private void turn() {
        var records = consumer.poll(POLL);
        if (records.isEmpty()) {
            return;
        }
        long end = System.nanoTime() + each.toNanos();
        // Who it is now: what it took for itself before a rebalance may be another's behind it.
        var member = consumer.groupMetadata();
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        int count = copy(records, offsets);
        long left;
        while ((left = end - System.nanoTime()) > 0) {
            if (count < most) {
                count += copy(consumer.poll(Duration.ofNanos(left)), offsets);
            } else {
                LockSupport.parkNanos(left);
            }
        }
        turns++;
        if (commits(offsets, member)) {
            System.out.println("{\"committed\": " + count + "}");
        } else {
            producer.abortTransaction();
            rewind();
            System.out.println("{\"aborted\": " + count + "}");
        }
    }

    private int copy(
            ConsumerRecords<byte[], byte[]> records,
            Map<TopicPartition, OffsetAndMetadata> offsets) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
            offsets.put(
                    new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
        }
        return records.count();
    }

    /**
     * Ends the transaction, unless it is one to abort.
     *
     * <p>If the group has rebalanced since it began, or, with KIP-848, a heartbeat has moved the
     * member on by an epoch, its offsets are refused, and it has to take the records again.
     */
    private boolean commits(
            Map<TopicPartition, OffsetAndMetadata> offsets, ConsumerGroupMetadata member) {
        try {
            producer.sendOffsetsToTransaction(offsets, member);
            if (abortEvery > 0 && turns % abortEvery == 0) {
                return false;
            }
            producer.commitTransaction();
            return true;
        } catch (CommitFailedException moved) {
            return false;
        }
    }

    private void rewind() {
        var committed = consumer.committed(consumer.assignment());
        for (TopicPartition at : consumer.assignment()) {
            var known = committed.get(at);
            consumer.seek(at, known == null ? 0 : known.offset());
        }
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

    public static void main(String[] arguments) {
        var ofConsumer = new Properties();
        var ofProducer = new Properties();
        for (int n = 4; n < arguments.length; n++) {
            String[] parts = arguments[n].split("=", 2);
            if (parts[0].startsWith("producer.")) {
                ofProducer.put(parts[0].substring("producer.".length()), parts[1]);
            } else {
                ofConsumer.put(parts[0], parts[1]);
            }
        }
        ofProducer.put("bootstrap.servers", ofConsumer.get("bootstrap.servers"));
        var over = endOfInput();
        try (var consumer =
                        new KafkaConsumer<>(
                                ofConsumer,
                                new ByteArrayDeserializer(),
                                new ByteArrayDeserializer());
                var producer =
                        new KafkaProducer<>(
                                ofProducer, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(arguments[0]));
            var worker =
                    new TransactionalWorker(
                            consumer,
                            producer,
                            arguments[1],
                            Integer.parseInt(arguments[2]),
                            Duration.ofMillis(Long.parseLong(arguments[3])),
                            Integer.parseInt(ofConsumer.getProperty("max.poll.records")));
            while (!over.get()) {
                worker.turn();
            }
        }
    }
}
