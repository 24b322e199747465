import java.util.Comparator;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.message.ApiMessageType;

/**
 * Prints the APIs that this release of kafka-clients knows, one a line, in the order of their keys,
 * with tabs between: key, name, lowest version, highest stable version, highest version, and the
 * kinds of listeners that support it ("-" for none).
 */
public final class Apis {
    public static void main(String[] arguments) {
        Stream.of(ApiMessageType.values())
                .sorted(Comparator.comparing(ApiMessageType::apiKey))
                .map(Apis::line)
                .forEach(System.out::println);
    }

    private static String line(ApiMessageType api) {
        String listeners =
                api.listeners().stream().map(Enum::name).sorted().collect(Collectors.joining(","));
        return Stream.of(
                        api.apiKey(),
                        api.name,
                        api.lowestSupportedVersion(),
                        api.highestSupportedVersion(false),
                        api.highestSupportedVersion(true),
                        listeners.isEmpty() ? "-" : listeners)
                .map(Object::toString)
                .collect(Collectors.joining("\t"));
    }
}
