import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

/**
 * Prints the APIs that this release of kafka-clients knows, one a line, in the order of their keys,
 * with tabs between: key, name, lowest version, highest stable version, highest version, and the
 * kinds of listeners that support it ("-" for none).
 *
 * <p>With the argument "messages" prints the messages of each version instead: key, version,
 * "request" or "response", and its fields. A field is "name:type", a tagged one "name#tag:type". A
 * type is "[type]" for an array and "{field,field}" for a structure; "?" precedes a nullable one.
 */
public final class Apis {
    public static void main(String[] arguments) {
        boolean messages = List.of(arguments).contains("messages");
        Stream.of(ApiMessageType.values())
                .sorted(Comparator.comparing(ApiMessageType::apiKey))
                .flatMap(messages ? Apis::messages : Apis::versions)
                .forEach(System.out::println);
    }

    private static Stream<String> versions(ApiMessageType api) {
        String listeners =
                api.listeners().stream().map(Enum::name).sorted().collect(Collectors.joining(","));
        return Stream.of(
                line(
                        api.apiKey(),
                        api.name,
                        api.lowestSupportedVersion(),
                        api.highestSupportedVersion(false),
                        api.highestSupportedVersion(true),
                        listeners.isEmpty() ? "-" : listeners));
    }

    private static Stream<String> messages(ApiMessageType api) {
        List<String> lines = new ArrayList<>();
        int highest = api.highestSupportedVersion(true);
        for (int version = api.lowestSupportedVersion(); version <= highest; version++) {
            Schema request = api.requestSchemas()[version];
            Schema response = api.responseSchemas()[version];
            lines.add(line(api.apiKey(), version, "request", text(request)));
            lines.add(line(api.apiKey(), version, "response", text(response)));
        }
        return lines.stream();
    }

    private static String line(Object... columns) {
        return Stream.of(columns).map(Object::toString).collect(Collectors.joining("\t"));
    }

    private static String text(Field field) {
        return ":" + text(field.type);
    }

    /** Return the fields by tag; only newer releases have a method that does. */
    @SuppressWarnings("unchecked")
    private static Map<Integer, Field> tagged(TaggedFields fields) {
        try {
            var known = TaggedFields.class.getDeclaredField("fields");
            known.setAccessible(true);
            return (Map<Integer, Field>) known.get(fields);
        } catch (ReflectiveOperationException failure) {
            throw new IllegalStateException(failure);
        }
    }

    private static String text(Type type) {
        String mark = type.isNullable() ? "?" : "";
        if (type instanceof Schema) {
            List<String> fields = new ArrayList<>();
            for (BoundField field : ((Schema) type).fields()) {
                if (field.def.type instanceof TaggedFields) {
                    tagged((TaggedFields) field.def.type)
                            .forEach((tag, one) -> fields.add(one.name + "#" + tag + text(one)));
                } else {
                    fields.add(field.def.name + text(field.def));
                }
            }
            return mark + "{" + String.join(",", fields) + "}";
        }
        if (type.isArray()) {
            return mark + "[" + text(type.arrayElementType().get()) + "]";
        }
        return mark
                + type.toString().replaceAll("COMPACT_|NULLABLE_", "").toLowerCase(Locale.ROOT);
    }
}
