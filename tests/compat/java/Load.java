import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Produces or consumes as fast as it goes, for asv_bench/bench_clients.py, which says what by lines
 * on stdin: a word and key=value pairs. One process does it again and again, as a JVM needs a while
 * until it has compiled what is hot.
 *
 * <p>"produce" warms up and says "ready", waits for a line, produces, prints what it did as JSON,
 * closes its producer and says "closed". "consume" says "ready" once each member of a group has
 * partitions, reads until the next line, and prints what it has read.
 *
 * <p>Settings of the clients are those that begin with "producer." or "consumer.".
 */
public final class Load {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final int SEED = 2013;

    private final BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    public static void main(String[] arguments) throws Exception {
        var load = new Load();
        for (String line = load.lines.readLine(); line != null; line = load.lines.readLine()) {
            String[] words = line.split(" ");
            Map<String, String> options = new HashMap<>();
            for (int n = 1; n < words.length; n++) {
                String[] parts = words[n].split("=", 2);
                options.put(parts[0], parts[1]);
            }
            switch (words[0]) {
                case "produce" -> load.produce(options);
                case "consume" -> load.consume(options);
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static Properties settings(Map<String, String> options, String prefix) {
        var found = new Properties();
        found.put("bootstrap.servers", options.get("bootstrap"));
        options.forEach(
                (key, value) -> {
                    if (key.startsWith(prefix)) {
                        found.put(key.substring(prefix.length()), value);
                    }
                });
        return found;
    }

    private static void say(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
    }

    /** What one producer has done. */
    private static final class Produced {
        private final KafkaProducer<byte[], byte[]> producer;
        private final ProducerRecord<byte[], byte[]> record;
        private final long transactionNs;
        private final AtomicReference<Exception> failure = new AtomicReference<>();
        private long records;
        private long transactions;
        private long committingNs;

        Produced(
                KafkaProducer<byte[], byte[]> producer,
                ProducerRecord<byte[], byte[]> record,
                long transactionNs) {
            this.producer = producer;
            this.record = record;
            this.transactionNs = transactionNs;
        }

        /** Produces until so many seconds or records are over, and everything is acknowledged. */
        long run(double seconds, long most) throws Exception {
            records = transactions = committingNs = 0;
            long begun = System.nanoTime();
            long end = begun + (long) (seconds * 1e9);
            long now = begun;
            while (now < end && records < most) {
                if (transactionNs > 0) {
                    producer.beginTransaction();
                    now = send(Math.min(end, now + transactionNs), most);
                    producer.commitTransaction();
                    transactions++;
                    long committed = System.nanoTime();
                    committingNs += committed - now;
                    now = committed;
                } else {
                    now = send(end, most);
                }
            }
            producer.flush();
            if (failure.get() != null) {
                throw failure.get();
            }
            return System.nanoTime() - begun;
        }

        private long send(long until, long most) {
            long now;
            do {
                producer.send(
                        record,
                        (at, error) -> {
                            if (error != null) {
                                failure.compareAndSet(null, error);
                            }
                        });
                records++;
                now = System.nanoTime();
            } while (now < until && records < most);
            return now;
        }
    }

    private void produce(Map<String, String> options) throws Exception {
        byte[] value = new byte[Integer.parseInt(options.get("record.bytes"))];
        new Random(SEED).nextBytes(value);
        long transactionNs = Long.parseLong(options.get("transaction.ms")) * 1_000_000;
        try (var producer =
                new KafkaProducer<>(
                        settings(options, "producer."),
                        new ByteArraySerializer(),
                        new ByteArraySerializer())) {
            if (transactionNs > 0) {
                producer.initTransactions();
            }
            var produced =
                    new Produced(
                            producer,
                            new ProducerRecord<>(options.get("topic"), value),
                            transactionNs);
            produced.run(Double.parseDouble(options.get("warmup")), Long.MAX_VALUE);
            say("ready");
            lines.readLine();
            long tookNs =
                    produced.run(
                            Double.parseDouble(options.get("seconds")),
                            Long.parseLong(options.get("most.records")));
            say(
                    "{\"records\": %d, \"seconds\": %.6f, \"transactions\": %d,"
                            + " \"committing_s\": %.6f}",
                    produced.records,
                    tookNs / 1e9,
                    produced.transactions,
                    produced.committingNs / 1e9);
        }
        say("closed");
    }

    /** One member of a group, in a thread of its own. */
    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final Properties settings;
        private final String topic;
        private final AtomicBoolean over;
        private final AtomicLong records = new AtomicLong();
        private final AtomicInteger partitions = new AtomicInteger();
        private volatile Exception failure;

        Member(Properties settings, String topic, AtomicBoolean over) {
            this.settings = settings;
            this.topic = topic;
            this.over = over;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            partitions.addAndGet(assigned.size());
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            partitions.addAndGet(-revoked.size());
        }

        @Override
        public void run() {
            try (var consumer =
                    new KafkaConsumer<>(
                            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                consumer.subscribe(List.of(topic), this);
                while (!over.get()) {
                    records.addAndGet(consumer.poll(POLL).count());
                }
            } catch (RuntimeException fault) {
                failure = fault;
            }
        }
    }

    private void consume(Map<String, String> options) throws Exception {
        var over = new AtomicBoolean();
        List<Member> members = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(options.get("members")); n++) {
            members.add(new Member(settings(options, "consumer."), options.get("topic"), over));
        }
        members.forEach(Thread::start);
        try {
            while (members.stream().anyMatch(one -> one.partitions.get() == 0)) {
                check(members);
                Thread.sleep(10);
            }
            say("ready");
            lines.readLine();
        } finally {
            over.set(true);
            for (Member one : members) {
                one.join();
            }
        }
        check(members);
        say("{\"records\": %d}", members.stream().mapToLong(one -> one.records.get()).sum());
        say("closed");
    }

    private static void check(List<Member> members) throws IOException {
        for (Member one : members) {
            if (one.failure != null) {
                throw new IOException(one.failure);
            }
        }
    }
}
