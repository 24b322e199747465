import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TransactionAbortedException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends values in transactions, commits most and aborts some, and writes down what it does and is
 * told, as tests/checker/workload.py does (and tests/checker/history.py reads), until its stdin
 * ends. What its client cannot go on from ends it with status 1.
 *
 * <p>Arguments: its name, topic, number of partitions, seed, first value, the file to be written,
 * then key=value settings of the producer.
 */
public final class HistoryProducer {
    private static final int MOST_SENDS = 30;
    private static final double ABORTS = 0.2;

    private final KafkaProducer<byte[], byte[]> producer;
    private final OutputStream history;
    private final String name;
    private final String topic;
    private final int partitions;
    private final Random chance;
    private long next;

    private HistoryProducer(
            KafkaProducer<byte[], byte[]> producer, OutputStream history, String[] arguments) {
        this.producer = producer;
        this.history = history;
        this.name = arguments[0];
        this.topic = arguments[1];
        this.partitions = Integer.parseInt(arguments[2]);
        this.chance = new Random(Long.parseLong(arguments[3]));
        this.next = Long.parseLong(arguments[4]);
    }

    /** Writes an event out; the clock is that of Python's time.monotonic_ns(). */
    private synchronized void tell(String kind, String rest) {
        var line =
                String.format(
                        "{\"at\":%d,\"worker\":\"%s\",\"kind\":\"%s\",%s}\n",
                        System.nanoTime(), name, kind, rest);
        try {
            history.write(line.getBytes(UTF_8));
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private void tellOfTransaction(String kind, String transaction) {
        tell(kind, "\"txn\":\"" + transaction + "\"");
    }

    private void transact(String transaction) {
        tellOfTransaction("begin", transaction);
        producer.beginTransaction();
        try {
            int sends = 1 + chance.nextInt(MOST_SENDS);
            for (int n = 0; n < sends; n++) {
                send(next++, transaction);
            }
        } catch (KafkaException refused) {
            // Something sent before has failed; if it is worse than that, the abort says so.
            abort(transaction);
            return;
        }
        if (chance.nextDouble() < ABORTS) {
            abort(transaction);
        } else {
            commit(transaction);
        }
    }

    private void send(long value, String transaction) {
        int partition = chance.nextInt(partitions);
        tell(
                "send",
                String.format(
                        "\"partition\":\"%s-%d\",\"value\":%d,\"txn\":\"%s\"",
                        topic, partition, value, transaction));
        var record =
                new ProducerRecord<byte[], byte[]>(
                        topic, partition, null, Long.toString(value).getBytes(UTF_8));
        try {
            producer.send(record, (written, failure) -> tellOfValue(value, written, failure));
        } catch (KafkaException refused) {
            tell("unknown", "\"value\":" + value); // it may have come as far as a batch
            throw refused;
        }
    }

    private void tellOfValue(long value, RecordMetadata written, Exception failure) {
        if (failure == null) {
            tell("ack", "\"value\":" + value + ",\"offset\":" + written.offset());
        } else if (failure instanceof TransactionAbortedException) {
            tell("fail", "\"value\":" + value); // its batch had never been sent
        } else {
            tell("unknown", "\"value\":" + value);
        }
    }

    private void commit(String transaction) {
        tellOfTransaction("commit-begin", transaction);
        try {
            patiently(producer::commitTransaction);
        } catch (KafkaException refused) {
            abort(transaction);
            return;
        }
        tellOfTransaction("committed", transaction);
    }

    private void abort(String transaction) {
        tellOfTransaction("abort-begin", transaction);
        try {
            patiently(producer::abortTransaction);
        } catch (KafkaException refused) {
            tellOfTransaction("outcome-unknown", transaction);
            throw refused;
        }
        tellOfTransaction("aborted", transaction);
    }

    private static void patiently(Runnable step) {
        while (true) {
            try {
                step.run();
                return;
            } catch (RetriableException late) {
                // Asked again, the client waits on for the answer to the same request.
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        var settings = new Properties();
        for (int n = 6; n < arguments.length; n++) {
            String[] parts = arguments[n].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        var over = new AtomicBoolean();
        var ear =
                new Thread(
                        () -> {
                            try {
                                System.in.transferTo(OutputStream.nullOutputStream());
                            } catch (IOException gone) {
                                // Whoever started this has ended.
                            }
                            over.set(true);
                        });
        ear.setDaemon(true);
        ear.start();
        var bytes = new ByteArraySerializer();
        try (var history = Files.newOutputStream(Path.of(arguments[5]), StandardOpenOption.CREATE_NEW);
                var producer = new KafkaProducer<>(settings, bytes, bytes)) {
            var one = new HistoryProducer(producer, history, arguments);
            producer.initTransactions();
            for (int n = 0; !over.get(); n++) {
                one.transact(one.name + "-" + n);
            }
        }
    }
}
