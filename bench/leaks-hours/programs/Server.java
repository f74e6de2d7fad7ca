// A cache of the 5,000 pages that were requested last, of 1 to 3 KB each, and 100 KB of garbage per request.
import com.sun.net.httpserver.*; import java.io.*; import java.net.*; import java.util.*; import java.nio.file.*;
public class Server { static long bytes = 0;
 public static void main(String[] a) throws Exception {
  Map<String, byte[]> cache = Collections.synchronizedMap(new LinkedHashMap<>(16, 0.75f, true) {
   protected boolean removeEldestEntry(Map.Entry<String, byte[]> e) { if (size() <= 5000) return false; bytes -= e.getValue().length; return true; } });
  Random random = new Random();
  HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(a[0])), 50);
  server.createContext("/", x -> { List<String> rows = new ArrayList<>(); for (int i = 0; i < 1500; i++) rows.add("row " + i);
   byte[] page = new byte[1000 + random.nextInt(2000)]; byte[] old = cache.put(x.getRequestURI().getPath(), page);
   bytes += page.length - (old == null ? 0 : old.length);
   x.sendResponseHeaders(200, page.length); try (OutputStream o = x.getResponseBody()) { o.write(page); } });
  server.start();
  for (;;) { Runtime r = Runtime.getRuntime(); Files.writeString(Path.of(a[1]), System.currentTimeMillis() / 1000.0 + " " + bytes + " " +
   cache.size() + " " + (r.totalMemory() - r.freeMemory()) + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND); Thread.sleep(1000); } } }
