import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.zip.Deflater;

/** A report service: each request builds a table of 50,000 rows and returns it compressed. */
class Server {
    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 3000), 0);
        server.setExecutor(Executors.newFixedThreadPool(32));
        server.createContext("/", exchange -> {
            StringBuilder rows = new StringBuilder();
            for (int n = 0; n < 50_000; n++) {
                rows.append(n).append(",customer ").append(n).append(',').append(n * 1.5).append('\n');
            }
            // The state of a deflater is outside of the Java heap, in the memory of malloc.
            Deflater deflater = new Deflater(9, true);
            deflater.setInput(rows.toString().getBytes());
            deflater.finish();
            byte[] body = new byte[4 << 20];
            int length = deflater.deflate(body);
            deflater.end();
            exchange.sendResponseHeaders(200, length);
            exchange.getResponseBody().write(body, 0, length);
            exchange.close();
        });
        server.start();
    }
}
