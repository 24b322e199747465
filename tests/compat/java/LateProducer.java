import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes a record in a transaction, says "written", and does nothing until its stdin says
 * something: until the broker has aborted the transaction, which took too long. Then it writes once
 * more, aborts, and has another transaction; if it cannot, another producer of its name does.
 *
 * <p>Prints what each of these steps came to: "done", or the exception.
 *
 * <p>Arguments: topic, then key=value settings of the producer.
 */
public final class LateProducer {
    private static final String DONE = "done";

    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;

    private LateProducer(Properties settings, String topic) {
        this.producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        this.topic = topic;
        producer.initTransactions();
    }

    private interface Step {
        void run() throws Exception;
    }

    private void write(String value) throws Exception {
        producer.send(new ProducerRecord<>(topic, 0, null, value.getBytes(UTF_8))).get();
    }

    private void transact() throws Exception {
        producer.beginTransaction();
        write("next");
        producer.commitTransaction();
    }

    private static boolean tell(String name, Step step) {
        String outcome = DONE;
        try {
            step.run();
        } catch (ExecutionException failure) {
            outcome = failure.getCause().getClass().getSimpleName();
        } catch (Exception failure) {
            outcome = failure.getClass().getSimpleName();
        }
        System.out.println(name + " " + outcome);
        return outcome.equals(DONE);
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[0];
        var settings = new Properties();
        for (int n = 1; n < arguments.length; n++) {
            String[] parts = arguments[n].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        var late = new LateProducer(settings, topic);
        late.producer.beginTransaction();
        late.write("late");
        System.out.println("written");
        System.in.read();
        tell("write", () -> late.write("refused"));
        tell("abort", late.producer::abortTransaction);
        if (!tell("next", late::transact)) {
            var another = new LateProducer(settings, topic);
            tell("another", another::transact);
            another.producer.close();
        }
        late.producer.close();
    }
}
