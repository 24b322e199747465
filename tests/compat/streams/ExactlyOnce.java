import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Copies a topic, and counts how often each key has come, until its stdin ends.
 *
 * <p>Arguments: source, copy, counts, then key=value settings of Kafka Streams.
 */
public final class ExactlyOnce {
    public static void main(String[] arguments) throws Exception {
        var settings = new Properties();
        for (String setting : Arrays.copyOfRange(arguments, 3, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        Serde<String> text = Serdes.String();
        var builder = new StreamsBuilder();
        var source = builder.stream(arguments[0], Consumed.with(text, text));
        source.to(arguments[1], Produced.with(text, text));
        source.groupByKey(Grouped.with(text, text))
                .count(
                        Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                                .withKeySerde(text)
                                .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(arguments[2], Produced.with(text, text));
        var failed = new CountDownLatch(1);
        try (var streams = new KafkaStreams(builder.build(), settings)) {
            streams.setUncaughtExceptionHandler(
                    error -> {
                        error.printStackTrace();
                        failed.countDown();
                        return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
                                .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
                    });
            streams.start();
            var over =
                    new Thread(
                            () -> {
                                try {
                                    System.in.readAllBytes();
                                } catch (java.io.IOException gone) {
                                    // The end as well.
                                }
                                failed.countDown();
                            });
            over.setDaemon(true);
            over.start();
            failed.await();
        }
    }
}
