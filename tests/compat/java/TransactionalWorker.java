import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
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
 * none), then key=value settings: of the producer where they begin with "producer.", else of the
 * consumer.
 */
public final class TransactionalWorker {
    private static final Duration POLL = Duration.ofMillis(100);

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;
    private final String target;
    private final int abortEvery;
    private int turns;

    private TransactionalWorker(
            KafkaConsumer<byte[], byte[]> consumer,
            KafkaProducer<byte[], byte[]> producer,
            String target,
            int abortEvery) {
        this.consumer = consumer;
        this.producer = producer;
        this.target = target;
        this.abortEvery = abortEvery;
    }

    private void turn() {
        var records = consumer.poll(POLL);
        if (records.isEmpty()) {
            return;
        }
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
            offsets.put(
                    new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1));
        }
        turns++;
        if (commits(offsets)) {
            System.out.println("{\"committed\": " + records.count() + "}");
        } else {
            producer.abortTransaction();
            rewind();
            System.out.println("{\"aborted\": " + records.count() + "}");
        }
    }

    /**
     * Ends the transaction, unless it is one to abort.
     *
     * <p>In a group of KIP-848 a heartbeat may have moved the member on by an epoch since it was
     * asked for its own: its offsets are refused then, and it has to take the records again.
     */
    private boolean commits(Map<TopicPartition, OffsetAndMetadata> offsets) {
        try {
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
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
        for (int n = 3; n < arguments.length; n++) {
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
                            consumer, producer, arguments[1], Integer.parseInt(arguments[2]));
            while (!over.get()) {
                worker.turn();
            }
        }
    }
}
