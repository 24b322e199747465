import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/** Ends in the way that its argument names, for tests of ToolRunner. */
public final class Ending {
    private static final String LEFT = "left.by.an.earlier.run";

    public static void main(String[] arguments) throws IOException, InterruptedException {
        System.out.println("begins");
        System.err.println("complains");
        switch (arguments[0]) {
            case "returns":
                System.out.println("was left: " + System.getProperty(LEFT));
                System.setProperty(LEFT, "this");
                System.out.print(new String(System.in.readAllBytes(), StandardCharsets.UTF_8));
                break;
            case "exits":
                Exit.addShutdownHook("hook", () -> System.out.println("hook"));
                try {
                    Exit.exit(3);
                } finally {
                    System.out.println("a process does not come so far");
                    Exit.exit(4);
                }
                break;
            case "halts":
                Exit.addShutdownHook("hook", () -> System.out.println("no hook runs"));
                Exit.halt(5);
                break;
            case "throws":
                throw new IllegalStateException("thrown", new IOException("cause"));
            case "goes on":
                Thread other = new Thread(Ending::goOn, "other");
                other.start();
                Thread hook = new Thread(() -> System.out.println("hook"));
                Runtime.getRuntime().addShutdownHook(hook);
                break;
            case "exits elsewhere":
                new Thread(() -> Exit.exit(6), "other").start();
                Thread.sleep(Long.MAX_VALUE);
                break;
            case "leaves a thread":
                Thread left = new Thread(Ending::writeForEver, "left");
                left.setDaemon(true);
                left.start();
                break;
            case "never ends":
                Thread.sleep(Long.MAX_VALUE);
                break;
            case "ends the JVM":
                System.exit(7);
                break;
            default:
                throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void goOn() {
        try {
            Thread.sleep(200);
        } catch (InterruptedException ignored) {
            return;
        }
        System.out.println("main has returned");
        throw new IllegalStateException("thrown elsewhere");
    }

    private static void writeForEver() {
        while (true) {
            try {
                Thread.sleep(1);
            } catch (InterruptedException ignored) {
                continue;
            }
            System.err.println();
        }
    }
}
