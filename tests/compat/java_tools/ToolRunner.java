import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after another in one JVM, each as in a process of its own.
 *
 * <p>Arguments: the jars of the tools. Each run loads their classes again, because tools keep state
 * in static fields. The other jars are on the class path and stay loaded.
 *
 * <p>A command on stdin is a number of texts, then the length and the bytes of each: the tool's
 * stdin, its class, its arguments. The response on stdout is the tool's exit status, its stdout and
 * stderr (each with its length), and a byte: 1 if threads of the tool still run, else 0. The JVM
 * ends at the end of its stdin.
 */
public final class ToolRunner {
    private static final long THREADS_END_MS = 2_000;
    private static final long CLIENTS_CLOSE_MS = 50;
    /** Prefix of a thread of clients that some tools leave open. It closes them when it ends. */
    private static final String ADMIN_THREAD = "kafka-admin-client-thread";

    private static volatile Run current;

    public static void main(String[] arguments) throws Exception {
        URL[] jars = new URL[arguments.length];
        for (int n = 0; n < jars.length; n++) {
            jars[n] = Path.of(arguments[n]).toUri().toURL();
        }
        DataInputStream commands = new DataInputStream(new FileInputStream(FileDescriptor.in));
        DataOutputStream responses = new DataOutputStream(
            new BufferedOutputStream(new FileOutputStream(FileDescriptor.out)));
        // Scala's console and loggers cache these streams, so they serve every run.
        System.setIn(new Input());
        System.setOut(printing(false));
        System.setErr(printing(true));
        Exit.setExitProcedure((status, message) -> current.exit(status, true));
        Exit.setHaltProcedure((status, message) -> current.exit(status, false));
        BlockingQueue<List<String>> given = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> readCommands(commands, given), "commands");
        reader.setDaemon(true);
        reader.start();
        Properties properties = (Properties) System.getProperties().clone();
        while (true) {
            List<String> command = given.take();
            System.setProperties((Properties) properties.clone());
            Thread.setDefaultUncaughtExceptionHandler(null);
            boolean threadsLeft;
            try (URLClassLoader loader =
                    new URLClassLoader(jars, ToolRunner.class.getClassLoader())) {
                current = new Run(command, loader);
                threadsLeft = current.toItsEnd();
            }
            responses.writeInt(current.status);
            write(responses, current.out);
            write(responses, current.err);
            responses.writeByte(threadsLeft ? 1 : 0);
            responses.flush();
        }
    }

    /** Put each command into a queue; end the JVM at the end of the commands. */
    private static void readCommands(DataInputStream commands, BlockingQueue<List<String>> given) {
        try {
            while (true) {
                List<String> texts = new ArrayList<>();
                for (int count = commands.readInt(); count > 0; count--) {
                    byte[] text = new byte[commands.readInt()];
                    commands.readFully(text);
                    texts.add(new String(text, StandardCharsets.UTF_8));
                }
                given.add(texts);
            }
        } catch (EOFException end) {
            Runtime.getRuntime().halt(0);
        } catch (IOException error) {
            Runtime.getRuntime().halt(1);
        }
    }

    private static void write(DataOutputStream responses, ByteArrayOutputStream written)
            throws IOException {
        responses.writeInt(written.size());
        written.writeTo(responses);
    }

    private static PrintStream printing(boolean toErr) {
        String encoding = System.getProperty(
            toErr ? "stderr.encoding" : "stdout.encoding", Charset.defaultCharset().name());
        return new PrintStream(new Output(toErr), true, Charset.forName(encoding));
    }

    /** Unwinds the thread that ended the run. */
    private static final class Ended extends Error {
        private static final long serialVersionUID = 1;

        Ended() {
            super("the tool has ended", null, false, false);
        }
    }

    /** One command. */
    private static final class Run {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final InputStream in;
        int status;

        private final String mainClass;
        private final String[] arguments;
        private final ClassLoader loader;
        private final ThreadGroup group;
        private final CountDownLatch done = new CountDownLatch(1);
        private boolean isEnding;
        private boolean hasEnded;

        Run(List<String> command, ClassLoader loader) {
            this.in = new ByteArrayInputStream(command.get(0).getBytes(StandardCharsets.UTF_8));
            this.mainClass = command.get(1);
            this.arguments = command.subList(2, command.size()).toArray(new String[0]);
            this.loader = loader;
            this.group = new ThreadGroup(mainClass);
        }

        /** Run the tool; return whether threads are left once it has ended. */
        boolean toItsEnd() throws InterruptedException {
            Thread main = new Thread(group, this::runMain, "main");
            main.setContextClassLoader(loader);
            main.start();
            done.await();
            return !threadsEnd();
        }

        private void runMain() {
            int returned = 0;
            try {
                Method main = loader.loadClass(mainClass).getMethod("main", String[].class);
                main.invoke(null, (Object) arguments);
            } catch (InvocationTargetException error) {
                Throwable thrown = error.getCause();
                cutTraces(thrown);
                group.uncaughtException(Thread.currentThread(), thrown);
                returned = 1;
            } catch (ReflectiveOperationException error) {
                group.uncaughtException(Thread.currentThread(), error);
                returned = 1;
            }
            try {
                for (Thread left = other(false); left != null; left = other(false)) {
                    left.join();
                }
                exit(returned, true);
            } catch (InterruptedException | Ended end) {
                return;
            }
        }

        /** Remove the frames of this class from stack traces. */
        private static void cutTraces(Throwable thrown) {
            for (Throwable one = thrown; one != null; one = one.getCause()) {
                StackTraceElement[] trace = one.getStackTrace();
                int own = trace.length;
                for (int n = trace.length - 1; n >= 0; n--) {
                    String name = trace[n].getClassName();
                    if (name.startsWith("ToolRunner")) {
                        own = n;
                    }
                }
                while (own < trace.length && own > 0 && isReflection(trace[own - 1])) {
                    own--;
                }
                one.setStackTrace(Arrays.copyOf(trace, own));
            }
        }

        private static boolean isReflection(StackTraceElement frame) {
            String name = frame.getClassName();
            return name.startsWith("java.lang.reflect.") || name.startsWith("jdk.internal.reflect.");
        }

        /** End the run as `System.exit` or `Runtime.halt` ends a process. */
        void exit(int with, boolean runsHooks) {
            List<Thread> started = new ArrayList<>();
            synchronized (this) {
                if (isEnding) {
                    throw new Ended();
                }
                isEnding = true;
            }
            List<Thread> hooks = takeHooks();
            if (runsHooks) {
                started.addAll(hooks);
            }
            started.forEach(Thread::start);
            for (Thread hook : started) {
                try {
                    hook.join();
                } catch (InterruptedException ignored) {
                    break;
                }
            }
            synchronized (this) {
                status = with;
                hasEnded = true;
            }
            done.countDown();
            throw new Ended();
        }

        /** Keep the output of the tool, but nothing that it writes after its end. */
        synchronized void write(boolean toErr, byte[] bytes, int from, int length) {
            if (!hasEnded) {
                (toErr ? err : out).write(bytes, from, length);
            }
        }

        /** Wait for the end of all threads; return false if some still run. */
        private boolean threadsEnd() throws InterruptedException {
            long begin = System.nanoTime() / 1_000_000;
            for (Thread left = other(true); left != null; left = other(true)) {
                long waited = System.nanoTime() / 1_000_000 - begin;
                if (waited >= THREADS_END_MS) {
                    return false;
                }
                if (waited >= CLIENTS_CLOSE_MS && left.getName().startsWith(ADMIN_THREAD)) {
                    stop(left);
                }
                left.join(waited < CLIENTS_CLOSE_MS ? CLIENTS_CLOSE_MS : THREADS_END_MS - waited);
            }
            return true;
        }

        /** Stop a thread, if this release of Java supports it. */
        private static void stop(Thread thread) {
            try {
                Thread.class.getMethod("stop").invoke(thread);
                thread.interrupt(); // it may wait for its connections
            } catch (ReflectiveOperationException ignored) {
                return; // the JVM is ended instead
            }
        }

        /** Remove the tool's shutdown hooks from the JVM's own list, and return them. */
        @SuppressWarnings("unchecked")
        private List<Thread> takeHooks() {
            try {
                // Accessible because of --add-opens.
                Class<?> registry = Class.forName("java.lang.ApplicationShutdownHooks");
                Field field = registry.getDeclaredField("hooks");
                field.setAccessible(true);
                Map<Thread, Thread> hooks = (Map<Thread, Thread>) field.get(null);
                synchronized (registry) {
                    List<Thread> added = new ArrayList<>();
                    for (Thread hook : hooks.keySet()) {
                        if (hook.getThreadGroup() == group) {
                            added.add(hook);
                        }
                    }
                    hooks.keySet().removeAll(added);
                    return added;
                }
            } catch (ReflectiveOperationException error) {
                throw new LinkageError("this JVM keeps its shutdown hooks elsewhere", error);
            }
        }

        /** Return another thread of the tool, or null. */
        private Thread other(boolean daemonsToo) {
            Thread[] threads = new Thread[group.activeCount() + 16];
            int count = group.enumerate(threads, true);
            for (Thread one : Arrays.copyOf(threads, count)) {
                if (one != Thread.currentThread() && (daemonsToo || !one.isDaemon())) {
                    return one;
                }
            }
            return null;
        }
    }

    /** Stdin of the current run. */
    private static final class Input extends InputStream {
        @Override
        public int read() throws IOException {
            return current.in.read();
        }

        @Override
        public int read(byte[] bytes, int from, int length) throws IOException {
            return current.in.read(bytes, from, length);
        }

        @Override
        public int available() throws IOException {
            return current.in.available();
        }
    }

    /** Stdout or stderr of the current run. */
    private static final class Output extends OutputStream {
        private final boolean toErr;

        Output(boolean toErr) {
            this.toErr = toErr;
        }

        @Override
        public void write(int one) {
            write(new byte[] {(byte) one}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int length) {
            if (current != null) {
                current.write(toErr, bytes, from, length);
            }
        }
    }
}
