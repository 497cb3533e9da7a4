import java.io.*;
import java.lang.ref.WeakReference;
import java.net.*;
import java.nio.*;
import java.nio.channels.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.stream.*;

/** What the virtual machine asks of a kernel: faults that it handles, guard pages, safepoints, threads, collectors, files, sockets. */
public class Machine {
    static int depth(int n) { return 1 + depth(n + 1); }

    static volatile boolean stop;

    public static void main(String[] arguments) throws Exception {
        System.out.println(System.getProperty("java.specification.version"));
        // A null dereference, in compiled code too, is a SIGSEGV that the machine handles.
        int caught = 0;
        String[] none = new String[2];
        for (int i = 0; i < 20000; i++) {
            try { none[i & 1].length(); } catch (NullPointerException e) { caught++; }
        }
        System.out.println("nulls " + caught);
        // The end of a stack is a guard page, in each thread.
        for (int i = 0; i < 2; i++) {
            Thread thread = new Thread(() -> {
                try { depth(0); } catch (StackOverflowError e) { System.out.println("overflow"); }
            });
            thread.start();
            thread.join();
        }
        try { System.out.println(1 / none.length / (caught - 20000)); } catch (ArithmeticException e) { System.out.println(e.getMessage()); }
        // Loops without calls reach safepoints.
        Thread spinner = new Thread(() -> { long n = 0; while (!stop) n++; });
        spinner.start();
        for (int i = 0; i < 5; i++) System.gc();
        stop = true;
        spinner.join();
        // Locks, queues, pools.
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Integer>> futures = IntStream.range(0, 50).mapToObj(n -> pool.submit(() -> n * n)).collect(Collectors.toList());
        int sum = 0;
        for (Future<Integer> future : futures) sum += future.get();
        System.out.println("sum " + sum + " " + IntStream.range(0, 100000).parallel().filter(n -> n % 7 == 0).count());
        pool.shutdown();
        System.out.println(pool.awaitTermination(60, TimeUnit.SECONDS));
        // The collector.
        WeakReference<byte[]> weak = new WeakReference<>(new byte[1 << 20]);
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < 4000; i++) { byte[] piece = new byte[1 << 15]; if (i % 100 == 0) kept.add(piece); }
        System.gc();
        System.out.println("collected " + (weak.get() == null) + " " + kept.size());
        try { byte[][] all = new byte[1 << 12][]; for (int i = 0; i < all.length; i++) all[i] = new byte[1 << 20]; System.out.println("no"); }
        catch (OutOfMemoryError e) { System.out.println("heap is full"); }
        // Files: mapped, locked, watched.
        Path folder = Files.createTempDirectory("java");
        Path file = folder.resolve("file");
        try (WatchService watch = FileSystems.getDefault().newWatchService()) {
            folder.register(watch, StandardWatchEventKinds.ENTRY_CREATE);
            Files.writeString(file, "text ".repeat(10000));
            WatchKey key = watch.poll(60, TimeUnit.SECONDS);
            System.out.println(key.pollEvents().get(0).context());
        }
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE); FileLock lock = channel.lock()) {
            MappedByteBuffer mapped = channel.map(FileChannel.MapMode.READ_WRITE, 0, channel.size());
            mapped.put(0, (byte) 'T');
            mapped.force();
            System.out.println(lock.isValid() + " " + mapped.capacity());
        }
        System.out.println(Files.readString(file).substring(0, 4));
        try { Files.readString(folder.resolve("none")); } catch (NoSuchFileException e) { System.out.println("no file"); }
        // Sockets: a selector's server, and clients in threads.
        Selector selector = Selector.open();
        ServerSocketChannel server = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT);
        int port = ((InetSocketAddress) server.getLocalAddress()).getPort();
        AtomicInteger echoed = new AtomicInteger();
        List<Thread> clients = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Thread client = new Thread(() -> {
                try (Socket socket = new Socket("127.0.0.1", port)) {
                    socket.getOutputStream().write("hello\n".getBytes());
                    String line = new BufferedReader(new InputStreamReader(socket.getInputStream())).readLine();
                    if (line.equals("hello")) echoed.incrementAndGet();
                } catch (IOException e) { System.out.println(e); }
            });
            clients.add(client);
            client.start();
        }
        ByteBuffer buffer = ByteBuffer.allocateDirect(1024);
        for (int ended = 0; ended < 4; ) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel accepted = server.accept();
                    accepted.configureBlocking(false);
                    accepted.register(selector, SelectionKey.OP_READ);
                } else {
                    SocketChannel channel = (SocketChannel) key.channel();
                    buffer.clear();
                    if (channel.read(buffer) < 0) { channel.close(); ended++; } else { buffer.flip(); channel.write(buffer); }
                }
            }
        }
        for (Thread client : clients) client.join();
        System.out.println("echoed " + echoed);
        try { new Socket("127.0.0.1", 1).close(); } catch (ConnectException e) { System.out.println("refused"); }
        // Children.
        Process cat = new ProcessBuilder("/bin/cat").start();
        cat.getOutputStream().write("through cat\n".getBytes());
        cat.getOutputStream().close();
        System.out.print(new String(cat.getInputStream().readAllBytes(), StandardCharsets.UTF_8));
        System.out.println(new ProcessBuilder("/bin/sh", "-c", "exit 5").start().waitFor());
        Process sleep = new ProcessBuilder("/bin/sleep", "100").start();
        sleep.destroy();
        System.out.println(sleep.waitFor());
        Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("hook")));
        Files.delete(file);
        Files.delete(folder);
        System.exit(8);
    }
}
