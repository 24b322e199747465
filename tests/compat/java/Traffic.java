import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What tests/compat/traffic.py has every client do, done by Java's: writes in rounds to all
 * partitions, reads the first half of them once they are there and each later round as it comes,
 * and checks every record. The settings are the client's defaults but for those given.
 *
 * <p>Arguments: bootstrap, partitions of a topic, rounds, records of a round for each partition,
 * then an argument for each run: topics and key=value settings of its producer, with spaces between.
 * Prints how many records each run has read; exits with 0 only if all was well.
 */
public final class Traffic {
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final int LARGE = 100_000;

    private final List<TopicPartition> partitions = new ArrayList<>();
    private final Map<TopicPartition, Integer> read = new HashMap<>();
    private final int recordsPerRound;
    private final boolean acknowledged;
    private int recordsRead;

    private Traffic(
            List<String> topics, int partitionsEach, int recordsPerRound, boolean acknowledged) {
        for (String topic : topics) {
            for (int index = 0; index < partitionsEach; index++) {
                partitions.add(new TopicPartition(topic, index));
            }
        }
        this.recordsPerRound = recordsPerRound;
        this.acknowledged = acknowledged;
    }

    private static byte[] key(TopicPartition at, int number) {
        return number % 7 == 3 ? null : (at.partition() + ":" + number).getBytes(UTF_8);
    }

    private static byte[] value(TopicPartition at, int number) {
        if (number % 14 == 5) {
            return null;
        }
        boolean large = at.partition() == 0 && number < 12;
        String padding = "v".repeat(large ? LARGE : number * 37 % 400);
        return (at.topic() + "/" + at.partition() + "/" + number + " " + padding).getBytes(UTF_8);
    }

    private static byte[] header(int number) {
        return number % 2 == 0 ? String.valueOf(number).getBytes(UTF_8) : null;
    }

    private void write(KafkaProducer<byte[], byte[]> producer, int round) throws Exception {
        Map<Future<RecordMetadata>, Integer> sent = new HashMap<>();
        for (int n = 0; n < recordsPerRound; n++) {
            int number = round * recordsPerRound + n;
            for (TopicPartition at : partitions) {
                var record =
                        new ProducerRecord<>(
                                at.topic(), at.partition(), key(at, number), value(at, number));
                if (header(number) != null) {
                    record.headers().add("number", header(number));
                    record.headers().add("empty", new byte[0]);
                }
                sent.put(producer.send(record), number);
            }
        }
        producer.flush();
        for (var one : sent.entrySet()) {
            long expected = acknowledged ? one.getValue() : -1; // acks=0: nobody tells
            check(one.getKey().get().offset() == expected, "acknowledged at another offset");
        }
    }

    private void readUntil(KafkaConsumer<byte[], byte[]> consumer, int rounds) {
        int wanted = rounds * recordsPerRound * partitions.size();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (recordsRead < wanted) {
            check(System.nanoTime() < deadline, recordsRead + " of " + wanted + " records came");
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                verify(record);
                recordsRead++;
            }
        }
        check(recordsRead == wanted, recordsRead + " records came, " + wanted + " were sent");
    }

    private void verify(ConsumerRecord<byte[], byte[]> record) {
        TopicPartition at = new TopicPartition(record.topic(), record.partition());
        int number = read.merge(at, 1, Integer::sum) - 1;
        check(record.offset() == number, at + ": offset " + record.offset() + ", not " + number);
        check(Arrays.equals(record.key(), key(at, number)), at + ": another key at " + number);
        check(Arrays.equals(record.value(), value(at, number)), at + ": another value at " + number);
        Header header = record.headers().lastHeader("number");
        byte[] found = header == null ? null : header.value();
        check(Arrays.equals(found, header(number)), at + ": another header at " + number);
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    private void run(Properties producing, Properties consuming, int rounds) throws Exception {
        int half = rounds / 2;
        try (var producer = new KafkaProducer<byte[], byte[]>(producing)) {
            for (int round = 0; round < half; round++) {
                write(producer, round);
            }
            try (var consumer = new KafkaConsumer<byte[], byte[]>(consuming)) {
                consumer.assign(partitions);
                consumer.seekToBeginning(partitions);
                for (int round = half; round < rounds; round++) {
                    readUntil(consumer, round);
                    write(producer, round);
                }
                readUntil(consumer, rounds);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        int partitionsEach = Integer.parseInt(arguments[1]);
        int rounds = Integer.parseInt(arguments[2]);
        int recordsPerRound = Integer.parseInt(arguments[3]);
        for (String one : Arrays.copyOfRange(arguments, 4, arguments.length)) {
            List<String> topics = new ArrayList<>();
            Properties producing = new Properties();
            Properties consuming = new Properties();
            for (String word : one.split(" ")) {
                String[] halves = word.split("=", 2);
                if (halves.length == 2) {
                    producing.put(halves[0], halves[1]);
                } else {
                    topics.add(word);
                }
            }
            producing.put("bootstrap.servers", arguments[0]);
            producing.put("key.serializer", ByteArraySerializer.class.getName());
            producing.put("value.serializer", ByteArraySerializer.class.getName());
            consuming.put("bootstrap.servers", arguments[0]);
            consuming.put("key.deserializer", ByteArrayDeserializer.class.getName());
            consuming.put("value.deserializer", ByteArrayDeserializer.class.getName());
            boolean acknowledged = !"0".equals(producing.get("acks"));
            var traffic = new Traffic(topics, partitionsEach, recordsPerRound, acknowledged);
            traffic.run(producing, consuming, rounds);
            System.out.println(traffic.recordsRead);
        }
    }
}
