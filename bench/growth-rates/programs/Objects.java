// Objects that are kept, or Deflaters that are not ended ("native").
import java.nio.file.*; import java.util.*; import java.util.zip.*;
public class Objects { public static void main(String[] a) throws Exception {
  List<Object> keep = new ArrayList<>(); long kept = 0, end = System.nanoTime() + 300_000_000_000L;
  while (System.nanoTime() < end) {
    if (a.length > 0) for (int i = 0; i < 2; i++) { Deflater d = new Deflater(); d.setInput(new byte[1000]); d.finish(); d.deflate(new byte[2000]); keep.add(d); kept += 268_000; }
    else { byte[] b = new byte[400_000]; Arrays.fill(b, (byte) 1); keep.add(b); kept += b.length; }
    long rss = 4096 * Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]);
    System.out.println(System.nanoTime() / 1e9 + " " + kept + " " + rss); Thread.sleep(100); } } }
