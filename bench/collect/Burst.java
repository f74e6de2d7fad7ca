// Fills 200 MB, of which nothing is kept, and answers each line.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;

public class Burst {
    public static void main(String[] words) throws Exception {
        ArrayList<byte[]> all = new ArrayList<>();
        for (int i = 0; i < 20000; i++) all.add(new byte[10000]);
        all = null;
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        while (lines.readLine() != null) System.out.println("alive");
    }
}
