import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.DataInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;
import java.util.function.Function;

/**
 * Runs programs side by side in one JVM, as starting a JVM takes longer than most of them run.
 *
 * <p>Prints the port it listens on. Each connection runs one program. The client first sends a
 * count of strings, then each string as its length and UTF-8: the file for stderr, the class, the
 * arguments. The rest of the connection is the program's stdin and stdout; a zero byte and the exit
 * status follow the output. A program and the threads it starts have these streams as System.in,
 * System.out and System.err. The JVM ends when its own stdin ends.
 */
public final class Host implements Runnable {
    private record Streams(InputStream in, OutputStream out, OutputStream err) {}

    private static final InheritableThreadLocal<Streams> STREAMS = new InheritableThreadLocal<>();

    private final Socket socket;

    private Host(Socket socket) {
        this.socket = socket;
    }

    private static InputStream routed(InputStream otherwise) {
        return new InputStream() {
            private InputStream in() {
                var streams = STREAMS.get();
                return streams == null ? otherwise : streams.in();
            }

            @Override
            public int read() throws IOException {
                return in().read();
            }

            @Override
            public int read(byte[] bytes, int start, int length) throws IOException {
                return in().read(bytes, start, length);
            }
        };
    }

    private static PrintStream routed(OutputStream otherwise, Function<Streams, OutputStream> of) {
        var stream =
                new OutputStream() {
                    private OutputStream out() {
                        var streams = STREAMS.get();
                        return streams == null ? otherwise : of.apply(streams);
                    }

                    @Override
                    public void write(int one) throws IOException {
                        out().write(one);
                    }

                    @Override
                    public void write(byte[] bytes, int start, int length) throws IOException {
                        out().write(bytes, start, length);
                    }
                };
        return new PrintStream(stream, true, UTF_8);
    }

    private static String[] readStrings(DataInputStream in) throws IOException {
        var strings = new String[in.readInt()];
        for (int n = 0; n < strings.length; n++) {
            strings[n] = new String(in.readNBytes(in.readInt()), UTF_8);
        }
        return strings;
    }

    private static int exitStatus(String mainClass, String[] arguments)
            throws ReflectiveOperationException {
        try {
            Class.forName(mainClass).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException failure) {
            // As the JVM itself reports it.
            System.err.print("Exception in thread \"main\" ");
            failure.getCause().printStackTrace();
            return 1;
        }
    }

    @Override
    public void run() {
        try (socket) {
            var in = new DataInputStream(socket.getInputStream());
            var out = socket.getOutputStream();
            String[] strings = readStrings(in);
            try (var err = new FileOutputStream(strings[0], true)) {
                STREAMS.set(new Streams(in, out, err));
                int status =
                        exitStatus(strings[1], Arrays.copyOfRange(strings, 2, strings.length));
                out.write(new byte[] {0, (byte) status});
            }
        } catch (IOException gone) {
            // The client has closed the connection and needs no status.
        } catch (ReflectiveOperationException noSuchProgram) {
            throw new IllegalStateException(noSuchProgram);
        }
    }

    private static void endWith(InputStream input) {
        try {
            input.readAllBytes();
        } catch (IOException gone) {
            // The end as well.
        }
        Runtime.getRuntime().halt(0);
    }

    public static void main(String[] arguments) throws IOException {
        var stdin = System.in;
        var listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        System.out.println(listener.getLocalPort());
        System.setIn(routed(stdin));
        System.setOut(routed(System.out, Streams::out));
        System.setErr(routed(System.err, Streams::err));
        new Thread(() -> endWith(stdin)).start();
        while (true) {
            Socket socket = listener.accept();
            socket.setTcpNoDelay(true);
            new Thread(new Host(socket)).start();
        }
    }
}
